"""What has happened to a pipeline's nodes and shards, told from its ledger, record by record: pure.

A takeover is granted by the very record that finds a node dead, so what the ledger can tell of it is the silence that
led there. A planned move begins with the record that plans it and ends with the one that lets go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from millstream.processor.ledger import (
    DeadRecord,
    JoinRecord,
    LeaveRecord,
    LeavingRecord,
    LedgerRecord,
    SeizedRecord,
    SnapshotRecord,
    WorkerDownRecord,
    WorkerUpRecord,
)
from millstream.processor.membership import Membership, WorkerId

EVENTS_KEPT: Final = 50
_SHARDS_SHOWN: Final = 8


class Event(NamedTuple):
    """Something that happened; `at_ms` is the wall clock, None where nobody knows when it was."""

    offset: int
    at_ms: int | None
    what: str
    text: str


class LedgerStory:
    """The last events. Whoever reads on tells it each record with the membership before and after it."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._planned_at: dict[int, float] = {}

    def read(
        self, before: Membership, after: Membership, offset: int, record: LedgerRecord, wall_ms: float | None
    ) -> None:
        """A record was read; `wall_ms` is None where it is an old one, since nobody knows when it was written."""
        if isinstance(record, SnapshotRecord):
            # What it says has happened before, and whoever begins with it has seen nothing of that.
            return
        at_ms = getattr(record, "at_ms", 0) or (None if wall_ms is None else round(wall_ms))
        for what, text in self._told(before, after, record, wall_ms):
            self.events.append(Event(offset, at_ms, what, text))
        self._note_plans(before, after, wall_ms)

    def _told(
        self, before: Membership, after: Membership, record: LedgerRecord, wall_ms: float | None
    ) -> Iterator[tuple[str, str]]:
        yield from _of_nodes(before, after, record)
        for (old, new), shards in _moves(before, after).items():
            yield self._moved(record, old, new, shards, wall_ms)

    def _moved(
        self,
        record: LedgerRecord,
        old: WorkerId | None,
        new: WorkerId | None,
        shards: list[int],
        wall_ms: float | None,
    ) -> tuple[str, str]:
        what = _shards(shards)
        if new is None:
            return "unowned", f"{what} of {old}: nobody can run them"
        if old is None:
            return "given", f"{what} to {new}"
        if isinstance(record, DeadRecord):
            return "taken over", f"{what} by {new} from {old}, {record.silence_ms:.0f} ms after its last beat"
        if isinstance(record, WorkerDownRecord):
            return "taken over", f"{what} by {new} from {old}"
        if isinstance(record, SeizedRecord):
            return "seized", f"{what} by {new} from {old}, which did not let go"
        began = [self._planned_at[shard] for shard in shards if shard in self._planned_at]
        took = f" in {wall_ms - min(began):.0f} ms" if began and wall_ms is not None else ""
        return "moved", f"{what} from {old} to {new}{took}"

    def _note_plans(self, before: Membership, after: Membership, wall_ms: float | None) -> None:
        for shard, planned in after.planned.items():
            if after.holders.get(shard) == planned:
                self._planned_at.pop(shard, None)
            elif wall_ms is not None and before.planned.get(shard) != planned:
                self._planned_at[shard] = wall_ms


def _of_nodes(before: Membership, after: Membership, record: LedgerRecord) -> Iterator[tuple[str, str]]:
    match record:
        case JoinRecord(node=node, zone=zone) if node in after.nodes and node not in before.nodes:
            yield "joined", f"{node}" + (f" in zone {zone}" if zone else "")
        case LeaveRecord(node=node) if node in before.nodes:
            yield "left", node
        case LeavingRecord(node=node, worker=None) if node in before.nodes and not before.nodes[node].leaving:
            yield "leaving", node
        case DeadRecord(node=node) if node in before.nodes and node not in after.nodes:
            silence = f"silent for {record.silence_ms:.0f} ms, allowed were {record.threshold_ms:.0f} ms"
            yield "found dead", f"{node} by {record.by}: {silence}"
        case WorkerUpRecord():
            up = WorkerId(record.node, record.worker, record.incarnation)
            if up in after.workers and up not in before.workers:
                yield "worker up", str(up)
        case WorkerDownRecord():
            down = WorkerId(record.node, record.worker, record.incarnation)
            if down in before.workers and down not in after.workers:
                yield "worker down", f"{down}: {record.why}"
        case _:
            pass


def _moves(before: Membership, after: Membership) -> Mapping[tuple[WorkerId | None, WorkerId | None], list[int]]:
    moves: dict[tuple[WorkerId | None, WorkerId | None], list[int]] = {}
    if before.holders is after.holders:
        return moves
    for shard in sorted(before.holders.keys() | after.holders.keys()):
        pair = before.holders.get(shard), after.holders.get(shard)
        if pair[0] != pair[1]:
            moves.setdefault(pair, []).append(shard)
    return moves


def _shards(shards: list[int]) -> str:
    shown = ", ".join(map(str, shards[:_SHARDS_SHOWN]))
    more = f" and {len(shards) - _SHARDS_SHOWN} more" if len(shards) > _SHARDS_SHOWN else ""
    return f"shard{'s' if len(shards) > 1 else ''} {shown}{more}"
