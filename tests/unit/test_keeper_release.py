"""A shard's keeper is told to end, in order or at once: it does, wherever it waits, and whatever fails just then."""

from __future__ import annotations

import asyncio

import pytest
from engine_bench import until
from keeper_world import BEFORE_A_RUN, World
from trouble import COMMIT_STEPS
from virtual_time import simulated

from millstream.processor.errors import (
    FencedError,
    UnavailableError,
)


@pytest.mark.parametrize("step", BEFORE_A_RUN)
@simulated
async def test_release_before_a_run_returns_at_once_wherever_it_waits(step: str) -> None:
    world = World()
    world.send(10)
    task = asyncio.create_task(world.keep())
    if step in ("append-ledger", "read-ledger"):
        # Preparation takes this step too.
        await until(lambda: world.keeper is not None)
    reached = world.log.trouble.hold(step)
    await reached.wait()
    world.call("release")
    world.call("release")
    await task
    assert world.written == []
    world.check_dropped()


@pytest.mark.parametrize("step", COMMIT_STEPS)
@simulated
async def test_release_during_a_run_waits_for_the_commit_in_hand(step: str) -> None:
    world = World()
    world.send(10)
    task = asyncio.create_task(world.keep())
    await until(lambda: 0 in world.offsets)
    reached = world.log.trouble.hold(step)
    await reached.wait()
    world.call("release")
    await asyncio.sleep(1)
    assert not task.done()
    world.log.trouble.let_go(step)
    await task
    assert world.offsets[0] == len(world.written) > 0


@simulated
async def test_release_at_every_moment_ends_it_with_outputs_and_offsets_together() -> None:
    for tenth_ms in range(0, 500, 7):
        world = World()
        values = world.send(30)
        task = asyncio.create_task(world.keep())
        await until(lambda world=world: world.keeper is not None)
        await asyncio.sleep(tenth_ms / 10_000)
        world.call("release")
        async with asyncio.timeout(1):
            await task
        done = world.offsets.get(0, 0)
        assert world.written == values[:done]
        assert world.counts.records_in == done
        world.check_dropped()


@simulated
async def test_release_during_a_back_off_ends_it_at_once() -> None:
    world = World()
    world.log.trouble.fail("fence", UnavailableError("u"), times=1000)
    task = asyncio.create_task(world.keep())
    await until(lambda: len(world.restarts) == 12)
    world.call("release")
    async with asyncio.timeout(0.1):
        await task


@pytest.mark.parametrize("step", [*BEFORE_A_RUN, "produce", "fetch"])
@simulated
async def test_cancelling_ends_it_wherever_it_waits(step: str) -> None:
    world = World()
    world.send(30)
    reached = world.log.trouble.hold(step)
    task = asyncio.create_task(world.keep())
    await reached.wait()
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    world.check_dropped()


@pytest.mark.parametrize("step", ["end", "fence", "committed"])
@simulated
async def test_a_cancellation_that_meets_an_error_is_not_forgotten(step: str) -> None:
    """What absorbs the error and goes on must not absorb the cancellation with it."""
    for turns in range(25):
        world = World()
        world.send(30)
        task = asyncio.create_task(world.keep())
        if step == "end":
            # The first one belongs to the beginning of the run.
            await until(lambda world=world: 0 in world.offsets)
        world.log.trouble.fail(step, FencedError("f"))
        reached = world.log.trouble.hold(step)
        await reached.wait()
        world.log.trouble.let_go(step)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(10):
            await asyncio.wait([task])
        assert task.cancelled()
        world.check_dropped()
