"""Who is in, and who has which shard: a pure fold of the ledger, the same for everyone who reads it.

    planned   who should own a shard: `plan`, anew whenever the workers that can own shards have changed
    holders   who may run it now

    no holder ──► held by its planned owner ──► RELEASED by it, or its worker is gone ──► no holder
                                   └──────────► SEIZED by the planned owner, because the release is overdue

A shard without a holder goes to its planned owner at once. One that is planned for another stays with its holder until
that has let go. Which worker holds a shard decides how fast things go, never whether they are right: that is for
Kafka's fence.

A record counts only if what it says was possible when the log took it: those of nodes that have not joined or are gone,
second copies, and whatever speaks of a holding or an incarnation that is over, change nothing. A holding is named by
its `since`, the offset of the record that began it, which only grows from one holder to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import msgspec

from millstream.processor.ledger import (
    DeadRecord,
    JoinRecord,
    LeaveRecord,
    LeavingRecord,
    LedgerRecord,
    LedgerState,
    Node,
    ReleasedRecord,
    SeizedRecord,
    SnapshotRecord,
    Stalled,
    Verdict,
    WorkerDownRecord,
    WorkerUpRecord,
    learn,
)
from millstream.processor.plan import Place, plan
from millstream.processor.stalled import counted

VERDICTS_KEPT: Final = 20
# A second copy of a JOIN, from a request that was believed lost, comes within seconds. Should one come when its node is
# forgotten, the node is in once more, never beats, and is found dead once more.
GONE_KEPT: Final = 256


class WorkerId(msgspec.Struct, frozen=True, order=True):
    """One life of one worker."""

    node: str
    worker: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.node}/{self.worker}.{self.incarnation}"


class WorkerInfo(NamedTuple):
    """A live worker: whether it has what the pipeline requires, and whether it wants no shards any more."""

    eligible: bool
    leaving: bool

    @property
    def can_own(self) -> bool:
        """Whether shards are planned for it."""
        return self.eligible and not self.leaving


@dataclass(frozen=True, slots=True)
class Membership:
    """What the records below `next_offset` say about nodes, workers and shards.

    `since` has, for each shard with a holder, the offset of the record that made it so. `stalls` are
    the batches at which workers hung; a pipeline that starts when no node is in begins without them. `gone` are the
    last nodes that left or died. `snapshot_through` is up to where the last snapshot says it all, or -1.
    """

    facts: LedgerState = field(default_factory=LedgerState)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    workers: Mapping[WorkerId, WorkerInfo] = field(default_factory=dict)
    planned: Mapping[int, WorkerId] = field(default_factory=dict)
    holders: Mapping[int, WorkerId] = field(default_factory=dict)
    since: Mapping[int, int] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    stalls: tuple[Stalled, ...] = ()
    gone: tuple[str, ...] = ()
    snapshot_through: int = -1
    next_offset: int = 0

    def runs(self, worker: WorkerId) -> frozenset[int]:
        """The shards that the worker holds and is to keep: its whole set."""
        return frozenset(s for s, owner in self.holders.items() if owner == worker and self.planned.get(s) == worker)

    def releases(self, worker: WorkerId) -> frozenset[int]:
        """The shards that the worker holds and is to release."""
        return frozenset(s for s, owner in self.holders.items() if owner == worker and self.planned.get(s) != worker)

    def awaits(self, worker: WorkerId) -> frozenset[int]:
        """The shards that are planned for the worker and that another has still to release."""
        return frozenset(s for s, owner in self.planned.items() if owner == worker and self.holders.get(s) != worker)

    def workers_of(self, node: str) -> tuple[WorkerId, ...]:
        """The live workers of a node, in order."""
        return tuple(sorted(worker for worker in self.workers if worker.node == node))


def apply(membership: Membership, offset: int, record: LedgerRecord) -> Membership:
    """The membership after the record at this offset of the ledger.

    Records are applied in the log's order; one below `next_offset` is there already and changes nothing.
    """
    if offset < membership.next_offset:
        return membership
    change = _CHANGES.get(type(record), _learn)
    return replace(change(membership, offset, record), next_offset=offset + 1)


def standby(membership: Membership, shard: int) -> WorkerId | None:
    """Who gets the shard if its holder's whole node dies now; None where nobody does, or nobody holds it."""
    holder = membership.holders.get(shard)
    return None if holder is None else _without(membership, holder.node).holders.get(shard)


