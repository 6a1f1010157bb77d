"""Who is there and who has which shard, as rows to be shown: pure, and the same in a terminal and on `/status`.

Whoever looks has read the ledger and listened to the beats; nothing here asks a node anything.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec

from millstream.processor.ledger import LedgerState, Node, Stalled, Verdict
from millstream.processor.membership import Membership, WorkerId, WorkerInfo, standbys, standbys_of
from millstream.processor.stalled import place_of
from millstream.processor.timings import Timings

SILENT_AFTER_S: Final = Timings().silence_max_s

NodeState: TypeAlias = Literal["in", "leaving", "silent", "joining", "found dead"]
WorkerState: TypeAlias = Literal["ready", "leaving", "not eligible"]
ShardState: TypeAlias = Literal["owned", "moving", "unowned"]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node. `since_s` is how long ago it joined, by its own clock and that of whoever looks; None if not known.

    `beat_age_ms` is how old its last beat is, None where none was heard. `silent` is what was not heard for
    `SILENT_AFTER_S`; `joining` what is heard and not in the ledger yet, `found dead` what is heard all the same.
    """

    node: str
    name: str
    zone: str
    labels: tuple[str, ...]
    state: NodeState
    since_s: float | None
    beat_age_ms: float | None
    workers: int
    shards: int


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A live worker and the shards that it holds."""

    node: str
    worker: int
    incarnation: int
    state: WorkerState
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardRow:
    """A shard: who has it, who should, and who gets it if the owner's node dies now.

    `planned` differs from `owner` while the shard moves. `since` is the ledger's offset at which the owner got it.
    """

    shard: int
    partitions: tuple[str, ...]
    state: ShardState
    owner: str | None
    planned: str | None
    standby: str | None
    since: int | None


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """A node that was found dead: by whom, after which silence, and how long ago by the finder's clock."""

    node: str
    by: str
    silence_ms: float
    threshold_ms: float
    beats_seen: int
    ago_s: float | None


@dataclass(frozen=True, slots=True)
class StallRow:
    """Records at which workers hung, and how many workers did."""

    shard: int
    stage: str
    records: str
    attempts: int


