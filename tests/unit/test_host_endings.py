"""A host ends: in order, in time, with the error that decides, or at once; and nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest
from engine_bench import until
from host_world import World
from memory_broker import MemoryBroker
from trouble import COMMIT_STEPS
from virtual_time import simulated

from millstream.processor.errors import (
    InvariantError,
    MillstreamError,
    RefusedError,
    StageError,
)
from millstream.processor.host import RunOptions
from millstream.processor.shard_host import ShardReleased


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
async def test_stop_does_not_wait_for_shards_that_an_error_ends_meanwhile() -> None:
    world = World()
    world.send(50)
    reached = world.log.trouble.hold("end")
    task = asyncio.create_task(world.serve())
    await reached.wait()
    await until(lambda: len(world.events) == 4)
    world.log.trouble.fail("end", RefusedError("no authorization any more"))
    world.log.trouble.let_go("end")
    async with asyncio.timeout(5):
        await world.host.stop(60)
    with pytest.raises(RefusedError, match="any more"):
        await task
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