def standbys_of(membership: Membership, node: str) -> dict[int, WorkerId]:
    """The standby of every shard that the node holds and that has one."""
    heirs = _without(membership, node).holders
    return {shard: heirs[shard] for shard, owner in membership.holders.items() if owner.node == node and shard in heirs}


def standbys(membership: Membership) -> dict[int, WorkerId]:
    """The standby of every shard that has one; cheaper than asking for one after the other."""
    after = {node: _without(membership, node) for node in sorted({owner.node for owner in membership.holders.values()})}
    chosen = {shard: after[owner.node].holders.get(shard) for shard, owner in membership.holders.items()}
    return {shard: worker for shard, worker in chosen.items() if worker is not None}


def _without(membership: Membership, node: str) -> Membership:
    return _remove_node(membership, membership.next_offset, node)


def _learn(membership: Membership, offset: int, record: LedgerRecord) -> Membership:
    facts = learn(membership.facts, record)
    if facts is membership.facts:
        return membership
    after = replace(membership, facts=facts)
    return after if facts.shards == membership.facts.shards else _settle(membership, after, offset)


def _snapshot(membership: Membership, _offset: int, record: SnapshotRecord) -> Membership:
    # Whoever reads on knows all of it; whoever begins with it does not come here (LedgerReader).
    return replace(membership, snapshot_through=max(membership.snapshot_through, record.through))


def _join(membership: Membership, offset: int, record: JoinRecord) -> Membership:
    if record.node in membership.nodes or record.node in membership.gone:
        return membership
    node = Node(record.name, record.zone, tuple(record.labels), offset, at_ms=record.at_ms)
    # Whoever starts it anew may have mended what hung. Until then nothing is forgotten: a release says nothing about
    # the batch, and what lies behind the committed offsets does no harm.
    stalls = membership.stalls if membership.nodes else ()
    return replace(membership, nodes={**membership.nodes, record.node: node}, stalls=stalls)


def _worker_up(membership: Membership, offset: int, record: WorkerUpRecord) -> Membership:
    node = membership.nodes.get(record.node)
    if node is None or not _is_news(node, record):
        return membership
    up = WorkerId(record.node, record.worker, record.incarnation)
    # A worker lives one life at a time: the next one says that the one before is over.
    others = {
        worker: info
        for worker, info in membership.workers.items()
        if (worker.node, worker.worker) != (record.node, record.worker)
    }
    after = replace(
        membership,
        nodes={**membership.nodes, record.node: _heard_of(node, record)},
        workers={**others, up: WorkerInfo(record.eligible, node.leaving)},
    )
    return _settle(membership, after, offset)


def _worker_down(membership: Membership, offset: int, record: WorkerDownRecord) -> Membership:
    node = membership.nodes.get(record.node)
    if node is None:
        return membership
    down = WorkerId(record.node, record.worker, record.incarnation)
    if down not in membership.workers:
        if not _is_news(node, record):
            return membership
        return replace(membership, nodes={**membership.nodes, record.node: _heard_of(node, record)})
    workers = {worker: info for worker, info in membership.workers.items() if worker != down}
    after = replace(membership, workers=workers, stalls=_stalls_after(membership, record))
    return _settle(membership, after, offset)


def _is_news(node: Node, record: WorkerUpRecord | WorkerDownRecord) -> bool:
    return record.incarnation > node.incarnations.get(record.worker, -1)


def _heard_of(node: Node, record: WorkerUpRecord | WorkerDownRecord) -> Node:
    return msgspec.structs.replace(node, incarnations={**node.incarnations, record.worker: record.incarnation})


def _stalls_after(membership: Membership, record: WorkerDownRecord) -> tuple[Stalled, ...]:
    shards = membership.facts.shards or 0
    return counted(membership.stalls, [stalled for stalled in record.stalls if stalled.shard < shards])


