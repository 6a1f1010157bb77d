"""A host runs the shards that it is told to run, lets go of them in order, and never ends without a word."""

from __future__ import annotations

import asyncio

import pytest
from engine_bench import numbered, until
from host_world import World
from memory_broker import MemoryBroker
from virtual_time import simulated

from millstream.processor.errors import (
    OutcomeUnknownError,
    PipelineError,
    UnavailableError,
)
from millstream.processor.host import RunOptions
from millstream.processor.shard_host import ShardCommitted, ShardReleased, ShardRestarted, ShardStarted


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
    # Each says once that its output goes on, however often it commits.
    assert sorted(world.events[4:8], key=lambda event: event.shard) == [*map(ShardCommitted, range(4))]
    assert sorted(world.events[8:], key=lambda event: event.shard) == [*map(ShardReleased, range(4))]
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
    assert world.events == [ShardStarted(0), ShardCommitted(0), ShardReleased(0)] * 2


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
        assert lag_of(world) > 300
        may_go.set()
        await until(lambda: lag_of(world) == 0)
        assert sum(world.offsets.values()) == 400


def lag_of(world: World) -> int:
    return sum(lag for report in world.host.measures().shards for lag in report.lag)


@simulated
async def test_what_the_ledger_fixed_differently_is_told_before_anything_runs() -> None:
    broker = MemoryBroker()
    await World(broker=broker, shards=2).host.prepare()
    with pytest.raises(PipelineError, match="shards=3"):
        await World(broker=broker, shards=3).host.prepare()
