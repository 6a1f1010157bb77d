"""Who is there and who has which shard, as rows to be shown: pure, and the same in a terminal and on `/status`.

Whoever looks has read the ledger and listened to the beats; nothing here asks a node anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec

from millstream.processor.ledger import LedgerState, Stalled, Verdict
from millstream.processor.membership import Membership, WorkerId, WorkerInfo, standbys
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
    """The standby of every shard, worked out once for each state of the ledger: with 100 nodes it takes 15 ms."""

    def __init__(self) -> None:
        self._membership: Membership | None = None
        self._found: Mapping[int, WorkerId] = {}

    def of(self, membership: Membership) -> Mapping[int, WorkerId]:
        """By shard; a shard without a standby is not in it."""
        if membership is not self._membership:
            self._membership, self._found = membership, standbys(membership)
        return self._found


def status_view(
    membership: Membership, beat_ages_s: Mapping[str, float], standby: Mapping[int, WorkerId], *, wall_ms: float
) -> StatusView:
    """The rows. `beat_ages_s` has the age of the last beat of each node that was heard; `wall_ms` is the time now."""
    return StatusView(
        membership.next_offset,
        tuple(_nodes(membership, beat_ages_s, wall_ms)),
        tuple(_worker(membership, *found) for found in sorted(membership.workers.items())),
        tuple(_shard(membership, shard, standby.get(shard)) for shard in range(membership.facts.shards or 0)),
        tuple(_verdict(verdict, wall_ms) for verdict in reversed(membership.verdicts)),
        tuple(_stall(stalled) for stalled in membership.stalls),
    )


def _nodes(membership: Membership, ages_s: Mapping[str, float], wall_ms: float) -> list[NodeRow]:
    rows = [_node(membership, node, ages_s.get(node), wall_ms) for node in sorted(membership.nodes)]
    for node in sorted(ages_s.keys() - membership.nodes.keys()):
        # Its last beats are still to be heard when a node has left.
        if ages_s[node] <= SILENT_AFTER_S:
            found_dead = any(verdict.node == node for verdict in membership.verdicts)
            if found_dead or node not in membership.gone:
                state: NodeState = "found dead" if found_dead else "joining"
                rows.append(NodeRow(node, "", "", (), state, None, round(ages_s[node] * 1000, 1), 0, 0))
    return rows


def _node(membership: Membership, node: str, age_s: float | None, wall_ms: float) -> NodeRow:
    info = membership.nodes[node]
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
        sum(worker.node == node for worker in membership.workers),
        sum(owner.node == node for owner in membership.holders.values()),
    )


def _ago_s(at_ms: float, wall_ms: float) -> float | None:
    return round(max(0.0, (wall_ms - at_ms) / 1000), 3) if at_ms else None


def _worker(membership: Membership, worker: WorkerId, info: WorkerInfo) -> WorkerRow:
    state: WorkerState = "leaving" if info.leaving else "ready"
    shards = tuple(sorted(shard for shard, owner in membership.holders.items() if owner == worker))
    return WorkerRow(worker.node, worker.worker, worker.incarnation, state if info.eligible else "not eligible", shards)


def _shard(membership: Membership, shard: int, standby: WorkerId | None) -> ShardRow:
    owner, planned = membership.holders.get(shard), membership.planned.get(shard)
    state: ShardState = "owned"
    if owner is None:
        state = "unowned"
    elif planned != owner:
        state = "moving"
    return ShardRow(
        shard,
        tuple(partitions_of(membership.facts, shard)),
        state,
        _text(owner),
        _text(planned),
        _text(standby),
        membership.since.get(shard),
    )


def _text(worker: WorkerId | None) -> str | None:
    return None if worker is None else str(worker)


def partitions_of(facts: LedgerState, shard: int) -> list[str]:
    """The partitions of a shard that the ledger knows of, as topic-number. Those just added are not in it yet."""
    widths = dict(facts.widths)
    for topic, partition in facts.started:
        widths[topic] = max(widths.get(topic, 0), partition + 1)
    shards = facts.shards or 1
    return [f"{topic}-{number}" for topic, width in sorted(widths.items()) for number in range(shard, width, shards)]


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
