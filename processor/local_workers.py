"""A node's own workers as the membership sees them: what each was told to run, and what it has let go of.

    told ──► asked for ──► let go of ──► released, to be said in the ledger ──► forgotten
      ▲                        │
      └────────────────────────┘ planned for it once more

Whoever was asked for a shard is not told to run it again before it has let go, and then only if the ledger still has it
as the holder. Once the release is to be said in the ledger, it has to show up there first: somebody else may have read
that the shard is free.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final

from millstream.processor.event_log import EventLog
from millstream.processor.ledger import (
    LeavingRecord,
    LedgerRecord,
    ReleasedRecord,
    Stalled,
    WorkerDownRecord,
    WorkerUpRecord,
)
from millstream.processor.member_actions import Overdue, Own
from millstream.processor.membership import Membership, WorkerId
from millstream.processor.stalled import of_shards

_log: Final = EventLog(logging.getLogger("millstream.node"))


@dataclass(slots=True)
class LocalWorker:
    """One life of a worker. `told` and `released` have for each shard where in the ledger its holding began.

    `asked` has for each shard since when it is to be let go of; `is_announced` says that a WORKER-UP may be on its way.
    """

    id: WorkerId
    eligible: bool
    leaving: bool = False
    is_announced: bool = False
    is_overdue: bool = False
    told: dict[int, int] = field(default_factory=dict)
    asked: dict[int, float] = field(default_factory=dict)
    released: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a worker ended."""

    why: str
    stalls: tuple[Stalled, ...] = ()


