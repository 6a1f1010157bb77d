"""A node's part in the membership: pure, told what happens and when, answering what to do.

    the ledger says        this node wants               so it says
    ───────────────        ───────────────               ──────────
    nothing of it          to be in                      JOIN, as soon as its own beats come back
    nothing of a worker    its shards                    WORKER-UP
    a worker is up         it is gone                    WORKER-DOWN, at once
    a shard is a worker's  the plan to be followed       RELEASED, when the worker has let go
    another still has it   the shard, and is overdue     SEIZED
    a node is there        it found dead                 DEAD
    it is there            to end                        LEAVING, and LEAVE when it holds nothing

All that is said follows from the difference between what is and what the ledger says, each time anew. So a record that
gets lost is said again, one that is stored twice does no harm, and nothing has to be remembered.

One death, one verdict: among the live nodes in order of their ids that are not silent themselves the first one speaks
at once, each other one a little later, if nobody has by then. The same order decides who writes a snapshot.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from millstream.processor.beats import Beat
from millstream.processor.detector import Detector, Suspicion
from millstream.processor.errors import RefusedError
from millstream.processor.event_log import EventLog
from millstream.processor.ledger import (
    DeadRecord,
    JoinRecord,
    LeaveRecord,
    LeavingRecord,
    LedgerRecord,
    SeizedRecord,
    Stalled,
)
from millstream.processor.ledger_reader import LedgerReader, snapshot
from millstream.processor.local_workers import Ended, LocalWorkers
from millstream.processor.member_actions import Append, Declared, MemberAction, Snapshot
from millstream.processor.membership import Membership
from millstream.processor.membership_log import LedgerPage
from millstream.processor.timings import Timings
from millstream.processor.wishes import Wishes

_log: Final = EventLog(logging.getLogger("millstream.member"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """Who a node is. `node` is its id, unique for each of its lives; the rest is what others may know of it."""

    node: str
    name: str
    zone: str = ""
    labels: tuple[str, ...] = ()


class Member:
    """One life of one node. Times are seconds of a clock that never goes back.

    `wall_at_zero_ms` is the wall clock when that clock was 0, for the times in records that are only ever shown.
    """

    def __init__(self, identity: NodeIdentity, timings: Timings, *, wall_at_zero_ms: float = 0.0) -> None:
        self.identity = identity
        self.membership = Membership()
        self.has_left = False
        self.is_declared = False
        # Nodes that were heard after they had been found dead: frozen for a while, or a mistake.
        self.revenants = 0
        self._node = identity.node
        self._timings = timings
        self._wall_at_zero_ms = wall_at_zero_ms
        self._detector = Detector(timings)
        self._reader = LedgerReader()
        self._has_read = False
        self._read_at = -math.inf
        self._buried: set[str] = set()
        self._workers = LocalWorkers(identity.node)
        self._is_draining = False
        self._ticked: float | None = None
        self._facts: Wishes[LedgerRecord] = Wishes(timings.resend_s)
        self._verdicts: Wishes[Suspicion] = Wishes(timings.verdict_valid_s)
        self._has_said_join = False
        # Since when each suspected node is, and each shard that is to come here is awaited.
        self._suspected: dict[str, float] = {}
        self._awaited: dict[Hashable, float] = {}
        self._snapshot_at: float | None = None
        self._is_doubted = False
        self._doubted_at = -math.inf

    # -- what happened ------------------------------------------------------------------------------------------

    def ledger(self, now: float, page: LedgerPage) -> list[MemberAction]:
        """A piece of the ledger was read.

        Raises RefusedError where it holds what this millstream does not understand, or has lost its beginning.
        """
        if self._is_over:
            return []
        self._read_at = now
        membership = self._reader.read(page.log_start, page.entries)
        if membership is None and page.caught_up:
            raise RefusedError(
                f"the ledger begins at offset {page.log_start} and has no snapshot of what was there before: somebody "
                "else deleted its records; give the topic retention.ms=-1 and use another pipeline name"
            )
        self._has_read |= page.caught_up
        if membership is None or not self._has_read:
            return []
        self.membership = membership
        self._watch_nodes(now)
        if self._node in membership.gone:
            return self._end()
        return self._settle(now)

    def reread(self) -> None:
        """The ledger is read from its start again, since where this node was is not there any more."""
        self._reader = LedgerReader()
        self._has_read = False

    def beats(self, now: float, beats: Iterable[Beat], *, is_behind: bool) -> list[MemberAction]:
        """Beats were read; `is_behind` says that there are more which were not."""
        self._detector.unread(is_behind)
        for beat in beats:
            if beat.node == self._node:
                self._detector.own_beat_seen(now, beat.seq)
            elif beat.node not in self._buried:
                self._detector.beat(now, beat.node, beat.seq)
            else:
                self._buried.discard(beat.node)
                self.revenants += 1
                _log.warning("node.heard_after_death", node=beat.node)
        return [] if self._is_in else self._settle(now)

    def beat_sent(self, now: float, seq: int) -> None:
        """An own beat is on its way."""
        self._detector.own_beat_sent(now, seq)

    def worker_ready(self, now: float, worker: int, incarnation: int, *, eligible: bool = True) -> list[MemberAction]:
        """A worker of this node can run shards, if it is `eligible`."""
        self._workers.ready(worker, incarnation, eligible=eligible)
        return self._settle(now)

    def worker_gone(
        self, now: float, worker: int, incarnation: int, why: str, stalls: Collection[Stalled] = ()
    ) -> list[MemberAction]:
        """A worker's process is gone; `stalls` are the batches at which it hung, if it did."""
        self._workers.gone(worker, incarnation, Ended(why, tuple(stalls)))
        return self._settle(now)

    def worker_leaving(self, now: float, worker: int) -> list[MemberAction]:
        """A worker wants no shards any more and lets go of what it has."""
        self._workers.leaving(worker)
        return self._settle(now)

    def shard_released(self, now: float, worker: int, shard: int) -> list[MemberAction]:
        """A worker has committed what it had of a shard, or dropped it, and will not touch it again."""
        self._workers.released(self.membership, worker, shard)
        return self._settle(now)

    def drain(self, now: float) -> list[MemberAction]:
        """The node is to end in order; `has_left` says when it has."""
        self._is_draining = True
        for worker in self._workers:
            worker.leaving = True
        self.has_left |= not self._has_said_join
        return self._settle(now)

    def tick(self, now: float, late_s: float = 0.0) -> list[MemberAction]:
        """The time is `now`, and the agent's loop came to it `late_s` later than it wanted to.

        Due whenever `next_deadline` has passed, at least once a beat.
        """
        if self._ticked is not None:
            # A clock that jumps and a loop that stands still are the same to us, whoever notices.
            late_s = max(late_s, now - self._ticked - self._timings.beat_interval_s)
        self._ticked = now
        self._detector.looped(now, late_s)
        if late_s > self._timings.own_late_s:
            # What others had to do by now, they may have done, and we have not read it; or they stood still with us.
            self._awaited = {wish: at + late_s for wish, at in self._awaited.items()}
            self._workers.stood_still(late_s)
        self._log_doubt(now)
        actions = self._judge(now) if self._is_in else []
        is_waiting = not self._is_in or self._awaited or self._facts.next_deadline() is not None
        return actions + (self._settle(now) if is_waiting else self._look_around(now))

    # -- what can be seen from outside --------------------------------------------------------------------------

    @property
    def _is_in(self) -> bool:
        return self._node in self.membership.nodes and not self._is_over

    @property
    def _is_over(self) -> bool:
        return self.is_declared or self.has_left

    @property
    def detector(self) -> Detector:
        """What is known of the others' beats."""
        return self._detector

    @property
    def phase(self) -> str:
        """One word for where the node is: joining, in, leaving, left or declared."""
        if self._is_over:
            return "declared" if self.is_declared else "left"
        if self._is_draining:
            return "leaving"
        return "in" if self._is_in else "joining"

    def doubt(self, now: float) -> str | None:
        """Why this node cannot know whether it was found dead, or None. It goes on: Kafka's fence decides."""
        unseen_s = self._detector.unseen_s(now)
        if unseen_s is None or unseen_s <= self._timings.silence_max_s:
            return None
        return (
            f"no beat of this node has come back for {unseen_s:.1f} s: its shards may have been given to others; "
            "see whether it can reach the broker"
        )

    def may_beat(self, now: float) -> bool:
        """Whether this node should be heard.

        One that is in and cannot read the ledger does not learn which shards it has; others do better without it.
        """
        return not self._is_over and (not self._is_in or now - self._read_at <= self._timings.ledger_wait_s)

    def _log_doubt(self, now: float) -> None:
        doubt = self.doubt(now)
        if doubt is not None:
            if not self._is_doubted:
                _log.warning("node.in_doubt", node=self._node, why=doubt)
            self._is_doubted, self._doubted_at = True, now
        elif self._is_doubted and now - self._doubted_at >= self._timings.newcomer_s:
            # Where a log is slow doubts come and go many times a second: that is one trouble, told once.
            _log.info("node.heard_again", node=self._node)
            self._is_doubted = False

    def next_deadline(self) -> float | None:
        """When `tick` is due, if nothing else happens; None when it is over, or `tick` was never called."""
        if self._is_over or self._ticked is None:
            return None
        due_s = self._timings.release_timeout_s
        deadlines: list[float | None] = [self._ticked + self._timings.beat_interval_s]
        if self._has_read:
            deadlines.append(self._facts.next_deadline())
        if self._is_in:
            deadlines.append(self._detector.next_deadline())
            if self._has_read:
                deadlines.append(self._workers.next_deadline(due_s))
                deadlines += [at + due_s for at in self._awaited.values() if at + due_s > self._ticked]
        return min(deadline for deadline in deadlines if deadline is not None)

    # -- deaths -------------------------------------------------------------------------------------------------

    def _watch_nodes(self, now: float) -> None:
        others = self.membership.nodes.keys() - {self._node}
        gone = self._detector.watched - others
        for node in sorted(gone):
            self._detector.forget(node)
            self._suspected.pop(node, None)
            _log.info("node.gone", node=node)
        found_dead = {verdict.node for verdict in self.membership.verdicts}
        self._buried = (self._buried & found_dead) | (gone & found_dead)
        for node in sorted(others - self._detector.watched):
            self._detector.watch(now, node)
            _log.info("node.seen", node=node, zone=self.membership.nodes[node].zone)

    def _judge(self, now: float) -> list[MemberAction]:
        due = self._detector.next_deadline()
        if due is None or now < due:
            return []
        suspicions = self._detector.judge(now)
        self._suspected = {it.node: self._suspected.get(it.node, now) for it in suspicions}
        # Who is new does not know the others yet either, and would be waited for in vain.
        turn_s = self._rank(self._detector.is_known) * self._timings.verdict_step_s
        ripe: dict[Hashable, Suspicion] = {it.node: it for it in suspicions if now >= self._suspected[it.node] + turn_s}
        said = self._verdicts.due(now, ripe)
        verdicts = tuple(self._dead(now, it) for it in said)
        return [Append(verdicts, now + self._timings.verdict_valid_s)] if verdicts else []

    def _rank(self, counts: Callable[[str], bool] = lambda _node: True) -> int:
        """The place of this node among those that are in, not suspected, and count."""
        before = (node for node in self.membership.nodes if node < self._node and node not in self._suspected)
        return sum(map(counts, before))

    def _dead(self, now: float, it: Suspicion) -> LedgerRecord:
        _log.warning(
            "node.found_dead",
            node=it.node,
            silence_ms=it.silence_ms,
            threshold_ms=it.threshold_ms,
            beats_seen=it.beats_seen,
            mean_ms=it.mean_ms,
            deviation_ms=it.deviation_ms,
            is_held=it.is_held,
        )
        at_ms = self._wall_ms(now)
        return DeadRecord(it.node, self._node, it.silence_ms, it.threshold_ms, it.beats_seen, at_ms)

    def _wall_ms(self, now: float) -> int:
        return max(0, round(self._wall_at_zero_ms + now * 1000))

    def _end(self) -> list[MemberAction]:
        verdict = next((it for it in reversed(self.membership.verdicts) if it.node == self._node), None)
        if verdict is None and self._is_draining:
            self.has_left = True
            return []
        self.is_declared = True
        _log.error(
            "node.declared_dead",
            node=self._node,
            by=verdict.by if verdict else "unknown",
            silence_ms=verdict.silence_ms if verdict else math.nan,
            threshold_ms=verdict.threshold_ms if verdict else math.nan,
        )
        return [Declared(verdict)]

    # -- the difference between what is and what the ledger says ------------------------------------------------

    def _settle(self, now: float) -> list[MemberAction]:
        if self._is_over or not self._has_read:
            return []
        owns = self._workers.changes(now, self.membership) if self._is_in else []
        records = tuple(self._facts.due(now, dict(self._wanted(now))))
        appends = [Append(records, now + self._timings.resend_s)] if records else []
        return [*appends, *owns, *self._look_around(now)]

    def _look_around(self, now: float) -> list[MemberAction]:
        """What time alone brings."""
        if not self._is_in or not self._has_read:
            return []
        return [*self._workers.overdue(now, self._timings.release_timeout_s), *self._snapshot(now)]

    def _snapshot(self, now: float) -> Iterator[MemberAction]:
        membership = self.membership
        if membership.next_offset - 1 - membership.snapshot_through < self._timings.snapshot_records:
            self._snapshot_at = None
            return
        if self._snapshot_at is None:
            self._snapshot_at = now + self._rank() * self._timings.resend_s
        if now >= self._snapshot_at:
            self._snapshot_at = now + self._timings.resend_s
            yield Snapshot(snapshot(membership))

    def _wanted(self, now: float) -> Iterator[tuple[Hashable, LedgerRecord]]:
        """Everything that the ledger does not say yet."""
        node = self.membership.nodes.get(self._node)
        if node is None:
            self._awaited.clear()
            yield from self._join(now)
        elif node.leaving and not any(holder.node == self._node for holder in self.membership.holders.values()):
            yield "leave", LeaveRecord(self._node)
        else:
            if self._is_draining and not node.leaving:
                yield "leaving", LeavingRecord(self._node)
            yield from self._workers.claims(self.membership, is_draining=self._is_draining)
            yield from self._seizures(now)

    def _join(self, now: float) -> Iterator[tuple[Hashable, LedgerRecord]]:
        # Who cannot be heard would be found dead, and join, and be found dead.
        if self._detector.doubt(now) is None:
            self._has_said_join = True
            identity = self.identity
            yield (
                "join",
                JoinRecord(identity.node, identity.name, identity.zone, list(identity.labels), self._wall_ms(now)),
            )

    def _seizures(self, now: float) -> Iterator[tuple[Hashable, LedgerRecord]]:
        awaited: dict[Hashable, float] = {}
        for worker in self._workers:
            for shard in self.membership.awaits(worker.id):
                since = self.membership.since[shard]
                wish = ("seized", shard, since)
                awaited[wish] = self._awaited.get(wish, now)
                if now >= awaited[wish] + self._timings.release_timeout_s:
                    yield wish, SeizedRecord(shard, self._node, worker.id.worker, worker.id.incarnation, since)
        self._awaited = awaited
