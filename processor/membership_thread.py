"""A node's part in the membership in a thread of its own, for programs whose event loop belongs to their user.

        the user's loop                            the thread
        ───────────────                            ──────────
        EmbeddedNode  ◄── Mailbox: the newest ───  Participation: ledger, beats, verdicts
                      ─── released, departs ────►

Whatever the user's code does to its loop, beats go on. Each side hands its words to the other's loop and never waits
for it. What waits on the way is bounded: of news only the newest count, and a shard is released once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from millstream.processor.errors import MillstreamError
from millstream.processor.event_log import EventLog
from millstream.processor.event_loop import new_event_loop
from millstream.processor.ledger import LeaveRecord, Stalled, encode
from millstream.processor.member import Member
from millstream.processor.membership_log import MembershipLog
from millstream.processor.participation import NodePlace, Participation
from millstream.processor.timings import Timings
from millstream.processor.together import first_error

_log: Final = EventLog(logging.getLogger("millstream.member"))

# The one worker of such a node: it never dies before the node does.
WORKER: Final = 0
INCARNATION: Final = 1
# How long the thread may take to end when its goodbye is said, or was not heard.
_JOIN_S: Final = 3.0
_LOOK_FOR_CALLER_S: Final = 0.5
_LOOK_FOR_END_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Orders:
    """All shards that the worker is to run, at which of their batches workers hung, and the tokens of ownership."""

    shards: frozenset[int]
    stalls: tuple[Stalled, ...] = ()
    tokens: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class News:
    """What the thread has to say since it was asked last. None stands for nothing new.

    `elsewhere` are the shards that other nodes have, `heard` those of them whose nodes were heard of late.
    `has_ended` is the last word; `error` is why, where nobody had told it to end.
    """

    orders: Orders | None = None
    elsewhere: frozenset[int] | None = None
    heard: frozenset[int] | None = None
    has_ended: bool = False
    error: BaseException | None = None


class Mailbox:
    """Carries news from a thread to an event loop that may be slow: one bundle at a time, the newest of each kind.

    Nothing is lost by that: orders are the whole set, and a shard that was asked back is ordered again only after it
    was released.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._news: News | None = None
        self._arrived = asyncio.Event()

    def put(self, **changes: object) -> None:
        """Add to the news; from any thread. A loop that is closed hears nothing more."""
        with self._lock:
            is_first = self._news is None
            self._news = replace(self._news or News(), **changes)  # type: ignore[arg-type]
        if is_first:
            _call(self._loop, self._arrived.set)

    async def take(self) -> News:
        """The news, as soon as there are some."""
        await self._arrived.wait()
        with self._lock:
            self._arrived.clear()
            news, self._news = self._news, None
        return news or News()

    @property
    def is_closed(self) -> bool:
        """Whether nobody will ever take anything again."""
        return self._loop.is_closed()