class LocalWorkers:
    """The workers of `node` that are ready, and those that are gone and may not be so in the ledger."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._live: dict[int, LocalWorker] = {}
        self._ended: dict[WorkerId, Ended] = {}

    def __iter__(self) -> Iterator[LocalWorker]:
        return iter(self._live.values())

    def ready(self, worker: int, incarnation: int, *, eligible: bool) -> None:
        """A worker can run shards; it takes the place of its earlier incarnation, if that is still there."""
        current = self._live.get(worker)
        if current is not None and current.id.incarnation >= incarnation:
            return
        if current is not None:
            self.gone(worker, current.id.incarnation, Ended("another incarnation has taken its place"))
        self._live[worker] = LocalWorker(WorkerId(self._node, worker, incarnation), eligible)
        # In order once, rather than at each look: there are many more of those.
        self._live = dict(sorted(self._live.items()))

    def gone(self, worker: int, incarnation: int, ended: Ended) -> None:
        """A worker's process is gone."""
        current = self._live.get(worker)
        if current is None or current.id.incarnation != incarnation:
            return
        del self._live[worker]
        if current.is_announced:
            self._ended[current.id] = ended

    def leaving(self, worker: int) -> None:
        """A worker wants no shards any more."""
        if worker in self._live:
            self._live[worker].leaving = True

    def released(self, membership: Membership, worker: int, shard: int) -> None:
        """A worker has let go of a shard."""
        current = self._live.get(worker)
        if current is None:
            return
        was_asked = current.asked.pop(shard, None) is not None
        was_told = current.told.pop(shard, None) is not None
        if was_told and not current.leaving:
            _log.warning("shard.released_unasked", worker=worker, incarnation=current.id.incarnation, shard=shard)
        goes_on = was_asked and not current.leaving and shard in membership.runs(current.id)
        if not goes_on and membership.holders.get(shard) == current.id:
            current.released[shard] = membership.since[shard]

    def stood_still(self, seconds: float) -> None:
        """So much time has passed that counts for nothing."""
        for worker in self._live.values():
            worker.asked = {shard: at + seconds for shard, at in worker.asked.items()}

    # -- what follows from the ledger ---------------------------------------------------------------------------

    def claims(self, membership: Membership, *, is_draining: bool) -> Iterator[tuple[Hashable, LedgerRecord]]:
        """What the ledger does not say yet about these workers, each under a name for this very claim."""
        yield from self._downs(membership)
        if not is_draining:
            yield from self._ups(membership)
            yield from self._leavings(membership)
        yield from self._releases(membership)

    def _downs(self, membership: Membership) -> Iterator[tuple[Hashable, LedgerRecord]]:
        """Those that are gone while the ledger does not say so, or may yet come to say that they are up."""
        heard_of = membership.nodes[self._node].incarnations
        self._ended = {
            worker: ended
            for worker, ended in self._ended.items()
            if worker in membership.workers or worker.incarnation > heard_of.get(worker.worker, -1)
        }
        unknown = Ended("its node knows nothing of it")
        live = {worker.id for worker in self._live.values()}
        strangers = [worker for worker in membership.workers_of(self._node) if worker not in live]
        for worker, ended in (dict.fromkeys(strangers, unknown) | self._ended).items():
            record = WorkerDownRecord(self._node, worker.worker, worker.incarnation, ended.why, list(ended.stalls))
            yield ("down", worker), record

    def _ups(self, membership: Membership) -> Iterator[tuple[Hashable, LedgerRecord]]:
        heard_of = membership.nodes[self._node].incarnations
        for worker in self:
            if worker.id.incarnation > heard_of.get(worker.id.worker, -1):
                worker.is_announced = True
                record = WorkerUpRecord(self._node, worker.id.worker, worker.id.incarnation, worker.eligible)
                yield ("up", worker.id), record

    def _leavings(self, membership: Membership) -> Iterator[tuple[Hashable, LedgerRecord]]:
        for worker in self:
            info = membership.workers.get(worker.id)
            if worker.leaving and info is not None and not info.leaving:
                yield ("leaving", worker.id), LeavingRecord(self._node, worker.id.worker, worker.id.incarnation)

    def _releases(self, membership: Membership) -> Iterator[tuple[Hashable, LedgerRecord]]:
        for worker in self:
            for shard, since in worker.released.items():
                if membership.holders.get(shard) == worker.id and membership.since[shard] == since:
                    record = ReleasedRecord(shard, self._node, worker.id.worker, worker.id.incarnation, since)
                    yield ("released", shard, since), record

    def changes(self, now: float, membership: Membership) -> list[Own]:
        """What workers have to be told because it has changed."""
        return [own for worker in self if (own := self._change(now, membership, worker)) is not None]

    def _change(self, now: float, membership: Membership, worker: LocalWorker) -> Own | None:
        since = membership.since
        worker.released = {
            shard: at
            for shard, at in worker.released.items()
            if membership.holders.get(shard) == worker.id and since[shard] == at
        }
        runs = sorted(membership.runs(worker.id) - worker.asked.keys() - worker.released.keys())
        wanted = {shard: since[shard] for shard in runs}
        # What came and went within a page of the ledger was never begun.
        idle = membership.releases(worker.id) - worker.told.keys() - worker.asked.keys()
        worker.released |= {shard: since[shard] for shard in idle}
        if wanted == worker.told:
            return None
        worker.asked |= dict.fromkeys(worker.told.keys() - wanted.keys(), now)
        worker.told = wanted
        return Own(worker.id.worker, worker.id.incarnation, wanted, of_shards(membership.stalls, wanted))

    def overdue(self, now: float, release_timeout_s: float) -> list[Overdue]:
        """The workers that should have let go of something by now, each once. One that leaves has time to drain."""
        overdue = []
        for worker in self:
            late = frozenset(shard for shard, at in worker.asked.items() if now >= at + release_timeout_s)
            if late and not worker.leaving and not worker.is_overdue:
                worker.is_overdue = True
                overdue.append(Overdue(worker.id.worker, worker.id.incarnation, late))
        return overdue

    def next_deadline(self, release_timeout_s: float) -> float | None:
        """When `overdue` can change next."""
        asked = (at for worker in self if not worker.is_overdue and not worker.leaving for at in worker.asked.values())
        return min((at + release_timeout_s for at in asked), default=None)
