"""A node in a user's program: what its thread and the user's event loop say to each other, and that neither hangs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from memory_membership import MemoryMembership, MemoryMembershipLog

from millstream.processor.counts import Counts
from millstream.processor.embedded_node import EmbeddedNode, RunEnd
from millstream.processor.errors import MillstreamError, RefusedError, StageError
from millstream.processor.ledger import CreatedRecord, DeadRecord, JoinRecord, LeaveRecord, LedgerRecord, decode, encode
from millstream.processor.measures import Measures
from millstream.processor.membership_log import MembershipLog
from millstream.processor.membership_thread import Mailbox, MembershipThread, News, Orders
from millstream.processor.participation import NodePlace
from millstream.processor.shard_host import HostEvent, Prepared, ShardReleased
from millstream.processor.stage_page import StagePage
from millstream.processor.stalled import Stalled

SHARDS = 3
PATIENCE_S = 20.0


class FakeHost:
    """Runs what it is assigned by doing nothing, and lets go at once."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.tokens: dict[int, int] = {}
        self.error: Exception | None = None
        self._report: Callable[[HostEvent], None] = lambda _: None
        self._ended = asyncio.Event()
        self._changed = asyncio.Event()

    async def prepare(self) -> Prepared:
        return Prepared("p", SHARDS)

    async def serve(self, report: Callable[[HostEvent], None], page: StagePage | None = None) -> None:
        del page
        self._report = report
        await self._ended.wait()
        if self.error is not None:
            raise self.error

    def assign(
        self, shards: frozenset[int], stalls: Sequence[Stalled] = (), tokens: Mapping[int, int] | None = None
    ) -> None:
        del stalls
        self.tokens = dict(tokens or {})
        let_go = self.running - shards
        self.running = set(shards)
        self._changed.set()
        for shard in sorted(let_go):
            self._report(ShardReleased(shard))

    async def stop(self, timeout_s: float) -> None:
        del timeout_s
        self.assign(frozenset())
        self._ended.set()

    def counts(self) -> Counts:
        return Counts()

    def measures(self) -> Measures:
        return Measures()

    def finish(self, shard: int) -> None:
        """The shard comes to the end of the run."""
        self.running.discard(shard)
        self._report(ShardReleased(shard))

    def fail(self, error: Exception) -> None:
        self.error = error
        self._ended.set()

    async def runs(self, shards: int) -> None:
        """Wait until it runs so many."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.running) != shards:
                self._changed.clear()
                await self._changed.wait()


@dataclass
class World:
    """One node on a ledger of its own. Only the node's thread touches the ledger while that runs."""

    shared: MemoryMembership = field(default_factory=MemoryMembership)
    logs: list[MemoryMembershipLog] = field(default_factory=list)
    trouble: Callable[[MemoryMembershipLog], object] = lambda _: None
    threads: list[MembershipThread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shared.store([encode(CreatedRecord(SHARDS))])

    def log(self) -> MembershipLog:
        log = self.shared.log()
        self.trouble(log)
        self.logs.append(log)
        return log

    def node(self, host: FakeHost, end: RunEnd | None = None) -> EmbeddedNode:
        thread = MembershipThread(NodePlace(name="here"), self.log)
        self.threads.append(thread)
        return EmbeddedNode(host, SHARDS, thread, end or RunEnd())

    def in_thread(self, act: Callable[[], object]) -> None:
        loop = self.threads[-1]._loop
        assert loop is not None
        loop.call_soon_threadsafe(act)

    @property
    def records(self) -> list[LedgerRecord]:
        return [decode(entry.value) for entry in self.shared.entries]

    def said(self, kind: type) -> int:
        return sum(isinstance(record, kind) for record in self.records)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "millstream-node"] == []


@dataclass
class Running:
    world: World
    host: FakeHost
    task: asyncio.Task[None]


async def started(end: RunEnd | None = None, world: World | None = None) -> Running:
    """A node that has all shards."""
    world, host = world or World(), FakeHost()
    task = asyncio.create_task(world.node(host, end).run())
    await host.runs(SHARDS)
    return Running(world, host, task)