@dataclass(frozen=True, slots=True)
class StatusView:
    """Everything, at one moment; `ledger_offset` is how far the ledger was read. Verdicts begin with the newest."""

    ledger_offset: int
    nodes: tuple[NodeRow, ...]
    workers: tuple[WorkerRow, ...]
    shards: tuple[ShardRow, ...]
    verdicts: tuple[VerdictRow, ...]
    stalls: tuple[StallRow, ...]

    def as_json(self) -> dict[str, Any]:
        """The same, as JSON-serialisable values."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built


class Standbys:
    """The standby of every shard, worked out once for each state of the ledger.

    With 100 nodes that takes a few tenths of a second, for which the loop of an agent must not stand still.
    """

    def __init__(self) -> None:
        self._membership: Membership | None = None
        self._found: Mapping[int, WorkerId] = {}

    def of(self, membership: Membership) -> Mapping[int, WorkerId]:
        """By shard; a shard without a standby is not in it. All at once."""
        if membership is not self._membership:
            self._membership, self._found = membership, standbys(membership)
        return self._found

    async def find(self, membership: Membership) -> None:
        """Work them out, a node at a time, with a turn for whoever else has something to do after each."""
        if membership is self._membership:
            return
        found: dict[int, WorkerId] = {}
        for node in sorted({owner.node for owner in membership.holders.values()}):
            found |= standbys_of(membership, node)
            await asyncio.sleep(0)
        self._membership, self._found = membership, found

    def known(self, membership: Membership) -> Mapping[int, WorkerId]:
        """What was found for this state of the ledger; nothing where that was not done."""
        return self._found if membership is self._membership else {}


def status_view(
    membership: Membership, beat_ages_s: Mapping[str, float], standby: Mapping[int, WorkerId], *, wall_ms: float
) -> StatusView:
    """The rows. `beat_ages_s` has the age of the last beat of each node that was heard; `wall_ms` is the time now."""
    return StatusView(
        membership.next_offset,
        tuple(_nodes(membership, beat_ages_s, wall_ms)),
        tuple(_workers(membership)),
        tuple(_shards(membership, standby)),
        tuple(_verdict(verdict, wall_ms) for verdict in reversed(membership.verdicts)),
        tuple(_stall(stalled) for stalled in membership.stalls),
    )


def _nodes(membership: Membership, ages_s: Mapping[str, float], wall_ms: float) -> list[NodeRow]:
    workers = Counter(worker.node for worker in membership.workers)
    shards = Counter(owner.node for owner in membership.holders.values())
    rows = [
        _node(node, info, ages_s.get(node), wall_ms, workers=workers[node], shards=shards[node])
        for node, info in sorted(membership.nodes.items())
    ]
    for node in sorted(ages_s.keys() - membership.nodes.keys()):
        # Its last beats are still to be heard when a node has left.
        if ages_s[node] <= SILENT_AFTER_S:
            found_dead = any(verdict.node == node for verdict in membership.verdicts)
            if found_dead or node not in membership.gone:
                state: NodeState = "found dead" if found_dead else "joining"
                rows.append(NodeRow(node, "", "", (), state, None, round(ages_s[node] * 1000, 1), 0, 0))
    return rows


def _node(node: str, info: Node, age_s: float | None, wall_ms: float, *, workers: int, shards: int) -> NodeRow:
    state: NodeState = "leaving" if info.leaving else "in"
    if age_s is None or age_s > SILENT_AFTER_S:
        state = "silent"
    return NodeRow(
        node,
        info.name,
        info.zone,
        info.labels,
        state,
        _ago_s(info.at_ms, wall_ms),
        None if age_s is None else round(age_s * 1000, 1),
        workers,
        shards,
    )


def _ago_s(at_ms: float, wall_ms: float) -> float | None:
    return round(max(0.0, (wall_ms - at_ms) / 1000), 3) if at_ms else None


def _workers(membership: Membership) -> Iterator[WorkerRow]:
    shards: dict[WorkerId, list[int]] = {worker: [] for worker in membership.workers}
    for shard, owner in sorted(membership.holders.items()):
        shards[owner].append(shard)
    for worker, info in sorted(membership.workers.items()):
        yield _worker(worker, info, tuple(shards[worker]))


def _worker(worker: WorkerId, info: WorkerInfo, shards: tuple[int, ...]) -> WorkerRow:
    state: WorkerState = "leaving" if info.leaving else "ready"
    return WorkerRow(worker.node, worker.worker, worker.incarnation, state if info.eligible else "not eligible", shards)


def _shards(membership: Membership, standby: Mapping[int, WorkerId]) -> Iterator[ShardRow]:
    widths = _widths(membership.facts)
    for shard in range(membership.facts.shards or 0):
        yield _shard(membership, shard, standby.get(shard), _partitions(widths, shard, membership.facts.shards or 1))


def _shard(membership: Membership, shard: int, standby: WorkerId | None, partitions: tuple[str, ...]) -> ShardRow:
    owner, planned = membership.holders.get(shard), membership.planned.get(shard)
    state: ShardState = "owned"
    if owner is None:
        state = "unowned"
    elif planned != owner:
        state = "moving"
    return ShardRow(
        shard,
        partitions,
        state,
        _text(owner),
        _text(planned),
        _text(standby),
        membership.since.get(shard),
    )


def _text(worker: WorkerId | None) -> str | None:
    return None if worker is None else str(worker)


def _widths(facts: LedgerState) -> dict[str, int]:
    """Partitions by topic, as far as the ledger knows: those just added are not in it yet."""
    widths = dict(facts.widths)
    for topic, partition in facts.started:
        widths[topic] = max(widths.get(topic, 0), partition + 1)
    return widths


def _partitions(widths: Mapping[str, int], shard: int, shards: int) -> tuple[str, ...]:
    return tuple(
        f"{topic}-{number}" for topic, width in sorted(widths.items()) for number in range(shard, width, shards)
    )


def _verdict(verdict: Verdict, wall_ms: float) -> VerdictRow:
    return VerdictRow(
        verdict.node,
        verdict.by,
        round(verdict.silence_ms, 2),
        round(verdict.threshold_ms, 2),
        verdict.beats_seen,
        _ago_s(verdict.at_ms, wall_ms),
    )


def _stall(stalled: Stalled) -> StallRow:
    return StallRow(stalled.shard, stalled.stage, place_of(stalled), stalled.attempts)
