"""A node's part in the membership at work: carries what happens to `Member`, and does what that asks for.

Each way to the log has a task of its own, so that no beat waits for a ledger that is slow to answer. When the node was
found dead, it begins anew as another: its workers drop what they have first, since they are no longer the owners.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from millstream.processor.alarm import Alarm
from millstream.processor.beats import decode_beat, encode_beat
from millstream.processor.errors import CorruptBatchError, PositionLostError, RefusedError, UnavailableError
from millstream.processor.event_log import EventLog
from millstream.processor.heartbeat import Heartbeat
from millstream.processor.ledger import LedgerRecord, Stalled, encode
from millstream.processor.member import Member, NodeIdentity
from millstream.processor.member_actions import Append, Declared, MemberAction, Overdue, Own, Snapshot
from millstream.processor.membership import WorkerId
from millstream.processor.membership_log import MembershipLog
from millstream.processor.membership_measures import MembershipMeasures, MemberView
from millstream.processor.seldom import SeldomWarning
from millstream.processor.timings import Timings

_log: Final = EventLog(logging.getLogger("millstream.member"))

# The part of a beat's interval after which a node that is not in yet sends the next one.
_JOINING: Final = 0.2
_SNAPSHOT_WAIT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """What a node says about itself. Two nodes may have the same `name`; its id has a random part."""

    name: str
    zone: str = ""
    labels: tuple[str, ...] = ()
    timings: Timings = field(default_factory=Timings)

    def identity(self) -> NodeIdentity:
        """Who the node is in a new life."""
        node = f"{self.name}-{secrets.token_hex(4)}"
        return NodeIdentity(node=node, name=self.name, zone=self.zone, labels=self.labels)


def default_node_name() -> str:
    """The machine's host name, without what could not be in a name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:100] or "node"


class Workers(Protocol):
    """The node's workers, as the membership sees them."""

    def own(self, worker: int, incarnation: int, shards: frozenset[int], stalls: Collection[Stalled]) -> None:
        """The worker is to run these shards and no others."""

    def overdue(self, worker: int, incarnation: int, shards: Collection[int]) -> None:
        """The worker has not let go of these shards in time."""

    def elsewhere(self, shards: frozenset[int]) -> None:
        """The ledger knows all workers that are ready, and other nodes run these shards now."""

    def left(self) -> None:
        """The ledger has the node's goodbye."""


@dataclass(slots=True)
class _Hand:
    """A worker that is ready. `holds` is what it was told to run and has not let go of, in whichever life of the node.

    `drop_by` is set while it has to let go of all that, since it is from a life that is over.
    """

    incarnation: int
    holds: set[int] = field(default_factory=set)
    drop_by: float | None = None
    is_leaving: bool = False

    @property
    def may_run(self) -> bool:
        """Whether it can be given shards."""
        return self.drop_by is None and not self.is_leaving