def _leaving(membership: Membership, offset: int, record: LeavingRecord) -> Membership:
    node = membership.nodes.get(record.node)
    if node is None:
        return membership
    nodes = membership.nodes
    if record.worker is None:
        nodes = {**nodes, record.node: msgspec.structs.replace(node, leaving=True)}
    leaving = {
        worker: info._replace(leaving=True) for worker, info in membership.workers.items() if _is_named(record, worker)
    }
    return _settle(membership, replace(membership, nodes=nodes, workers={**membership.workers, **leaving}), offset)


def _is_named(record: LeavingRecord, worker: WorkerId) -> bool:
    is_one = record.worker is None or (worker.worker, worker.incarnation) == (record.worker, record.incarnation)
    return worker.node == record.node and is_one


def _leave(membership: Membership, offset: int, record: LeaveRecord) -> Membership:
    return _remove_node(membership, offset, record.node)


def _dead(membership: Membership, offset: int, record: DeadRecord) -> Membership:
    # Two that find each other dead do not both die: the log decides who was first.
    if record.node not in membership.nodes or record.by not in membership.nodes:
        return membership
    verdict = Verdict(
        offset,
        record.node,
        membership.nodes[record.node].name,
        record.by,
        record.silence_ms,
        record.threshold_ms,
        record.beats_seen,
        record.at_ms,
    )
    verdicts = (*membership.verdicts, verdict)[-VERDICTS_KEPT:]
    return replace(_remove_node(membership, offset, record.node), verdicts=verdicts)


def _remove_node(membership: Membership, offset: int, node: str) -> Membership:
    if node not in membership.nodes:
        return membership
    after = replace(
        membership,
        nodes={name: info for name, info in membership.nodes.items() if name != node},
        workers={worker: info for worker, info in membership.workers.items() if worker.node != node},
        gone=(*membership.gone, node)[-GONE_KEPT:],
    )
    return _settle(membership, after, offset)


def _released(membership: Membership, offset: int, record: ReleasedRecord) -> Membership:
    holder = WorkerId(record.node, record.worker, record.incarnation)
    if membership.holders.get(record.shard) != holder or membership.since[record.shard] != record.since:
        return membership
    holders = {shard: owner for shard, owner in membership.holders.items() if shard != record.shard}
    return _hand_out(replace(membership, holders=holders), offset)


def _seized(membership: Membership, offset: int, record: SeizedRecord) -> Membership:
    taker = WorkerId(record.node, record.worker, record.incarnation)
    is_overdue = membership.since.get(record.shard) == record.since and membership.holders[record.shard] != taker
    if not is_overdue or membership.planned.get(record.shard) != taker:
        return membership
    holders = {shard: owner for shard, owner in membership.holders.items() if shard != record.shard}
    return _hand_out(replace(membership, holders=holders), offset)


def _settle(before: Membership, after: Membership, offset: int) -> Membership:
    """Plan for the live workers, take what the others held, and hand out what is free."""
    if after.workers == before.workers and after.facts.shards == before.facts.shards:
        return after
    owners = [worker for worker, info in after.workers.items() if info.can_own]
    nodes = {**before.nodes, **after.nodes}
    places = {worker: Place(worker.node, nodes[worker.node].zone) for worker in (*before.workers, *owners)}
    holders = {shard: owner for shard, owner in after.holders.items() if owner in after.workers}
    planned = plan(before.planned, owners, range(after.facts.shards or 0), places=places, holders=holders)
    return _hand_out(replace(after, planned=planned, holders=holders), offset)


def _hand_out(membership: Membership, offset: int) -> Membership:
    granted = {shard: owner for shard, owner in membership.planned.items() if shard not in membership.holders}
    holders = {**membership.holders, **granted}
    since = {shard: offset if shard in granted else membership.since[shard] for shard in holders}
    return replace(membership, holders=holders, since=since)


_CHANGES: Final[Mapping[type, Callable[..., Membership]]] = {
    JoinRecord: _join,
    WorkerUpRecord: _worker_up,
    WorkerDownRecord: _worker_down,
    LeavingRecord: _leaving,
    LeaveRecord: _leave,
    DeadRecord: _dead,
    ReleasedRecord: _released,
    SeizedRecord: _seized,
    SnapshotRecord: _snapshot,
}