class MembershipThread:
    """Takes part as a node with one worker, from `start` to `end`. All methods are for the loop that `start` is called
    in, except those of `participation.Workers`, which the thread itself calls."""

    def __init__(self, place: NodePlace, log_of: Callable[[], MembershipLog]) -> None:
        self._place = place
        self._log_of = log_of
        self._mailbox: Mailbox | None = None
        self._has_ended = False
        # Until the thread's loop runs, what it is told waits here.
        self._lock = threading.Lock()
        self._early: list[Callable[[], None]] | None = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._part: Participation | None = None
        self._stopped = asyncio.Event()
        self._goodbye_s = 0.0
        # A daemon, so that a program which forgets its loop can end all the same.
        self._thread = threading.Thread(target=self._run, name="millstream-node", daemon=True)

    # -- for the user's loop ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part, with a worker that is ready."""
        self._mailbox = Mailbox(asyncio.get_running_loop())
        self._thread.start()

    async def news(self) -> News:
        """What the membership has to say, as soon as there is something."""
        assert self._mailbox is not None
        news = await self._mailbox.take()
        self._has_ended |= news.has_ended
        return news

    def released(self, shard: int) -> None:
        """The worker has let go of a shard."""
        self._tell(lambda part: part.shard_released(WORKER, shard))

    def depart(self) -> None:
        """Want no shards any more."""
        self._tell(lambda part: part.depart())

    def ask_who_is_heard(self) -> None:
        """Have `heard` come with the news."""
        self._tell(self._look_around)

    def stop(self, *, goodbye_s: float) -> None:
        """End: nothing runs any more. The goodbye may take so many seconds. Does not wait for any of that."""
        self._goodbye_s = goodbye_s
        self._tell(lambda _: self._stopped.set())

    async def end(self, *, goodbye_s: float) -> None:
        """`stop`, and wait until the thread is gone. One that does not end in time is left behind with a warning."""
        self.stop(goodbye_s=goodbye_s)
        try:
            async with asyncio.timeout(goodbye_s + _JOIN_S):
                while not self._has_ended:
                    await self.news()
                # That was its last word. What is left takes no time, but it can stand still like any other.
                while self._thread.is_alive():  # noqa: ASYNC110 - no event tells of a thread's end
                    await asyncio.sleep(_LOOK_FOR_END_S)
        except TimeoutError:
            _log.warning("thread.left_behind", thread=self._thread.name, waited_s=goodbye_s + _JOIN_S)

    def _tell(self, words: Callable[[Participation], None]) -> None:
        with self._lock:
            if self._early is not None:
                self._early.append(lambda: self._heed(words))
                return
        assert self._loop is not None
        _call(self._loop, lambda: self._heed(words))

    # -- in the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._take_part())
        except BaseExceptionGroup as group:
            error = first_error(group)
        except BaseException as raised:
            error = raised
        self._put(has_ended=True, error=error)

    async def _take_part(self) -> None:
        log = self._log_of()
        part = self._part = Participation(self._place, log, self)
        with self._lock:
            self._loop = asyncio.get_running_loop()
            early, self._early = self._early or [], None
        part.worker_ready(WORKER, INCARNATION)
        for heed in early:
            heed()
        company = [asyncio.create_task(work) for work in (self._stopped.wait(), self._caller_is_gone())]
        running = asyncio.create_task(part.run())
        try:
            await asyncio.wait({running, *company}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                part.depart()
                await _say_goodbye(log, part, self._goodbye_s)
        finally:
            for task in (running, *company):
                task.cancel()
            await asyncio.wait({running, *company})
        if not running.cancelled():
            running.result()

    async def _caller_is_gone(self) -> None:
        """A loop that is closed runs no shards, and whoever closed it may not have told us."""
        assert self._mailbox is not None
        while not self._mailbox.is_closed:  # noqa: ASYNC110 - no event tells of a loop's end
            await asyncio.sleep(_LOOK_FOR_CALLER_S)

    def _heed(self, words: Callable[[Participation], None]) -> None:
        assert self._part is not None
        words(self._part)

    def _look_around(self, part: Participation) -> None:
        self._put(heard=_heard_elsewhere(part.member, self._place.timings, asyncio.get_running_loop().time()))

    def _put(self, **changes: object) -> None:
        assert self._mailbox is not None
        self._mailbox.put(**changes)

    def own(self, worker: int, incarnation: int, shards: frozenset[int], stalls: Collection[Stalled]) -> None:
        """The worker is to run these shards and no others."""
        del worker, incarnation
        assert self._part is not None
        self._put(orders=Orders(shards, tuple(stalls), self._part.tokens(shards)))

    def overdue(self, worker: int, incarnation: int, shards: Collection[int]) -> None:
        """The worker has not let go of these shards in time. The others will take them, and Kafka sees to the rest."""
        del worker, incarnation
        _log.warning("shards.not_released", shards=sorted(shards), why="the event loop of this program is held up")

    def elsewhere(self, shards: frozenset[int]) -> None:
        """These shards are run by other nodes now."""
        self._put(elsewhere=shards, heard=None)

    def left(self) -> None:
        """The ledger has the node's goodbye, and `stop` will find that there is no more to say."""


def _heard_elsewhere(member: Member, timings: Timings, now: float) -> frozenset[int]:
    """The shards of other nodes that were heard since this one listens, and lately."""
    holders = member.membership.holders
    heard = {
        node
        for node in {by.node for by in holders.values()}
        if member.detector.has_heard(node) and (member.detector.silence_s(now, node) or 0.0) < timings.silence_min_s
    }
    return frozenset(shard for shard, by in holders.items() if by.node in heard)


async def _say_goodbye(log: MembershipLog, part: Participation, within_s: float) -> None:
    """Whatever the ledger has the node hold is free as soon as it has the goodbye."""
    if part.member.phase in ("left", "declared") or not part.beats_sent:
        return
    try:
        async with asyncio.timeout(within_s):
            await log.append([encode(LeaveRecord(part.member.identity.node))])
    except (TimeoutError, MillstreamError) as error:
        _log.warning("node.left_without_goodbye", node=part.member.identity.node, why=str(error) or "nobody answered")


def _call(loop: asyncio.AbstractEventLoop, words: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(words)
    except RuntimeError:
        # It is closed, and there is nobody to tell.
        pass