async def within(seconds: float, work: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> None:
    async with asyncio.timeout(seconds):
        await work


async def test_a_node_alone_gets_all_shards_and_says_goodbye_at_its_end() -> None:
    running = await started(RunEnd(deadline=asyncio.get_running_loop().time() + 0.3))
    await within(PATIENCE_S, running.task)
    assert running.world.said(JoinRecord) == 1
    assert running.world.said(LeaveRecord) >= 1
    assert running.world.logs[0].is_cut, "the way to the ledger is closed"


async def test_a_run_with_an_end_ends_when_all_shards_have_come_to_theirs() -> None:
    running = await started(RunEnd(caught_up=True))
    for shard in range(SHARDS - 1):
        running.host.finish(shard)
    await asyncio.sleep(0.1)
    assert not running.task.done()
    running.host.finish(SHARDS - 1)
    await within(PATIENCE_S, running.task)


async def test_a_cancelled_run_says_goodbye_too() -> None:
    running = await started()
    running.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(PATIENCE_S, running.task)
    assert running.world.said(LeaveRecord) == 1


async def test_a_ledger_that_does_not_answer_does_not_hold_up_a_cancellation() -> None:
    running = await started()
    holding = asyncio.Event()
    running.world.in_thread(lambda: (running.world.logs[0].trouble.hold("append"), holding.set()))
    running.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(PATIENCE_S, running.task)
    assert running.world.said(LeaveRecord) == 0


async def test_a_node_that_never_reached_the_ledger_ends_at_once() -> None:
    world, host = World(trouble=lambda log: log.trouble.hold("connect")), FakeHost()
    task = asyncio.create_task(world.node(host).run())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(PATIENCE_S, task)
    assert world.said(LeaveRecord) == 0


async def test_what_ends_the_thread_ends_the_run() -> None:
    refusal = RefusedError("the broker refuses user 'bob'")
    world = World(trouble=lambda log: log.trouble.fail("connect", refusal))
    with pytest.raises(RefusedError, match="bob"):
        await within(PATIENCE_S, world.node(FakeHost()).run())


async def test_a_defect_in_the_thread_is_raised_too() -> None:
    def no_log() -> MembershipLog:
        raise ZeroDivisionError

    thread = MembershipThread(NodePlace(name="here"), no_log)
    with pytest.raises(ZeroDivisionError):
        await within(PATIENCE_S, EmbeddedNode(FakeHost(), SHARDS, thread, RunEnd()).run())


async def test_what_ends_the_host_ends_the_thread() -> None:
    running = await started()
    running.host.fail(StageError("stage 'score' failed"))
    with pytest.raises(StageError, match="score"):
        await within(PATIENCE_S, running.task)
    assert running.world.said(LeaveRecord) == 1


async def test_beats_go_on_while_the_users_code_holds_up_its_loop() -> None:
    running = await started()
    before = len(running.world.shared.beats)
    time.sleep(0.5)  # noqa: ASYNC251 - what this is about
    assert len(running.world.shared.beats) >= before + 4
    running.task.cancel()
    await asyncio.wait({running.task})


async def test_a_node_that_was_found_dead_drops_everything_and_joins_anew() -> None:
    running = await started()
    world = running.world
    part = world.threads[0]._part
    assert part is not None
    first = part.member.identity.node
    said = [JoinRecord("other-1", "other", "", [], 0), DeadRecord(first, "other-1", 400.0, 300.0, 9)]
    world.in_thread(lambda: world.shared.store([encode(record) for record in said]))
    before = running.host.tokens
    await running.host.runs(0)
    await running.host.runs(SHARDS)
    assert all(token > before[shard] for shard, token in running.host.tokens.items()), "another ownership"
    assert part.member.identity.node != first
    running.task.cancel()
    await asyncio.wait({running.task})
    assert world.said(JoinRecord) == 3


def test_a_loop_that_is_closed_without_a_word_ends_the_thread() -> None:
    """As a program does that was interrupted in the middle."""
    world = World()
    thread = MembershipThread(NodePlace(name="here"), world.log)

    async def start() -> None:
        thread.start()
        while (await thread.news()).orders is None:
            pass

    loop = asyncio.new_event_loop()
    loop.run_until_complete(start())
    loop.close()
    thread._thread.join(PATIENCE_S)
    assert not thread._thread.is_alive()


class StuckThread(MembershipThread):
    """Stands still before its first word (while its log is made), or after its last one."""

    def __init__(self, world: World, where: str) -> None:
        self.goes_on = threading.Event()
        self._where = where
        super().__init__(NodePlace(name="here"), partial(self._made, world))

    def _made(self, world: World) -> MembershipLog:
        if self._where == "first":
            self.goes_on.wait()
        return world.log()

    def _run(self) -> None:
        super()._run()
        if self._where == "last":
            self.goes_on.wait()


@pytest.mark.parametrize("where", ["first", "last"])
async def test_a_thread_that_stands_still_does_not_keep_an_interrupted_program(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    thread = StuckThread(World(), where)
    task = asyncio.create_task(EmbeddedNode(FakeHost(), SHARDS, thread, RunEnd()).run())
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(PATIENCE_S, task)
    assert thread._thread.is_alive()
    assert "thread.left_behind" in caplog.text
    thread.goes_on.set()
    thread._thread.join(PATIENCE_S)
    assert not thread._thread.is_alive()


# -- what the two sides say, word by word -------------------------------------------------------------------------


class FakeThread:
    """A membership that says what a test says."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._asked = asyncio.Event()
        self._news: asyncio.Queue[News] = asyncio.Queue()

    def start(self) -> None:
        pass

    async def news(self) -> News:
        news = await self._news.get()
        # What waits in `tell` comes behind whoever heeds this.
        asyncio.get_running_loop().call_soon(self._news.task_done)
        return news

    async def tell(self, news: News) -> None:
        self._news.put_nowait(news)
        await self._news.join()

    def released(self, shard: int) -> None:
        self.said.append(f"released {shard}")

    def depart(self) -> None:
        self.said.append("depart")

    def ask_who_is_heard(self) -> None:
        self.said.append("who is heard")
        self._asked.set()

    async def asked(self) -> None:
        """Wait until it was asked who is heard, since the last time."""
        async with asyncio.timeout(PATIENCE_S):
            await self._asked.wait()
        self._asked.clear()

    def stop(self, *, goodbye_s: float) -> None:
        self.said.append(f"stop within {goodbye_s:g} s")

    async def end(self, *, goodbye_s: float) -> None:
        self.said.append(f"end within {goodbye_s:g} s")


@dataclass
class Alone:
    thread: FakeThread
    host: FakeHost
    task: asyncio.Task[None]

    async def orders(self, *shards: int) -> None:
        await self.thread.tell(News(orders=Orders(frozenset(shards))))


async def alone(end: RunEnd) -> Alone:
    thread, host = FakeThread(), FakeHost()
    task = asyncio.create_task(EmbeddedNode(host, SHARDS, thread, end).run())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    return Alone(thread, host, task)


async def test_a_shard_at_its_end_stays_here_until_another_is_to_have_it() -> None:
    it = await alone(RunEnd(caught_up=True))
    await it.orders(0, 1)
    it.host.finish(0)
    assert it.thread.said == []
    await it.orders(1)
    assert it.thread.said == ["released 0"]
    await it.orders()
    assert it.thread.said == ["released 0", "released 1"]
    it.task.cancel()
    await asyncio.wait({it.task})


async def test_with_other_nodes_a_run_ends_when_those_that_have_the_rest_are_heard() -> None:
    it = await alone(RunEnd(caught_up=True))
    await it.orders(0)
    await it.thread.tell(News(elsewhere=frozenset({1, 2})))
    it.host.finish(0)
    await it.thread.asked()
    await it.thread.tell(News(heard=frozenset({1})))
    await it.thread.asked()
    assert not it.task.done(), "whoever has shard 2 may be dead"
    await it.thread.tell(News(elsewhere=frozenset({1})))
    await it.orders(0, 2)
    it.host.finish(2)
    await it.thread.asked()
    await it.thread.tell(News(heard=frozenset({1})))
    await within(PATIENCE_S, it.task)
    assert "depart" in it.thread.said
    assert it.thread.said[-1] == "end within 2 s"


async def test_a_node_that_is_given_no_shard_ends_when_all_are_with_nodes_that_are_heard() -> None:
    it = await alone(RunEnd(caught_up=True))
    await asyncio.sleep(0.05)
    assert not it.task.done(), "nothing is known yet"
    await it.thread.tell(News(elsewhere=frozenset(range(SHARDS))))
    await it.thread.asked()
    await it.thread.tell(News(heard=frozenset(range(SHARDS))))
    await within(PATIENCE_S, it.task)


async def test_of_news_that_wait_the_newest_of_each_kind_count() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    mailbox.put(orders=Orders(frozenset({1})), elsewhere=frozenset({2}))
    mailbox.put(orders=Orders(frozenset({3})))
    mailbox.put(error=MillstreamError("late"))
    news = await mailbox.take()
    assert (news.orders, news.elsewhere) == (Orders(frozenset({3})), frozenset({2}))
    assert str(news.error) == "late"
    with pytest.raises(TimeoutError):
        await within(0.02, mailbox.take())


def test_a_closed_loop_hears_nothing_and_whoever_speaks_does_not_mind() -> None:
    loop = asyncio.new_event_loop()
    mailbox = Mailbox(loop)
    loop.close()
    mailbox.put(has_ended=True)
    assert mailbox.is_closed
