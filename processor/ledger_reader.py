"""Reading the ledger from wherever it begins: snapshots, and the membership that follows from them.

A ledger that still has its first record is simply applied. One that has lost its beginning to a snapshot is read up to
the first SNAPSHOT that says all of what is missing; what was read before that one and is not in it is applied after it.
Whoever deletes records does so up to a snapshot's `through` only, and only after that snapshot is stored, so there is
always one to be found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.processor.errors import RefusedError
from millstream.processor.ledger import LedgerRecord, SnapshotRecord, SnapshotState, WorkerState, decode
from millstream.processor.membership import Membership, WorkerId, WorkerInfo, apply
from millstream.processor.partitions import TopicPartition


def snapshot(membership: Membership) -> SnapshotRecord:
    """All that the membership knows, as a record. It must have seen a record: there is nothing to say before."""
    assert membership.next_offset > 0
    facts = membership.facts
    workers = sorted(membership.workers)
    places = {worker: place for place, worker in enumerate(workers)}
    state = SnapshotState(
        shards=facts.shards,
        widths=dict(facts.widths),
        started=_by_topic(facts.started),
        nodes=dict(membership.nodes),
        workers=[WorkerState(w.node, w.worker, w.incarnation, *membership.workers[w]) for w in workers],
        planned={shard: places[worker] for shard, worker in membership.planned.items()},
        holdings={shard: (places[worker], membership.since[shard]) for shard, worker in membership.holders.items()},
        verdicts=list(membership.verdicts),
        stalls=list(membership.stalls),
        gone=list(membership.gone),
        snapshot_through=membership.snapshot_through,
    )
    return SnapshotRecord(membership.next_offset - 1, state)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


def restore(record: SnapshotRecord) -> Membership:
    """The membership that a snapshot was made of. Raises RefusedError for a snapshot that contradicts itself."""
    state = record.state
    workers = [WorkerId(worker.node, worker.worker, worker.incarnation) for worker in state.workers]
    named = [*state.planned.values(), *(place for place, _ in state.holdings.values())]
    if any(place >= len(workers) for place in named) or any(worker.node not in state.nodes for worker in workers):
        raise RefusedError(
            f"the ledger's snapshot of the records through offset {record.through} names workers or nodes that it "
            "does not hold: it is damaged; use another pipeline name"
        )
    return Membership(
        facts=state.facts(),
        nodes=state.nodes,
        workers=dict(zip(workers, (WorkerInfo(w.eligible, w.leaving) for w in state.workers), strict=True)),
        planned=_named(state.planned, workers),
        holders=_named({shard: place for shard, (place, _) in state.holdings.items()}, workers),
        since={shard: since for shard, (_, since) in state.holdings.items()},
        verdicts=tuple(state.verdicts),
        stalls=tuple(state.stalls),
        gone=tuple(state.gone),
        snapshot_through=state.snapshot_through,
        next_offset=record.through + 1,
    )


def _named(places: Mapping[int, int], workers: list[WorkerId]) -> dict[int, WorkerId]:
    return {shard: workers[place] for shard, place in places.items()}


class LedgerReader:
    """From the entries of the ledger, page after page, to the membership.

    `membership` is None until enough has been read to know it. If it is still None at the end of the log, the ledger
    has lost its beginning, and nobody can say any more what it said.
    """

    def __init__(self) -> None:
        self.membership: Membership | None = None
        self._waiting: list[tuple[int, LedgerRecord]] = []
        self._from = -1

    def read(self, log_start: int, entries: Iterable[tuple[int, bytes]]) -> Membership | None:
        """Take a page: pairs of offset and bytes in the log's order, and the log's first offset when it was read.

        A page may begin with entries of the one before. Answers `membership`. Raises RefusedError for a record that
        this millstream does not understand.
        """
        if log_start > self._next_offset():
            # What we have not read is deleted: all of it is in a snapshot, further on.
            self._from = log_start
            self._waiting.clear()
            self.membership = Membership() if log_start == 0 else None
        for offset, value in entries:
            if offset >= self._next_offset():
                self._take(offset, decode(value))
        return self.membership

    def _next_offset(self) -> int:
        if self.membership is not None:
            return self.membership.next_offset
        return self._waiting[-1][0] + 1 if self._waiting else self._from

    def _take(self, offset: int, record: LedgerRecord) -> None:
        if self.membership is not None:
            self.membership = apply(self.membership, offset, record)
            return
        self._waiting.append((offset, record))
        if isinstance(record, SnapshotRecord) and record.through + 1 >= self._from:
            self.membership = restore(record)
            for buffered_offset, buffered in self._waiting:
                self.membership = apply(self.membership, buffered_offset, buffered)
            self._waiting.clear()