class Participation:
    """One node among those of one pipeline, through all of its lives."""

    def __init__(
        self, place: NodePlace, log: MembershipLog, workers: Workers, measures: MembershipMeasures | None = None
    ) -> None:
        self._measures = measures or MembershipMeasures()
        self._place = place
        self._log = log
        self._workers = workers
        self._hands: dict[int, _Hand] = {}
        self._elsewhere: frozenset[int] | None = None
        self._is_departing = False
        self._appends: deque[Append] = deque()
        # Of snapshots only the newest is of use.
        self._snapshot: Snapshot | None = None
        self._queued = asyncio.Event()
        self._snapshot_queued = asyncio.Event()
        self._ticks = Alarm()
        # Half of what lies between two pages of beats: one of them is never farther from what is due.
        self._early_s = place.timings.beat_interval_s / 4
        self._heartbeat = Heartbeat(self._beat_interval_s, self._early_s, self._beat)
        self._seq = 0
        self._trouble = SeldomWarning(_log, "membership.trouble")
        self._undeleted = SeldomWarning(_log, "ledger.not_deleted")
        self.declared = 0
        self.beats_sent = 0
        self.member = self._new_member()

    def _new_member(self) -> Member:
        wall_at_zero_ms = (time.time() - _now()) * 1000
        return Member(self._place.identity(), self._place.timings, wall_at_zero_ms=wall_at_zero_ms)

    async def run(self) -> None:
        """Take part until cancelled. Raises RefusedError, alone or in a group, for what trying again cannot mend."""
        try:
            while not await self._tried(self._log.connect):
                pass
            async with asyncio.TaskGroup() as tasks:
                for work in (self._follow, self._append, self._save, self._heartbeat.run, self._listen, self._tick):
                    tasks.create_task(work())
        finally:
            self._log.close()

    # -- what the node says -------------------------------------------------------------------------------------

    def worker_ready(self, worker: int, incarnation: int) -> None:
        """A worker can run shards."""
        self._hands[worker] = _Hand(incarnation)
        self._announce(worker)

    def worker_gone(self, worker: int, incarnation: int, why: str, stalls: Collection[Stalled]) -> None:
        """A worker's process is gone.

        What it hung at while it dropped the shards of an earlier life of the node is not counted: the next owner finds
        out by itself, which takes one attempt more.
        """
        hand = self._hands.get(worker)
        if hand is not None and hand.incarnation == incarnation:
            del self._hands[worker]
        self._measures.worker_gone(_now(), WorkerId(self.member.identity.node, worker, incarnation))
        self._do(self.member.worker_gone(_now(), worker, incarnation, why, stalls))

    def worker_leaving(self, worker: int) -> None:
        """A worker wants no shards any more."""
        if worker in self._hands:
            self._hands[worker].is_leaving = True
        self._do(self.member.worker_leaving(_now(), worker))

    def shard_released(self, worker: int, shard: int) -> None:
        """A worker has let go of a shard."""
        hand = self._hands.get(worker)
        if hand is None:
            return
        hand.holds.discard(shard)
        if hand.drop_by is None:
            self._do(self.member.shard_released(_now(), worker, shard))
        elif not hand.holds:
            hand.drop_by = None
            self._announce(worker)

    def tokens(self, shards: Iterable[int]) -> dict[int, int]:
        """Where in the ledger the holding of each of these shards began, which a worker of this node has just got."""
        since = self.member.membership.since
        return {shard: since[shard] for shard in sorted(shards)}

    def depart(self) -> None:
        """The node is to end in order."""
        self._is_departing = True
        self._do(self.member.drain(_now()))

    # -- what the member asks for -------------------------------------------------------------------------------

    def _do(self, actions: Collection[MemberAction]) -> None:
        for action in actions:
            match action:
                case Append():
                    self._measures.appended(action.records)
                    self._appends.append(action)
                    self._queued.set()
                case Snapshot():
                    self._snapshot = action
                    self._snapshot_queued.set()
                case Own():
                    self._hands[action.worker].holds |= action.shards
                    self._workers.own(action.worker, action.incarnation, action.shards, action.stalls)
                case Overdue():
                    self._workers.overdue(action.worker, action.incarnation, action.shards)
                case Declared():
                    self._begin_anew()
        if self.member.has_left:
            self._workers.left()
        self._ticks.set(min(self._ticks.due, self._tick_due(self._ticks.due)))

    def _begin_anew(self) -> None:
        """Drop everything and join as another node. What workers had begun to commit is refused by Kafka."""
        self.declared += 1
        self._measures.heard_after_death += self.member.revenants
        self._appends.clear()
        self._snapshot = None
        self.member = self._new_member()
        _log.info("node.joins_anew", node=self.member.identity.node)
        drop_by = _now() + self._place.timings.release_timeout_s
        for worker, hand in sorted(self._hands.items()):
            if hand.holds and hand.drop_by is None:
                hand.drop_by = drop_by
                self._workers.own(worker, hand.incarnation, frozenset(), ())
            self._announce(worker)
        if self._is_departing:
            self._do(self.member.drain(_now()))

    def _announce(self, worker: int) -> None:
        hand = self._hands[worker]
        if hand.may_run:
            self._do(self.member.worker_ready(_now(), worker, hand.incarnation))

    def _look_elsewhere(self) -> None:
        node, membership = self.member.identity.node, self.member.membership
        hands = [WorkerId(node, worker, hand.incarnation) for worker, hand in self._hands.items() if hand.may_run]
        if node not in membership.nodes or not membership.workers.keys() >= set(hands):
            return
        elsewhere = frozenset(shard for shard, holder in membership.holders.items() if holder.node != node)
        if elsewhere != self._elsewhere:
            self._elsewhere = elsewhere
            self._workers.elsewhere(elsewhere)

    def view(self) -> MemberView:
        """This node's part as it is now."""
        now, member = _now(), self.member
        ages_s = {node: member.detector.silence_s(now, node) for node in member.membership.nodes}
        ages_s[member.identity.node] = member.detector.unseen_s(now)
        return MemberView(
            identity=member.identity,
            phase=member.phase,
            doubt=member.doubt(now),
            unseen_s=member.detector.unseen_s(now),
            membership=member.membership,
            beat_ages_s={node: age_s for node, age_s in ages_s.items() if age_s is not None},
            beats_sent=self.beats_sent,
            found_dead=self.declared,
            heard_after_death=self._measures.heard_after_death + member.revenants,
        )

    # -- the ways to the log ------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        offset = None
        while True:
            member = self.member
            try:
                page = await self._log.follow(offset)
            except UnavailableError as error:
                self._trouble(error)
                continue
            except PositionLostError as error:
                _log.warning("ledger.read_again", why=str(error))
                member.reread()
                offset = None
                continue
            except CorruptBatchError as error:
                raise RefusedError(f"the pipeline's ledger cannot be read: {error}") from error
            before, actions = member.membership, member.ledger(_now(), page)
            self._measures.ledger(_now(), member.identity.node, before, member.membership)
            self._do(actions)
            self._look_elsewhere()
            # A new life begins with nothing, and only what is read here can bring one.
            offset = page.next_offset if self.member is member else None

    async def _append(self) -> None:
        while True:
            self._queued.clear()
            while self._appends:
                append = self._appends.popleft()
                await self._stored(append.records, append.until)
            await self._queued.wait()

    async def _save(self) -> None:
        """Snapshots have a way of their own: they are large, and nobody waits for them."""
        while True:
            self._snapshot_queued.clear()
            if (snapshot := self._snapshot) is not None:
                self._snapshot = None
                if await self._stored((snapshot.record,), _now() + _SNAPSHOT_WAIT_S):
                    # What was asked for meanwhile was asked for in ignorance of this one.
                    self._snapshot = None
                    await self._deleted(snapshot.record.through + 1)
                continue
            await self._snapshot_queued.wait()

    async def _stored(self, records: Sequence[LedgerRecord], until: float) -> bool:
        """Whether the records could be stored in time.

        What is still true is said again; the others have other means to see that this node is in trouble.
        """
        if _now() >= until:
            return False
        values = [encode(record) for record in records]
        try:
            async with asyncio.timeout_at(until):
                while not await self._tried(partial(self._log.append, values)):
                    pass
        except TimeoutError:
            return False
        return True

    async def _deleted(self, offset: int) -> None:
        try:
            await self._tried(partial(self._log.delete_before, offset))
        except RefusedError as error:
            # A ledger that only grows is slow to read, which is no reason to end a node that works.
            self._undeleted(error)

    async def _tried(self, step: Callable[[], Awaitable[None]]) -> bool:
        try:
            await step()
        except UnavailableError as error:
            self._trouble(error)
            return False
        return True

    def _beat_interval_s(self) -> float:
        interval_s = self._place.timings.beat_interval_s
        return interval_s * _JOINING if self.member.phase == "joining" else interval_s

    def _beat(self, now: float) -> Coroutine[Any, Any, bool] | None:
        if not self.member.may_beat(now):
            return None
        seq = self._seq
        self._seq += 1
        self.beats_sent += 1
        self.member.beat_sent(now, seq)
        return self._tried(partial(self._log.send_beat, encode_beat(self.member.identity.node, seq)))

    async def _listen(self) -> None:
        while True:
            try:
                page = await self._log.read_beats()
            except UnavailableError as error:
                self._trouble(error)
                continue
            beats = [beat for value in page.values if (beat := decode_beat(value)) is not None]
            now = _now()
            self._measures.beats(now, self.member.identity.node, beats)
            if actions := self.member.beats(now, beats, is_behind=page.is_behind):
                self._do(actions)
            self._forestall(now)

    def _forestall(self, now: float) -> None:
        """Do now what is due about now: waking up is most of what a node's membership costs."""
        self._heartbeat.forestall(now)
        if now >= self._ticks.due - self._early_s:
            self._tick_now(now)

    async def _tick(self) -> None:
        try:
            while True:
                self._tick_now(_now())
                await self._ticks.wait()
        finally:
            self._ticks.cancel()

    def _tick_now(self, now: float) -> None:
        if actions := self.member.tick(now, max(0.0, now - self._ticks.due)):
            self._do(actions)
        self._kill_who_does_not_drop(now)
        self._ticks.set(self._tick_due(now + self._place.timings.beat_interval_s))

    def _tick_due(self, at_last: float) -> float:
        """When the next tick is due. What is overdue already is due now: it is the deadline that came late, not us."""
        deadline = self.member.next_deadline()
        return at_last if deadline is None else min(at_last, max(_now(), deadline))

    def _kill_who_does_not_drop(self, now: float) -> None:
        for worker, hand in sorted(self._hands.items()):
            if hand.drop_by is not None and now >= hand.drop_by:
                self._workers.overdue(worker, hand.incarnation, frozenset(hand.holds))


def _now() -> float:
    return asyncio.get_running_loop().time()
