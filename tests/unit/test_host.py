"""A host runs the shards that it is told to run, lets go of them in order, and never ends without a word."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from engine_bench import numbered, until
from memory_broker import MemoryBroker
from memory_log import COMMIT_STEPS, MemoryLog
from virtual_time import simulated

from millstream.processor import Pipeline
from millstream.processor.errors import (
    InvariantError,
    MillstreamError,
    OutcomeUnknownError,
    PipelineError,
    RefusedError,
    StageError,
    UnavailableError,
)
from millstream.processor.host import Host, RunOptions
from millstream.processor.shard_host import HostEvent, ShardReleased, ShardRestarted, ShardStarted


async def same(value: bytes) -> bytes:
    return value


class World:
    """A pipeline that copies `in` to `out` through a function, and its host."""

    def __init__(
        self,
        partitions: int = 4,
        *,
        function: Callable[[bytes], Awaitable[bytes]] = same,
        options: RunOptions | None = None,
        broker: MemoryBroker | None = None,
        **settings: Any,
    ) -> None:
        self.broker = broker or MemoryBroker()
        self.broker.create("in", partitions)
        self.broker.create("out", partitions)
        self.log = MemoryLog(self.broker, "p")
        pipeline = Pipeline("p", **settings)
        pipeline.read("in").map(function).write("out")
        # As many shards as partitions, unless a test says otherwise.
        self.host = Host(pipeline.build(), self.log, replace(options or RunOptions(), workers=partitions))
        self.events: list[HostEvent] = []

    async def serve(self, *shards: int) -> None:
        """From the preparation to the end, with all shards or these."""
        prepared = await self.host.prepare()
        self.host.assign(frozenset(shards or range(prepared.shards)))
        await self.host.serve(self.events.append)

    @contextlib.asynccontextmanager
    async def serving(self, *shards: int) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self.serve(*shards))
        try:
            yield task
        finally:
            if not task.done():
                await self.host.stop(5)
            await task

    def send(self, count: int, prefix: str = "") -> list[bytes]:
        """So many records in each partition; all of them."""
        sent = []
        for partition in range(len(self.broker.topics["in"].partitions)):
            values = numbered(count, f"{prefix}{partition}-")
            self.broker.send("in", partition, values)
            sent += values
        return sent

    @property
    def written(self) -> list[bytes]:
        return sorted(value or b"" for value in self.broker.values("out"))

    @property
    def offsets(self) -> dict[int, int]:
        return self.broker.committed("p", "in")

    def is_done(self, sent: list[bytes]) -> bool:
        return len(self.broker.values("out")) >= len(sent)

    def check_ended(self) -> None:
        assert self.log.closed
        assert self.log.open_feeds == 0


@simulated
async def test_it_says_what_it_prepared() -> None:
    world = World(partitions=3)
    prepared = await world.host.prepare()
    assert (prepared.pipeline, prepared.shards) == ("p", 3)


@pytest.mark.parametrize(
    ("step", "waits_for"), [("connect", "a broker that answers"), ("topics", "its topics and ledger")]
)
@simulated
async def test_while_it_prepares_it_says_what_it_waits_for(step: str, waits_for: str) -> None:
    world = World()
    reached = world.log.trouble.hold(step)
    preparing = asyncio.create_task(world.host.prepare())
    await reached.wait()
    assert world.host.measures().waits_for == waits_for
    world.log.trouble.let_go(step)
    await preparing
    assert world.host.measures().waits_for is None


@simulated
async def test_its_measures_outlive_the_shards_that_made_them() -> None:
    world = World(partitions=2)
    sent = world.send(5)
    async with world.serving():
        await until(lambda: world.host.counts().records_in == len(sent))
        running = world.host.measures()
        assert [(report.shard, report.state, report.lag) for report in running.shards] == [
            (0, "running", [0]),
            (1, "running", [0]),
        ]
        assert running.topics == ["in"]
    ended = world.host.measures()
    assert ended.shards == []
    assert ended.tally.transactions["committed"] == sum(ended.tally.commit_s.counts) >= 2
    assert ended.tally.batches >= 2


@pytest.mark.parametrize("step", ["connect", "topics", "append-ledger"])
@simulated
async def test_a_preparation_that_fails_or_is_cancelled_closes_the_log(step: str) -> None:
    world = World()
    world.log.trouble.fail(step, UnavailableError("no broker"))
    with pytest.raises(UnavailableError):
        await world.host.prepare()
    assert world.log.closed
    world = World()
    reached = world.log.trouble.hold(step)
    preparing = asyncio.create_task(world.host.prepare())
    await reached.wait()
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    assert world.log.closed


@simulated
async def test_all_that_comes_in_goes_out_once_until_it_is_stopped() -> None:
    world = World()
    async with world.serving():
        sent = world.send(30)
        await until(lambda: world.is_done(sent))
        sent += world.send(30, "more")
        await until(lambda: world.is_done(sent))
    assert world.written == sorted(sent)
    assert world.host.counts().records_in == world.host.counts().records_out == len(sent)
    assert world.events[:4] == [*map(ShardStarted, range(4))]
    assert sorted(world.events[4:], key=lambda event: event.shard) == [*map(ShardReleased, range(4))]
    world.check_ended()


@simulated
async def test_a_run_with_an_end_ends_when_all_of_its_shards_have_and_says_so() -> None:
    world = World(options=RunOptions(until_caught_up=True))
    sent = world.send(30)
    await world.serve()
    assert world.written == sorted(sent)
    assert world.events.count(ShardReleased(3)) == 1
    world.check_ended()


@simulated
async def test_a_run_with_an_end_ends_with_more_shards_than_partitions() -> None:
    world = World(partitions=2, shards=5, options=RunOptions(until_caught_up=True))
    sent = world.send(10)
    await world.serve()
    assert world.written == sorted(sent)


@simulated
async def test_more_shards_than_partitions_wait_in_peace_and_stop_at_once() -> None:
    world = World(partitions=1, shards=4)
    async with world.serving() as task:
        sent = world.send(10)
        await until(lambda: world.is_done(sent))
        await asyncio.sleep(3600)
        assert not task.done()
    assert not any(isinstance(event, ShardRestarted) for event in world.events)


@simulated
async def test_without_shards_it_waits_for_some() -> None:
    world = World(options=RunOptions(until_caught_up=True))
    sent = world.send(5)
    await world.host.prepare()
    serving = asyncio.create_task(world.host.serve(world.events.append))
    await asyncio.sleep(60)
    assert not serving.done()
    world.host.assign(frozenset(range(4)))
    await serving
    assert world.written == sorted(sent)


@simulated
async def test_a_shard_that_is_not_named_any_more_is_committed_and_released_and_another_host_takes_it() -> None:
    broker = MemoryBroker()
    hosts = World(broker=broker), World(broker=broker)
    sent: list[bytes] = []
    async with asyncio.TaskGroup() as tasks:
        for host in hosts:
            await host.host.prepare()
            tasks.create_task(host.host.serve(host.events.append))
        for turn in range(8):
            owner = hosts[turn % 2]
            owner.events.clear()
            owner.host.assign(frozenset(range(4)))
            sent += owner.send(20, f"{turn}-")
            await asyncio.sleep(0.01 * turn)
            owner.host.assign(frozenset())
            # Also those that were never begun are told to be released: somebody waits for that.
            await until(lambda owner=owner: {ShardReleased(shard) for shard in range(4)} <= set(owner.events))
        owner.host.assign(frozenset(range(4)))
        await until(lambda: owner.is_done(sent))
        for host in hosts:
            await host.host.stop(5)
    assert owner.written == sorted(sent)


@simulated
async def test_naming_a_shard_again_before_its_release_is_reported_starts_it_again_after() -> None:
    world = World(partitions=1)
    async with world.serving():
        world.send(5)
        await until(lambda: world.offsets == {0: 5})
        world.host.assign(frozenset())
        world.host.assign(frozenset({0}))
        sent = world.send(5, "more")
        await until(lambda: world.offsets == {0: 10})
    assert set(sent) <= set(world.written)
    assert world.events == [ShardStarted(0), ShardReleased(0)] * 2


@pytest.mark.parametrize("step", ["", "fetch", "fence", "read-ledger", "committed", *COMMIT_STEPS])
@simulated
async def test_stop_commits_what_is_in_hand_wherever_the_shards_are(step: str) -> None:
    world = World()
    sent = world.send(50)
    task = asyncio.create_task(world.serve())
    await until(lambda: len(world.events) == 4)
    if step in COMMIT_STEPS:
        await until(lambda: len(world.offsets) == 4)
    if step:
        reached = world.log.trouble.hold(step)
        await reached.wait()
        asyncio.get_running_loop().call_later(1, world.log.trouble.let_go, step)
    await world.host.stop(5)
    await task
    assert len(world.written) == sum(world.offsets.values()) == world.host.counts().records_in
    assert set(world.written) <= set(sent)
    assert world.broker.open_transactions == 0
    assert world.events[-4:] == [ShardReleased(event.shard) for event in world.events[-4:]]
    world.check_ended()


@simulated
async def test_stop_before_it_serves_and_before_anything_is_assigned() -> None:
    world = World()
    await world.host.prepare()
    await world.host.stop(5)
    await world.host.serve(world.events.append)
    assert world.events == []
    world.check_ended()


@simulated
async def test_what_does_not_drain_in_time_is_told_by_its_shards() -> None:
    entered = asyncio.Event()

    async def never(value: bytes) -> bytes:
        entered.set()
        await asyncio.Event().wait()
        return value

    world = World(function=never)
    world.broker.send("in", 2, [b"x"])
    task = asyncio.create_task(world.serve())
    await entered.wait()
    with pytest.raises(MillstreamError, match=r"shards \[2\] did not drain within 5 s"):
        await world.host.stop(5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.written == []
    world.check_ended()


@simulated
async def test_the_error_of_one_shard_ends_all_and_is_raised_alone() -> None:
    async def picky(value: bytes) -> bytes:
        if value == b"2-0007":
            raise ValueError("no sevens")
        return value

    world = World(function=picky)
    world.send(30)
    with pytest.raises(StageError, match=r"in-2@7"):
        await world.serve()
    assert sum(world.offsets.values()) == len(world.written)
    world.check_ended()


@simulated
async def test_shards_that_are_assigned_while_it_ends_with_an_error_are_not_started() -> None:
    world = World()
    world.log.trouble.fail("fence", RefusedError("no authorization"))
    prepared = await world.host.prepare()
    world.host.assign(frozenset({0}))
    serving = asyncio.create_task(world.host.serve(world.events.append))
    for turn in range(100):
        world.host.assign(frozenset(range(turn % prepared.shards + 1)))
        await asyncio.sleep(0.0001)
    with pytest.raises(RefusedError, match="no authorization"):
        await serving
    world.check_ended()


@simulated
async def test_a_log_that_fails_ends_it_and_a_log_that_is_cancelled_from_elsewhere_too() -> None:
    for error, raised in ((RefusedError("no"), RefusedError), (asyncio.CancelledError(), InvariantError)):
        world = World()
        world.log.trouble.fail("fetch", error)
        with pytest.raises(raised):
            await world.serve()
        world.check_ended()


@simulated
async def test_a_function_that_awaits_something_cancelled_does_not_hang_it() -> None:
    async def impatient(value: bytes) -> bytes:
        raise asyncio.CancelledError

    world = World(function=impatient)
    world.send(1)
    with pytest.raises(StageError):
        await world.serve()


@simulated
async def test_restarts_are_reported_with_their_reason() -> None:
    world = World(partitions=1)
    async with world.serving():
        await until(lambda: world.offsets == {0: 0})
        world.log.trouble.fail("end", OutcomeUnknownError("nobody answered"), after=True)
        sent = world.send(10)
        await until(lambda: world.is_done(sent))
    assert world.events[1] == ShardRestarted(0, "OutcomeUnknownError: nobody answered")
    assert world.written == sorted(sent)


@simulated
async def test_partitions_that_are_added_are_noticed_and_read_from_their_beginning() -> None:
    world = World(partitions=2)
    async with world.serving():
        sent = world.send(10)
        await until(lambda: world.is_done(sent))
        world.broker.add_partitions("in", 5)
        for partition in range(2, 5):
            world.broker.send("in", partition, numbered(5, f"added{partition}"))
            sent += numbered(5, f"added{partition}")
        await until(lambda: world.is_done(sent))
    assert world.written == sorted(sent)


@simulated
async def test_a_watch_for_partitions_does_not_disturb_a_beginning_that_takes_long() -> None:
    world = World(partitions=1)
    world.log.trouble.latency_s = lambda: 0.9
    async with world.serving():
        sent = world.send(3)
        async with asyncio.timeout(40):
            await until(lambda: world.is_done(sent))
        world.log.trouble.latency_s = lambda: 0.001
    assert world.log.journal.count((0, "fence")) == 1


@simulated
async def test_outputs_are_handed_over_when_they_are_committed() -> None:
    handed: list[bytes] = []
    options = RunOptions(
        until_caught_up=True,
        on_outputs=lambda outputs: handed.extend(v or b"" for out in outputs for v in out.value.to_list()),
    )
    world = World(options=options)
    sent = world.send(30)
    world.log.trouble.fail("end", OutcomeUnknownError("o"), times=3)
    await world.serve()
    assert sorted(handed) == world.written == sorted(sent)


@simulated
async def test_lag_falls_to_zero() -> None:
    may_go = asyncio.Event()

    async def held_up(value: bytes) -> bytes:
        await may_go.wait()
        return value

    world = World(function=held_up)
    async with world.serving():
        world.send(100)
        await asyncio.sleep(1)
        assert world.host.lag > 300
        may_go.set()
        await until(lambda: sum(world.offsets.values()) == 400)
        assert world.host.lag == 0


@simulated
async def test_what_the_ledger_fixed_differently_is_told_before_anything_runs() -> None:
    broker = MemoryBroker()
    await World(broker=broker, shards=2).host.prepare()
    with pytest.raises(PipelineError, match="shards=3"):
        await World(broker=broker, shards=3).host.prepare()


@simulated
async def test_cancelling_at_every_moment_ends_it_and_the_next_host_goes_on_exactly() -> None:
    for tenth_ms in range(0, 800, 13):
        broker = MemoryBroker()
        world = World(broker=broker)
        sent = world.send(20)
        task = asyncio.create_task(world.serve())
        await asyncio.sleep(tenth_ms / 10_000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        world.check_ended()
        after = World(broker=broker, options=RunOptions(until_caught_up=True))
        await after.serve()
        assert after.written == sorted(sent)
