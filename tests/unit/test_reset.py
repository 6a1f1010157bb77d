"""A reset moves a stopped pipeline's offsets, and leaves those of one that runs alone."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from engine_bench import place, until
from memory_broker import CommittedOffset
from memory_log import MemoryLog
from test_keeper import World
from virtual_time import simulated

from millstream.connectors.kafka.reset_command import request_from
from millstream.processor.errors import OutcomeUnknownError, RefusedError, SettingsError
from millstream.processor.reset import Moved, Plan, carry_out, known_pipeline

TO_TWO = Plan({place(0): 2}, shards=1)


async def stopped_at(world: World, records: int) -> None:
    """The world's pipeline has processed so many records and is stopped."""
    world.send(records)
    task = asyncio.create_task(world.keep())
    await until(lambda: world.offsets == {0: records})
    world.call("release")
    await task


@simulated
async def test_a_stopped_pipeline_goes_on_where_it_was_reset_to() -> None:
    world = World()
    await stopped_at(world, 6)
    moved = await carry_out(MemoryLog(world.broker, "p"), TO_TWO, is_forced=False)
    assert moved == [Moved(place(0), 6, 2)]
    assert world.offsets == {0: 2}
    task = asyncio.create_task(world.keep())
    await until(lambda: len(world.written) == 10)
    world.call("release")
    await task
    assert world.offsets == {0: 6}


@pytest.mark.parametrize("is_busy", [False, True])
@simulated
async def test_a_running_pipeline_is_left_alone_be_it_idle_or_busy(is_busy: bool) -> None:
    world = World()
    world.send(6)
    task = asyncio.create_task(world.keep())
    await until(lambda: world.offsets == {0: 6})

    async def keep_busy() -> None:
        while is_busy:
            world.send(1)
            await asyncio.sleep(0.05)

    busy = asyncio.create_task(keep_busy())
    with pytest.raises(RefusedError, match="the pipeline runs: its shard 0 was taken back"):
        await carry_out(MemoryLog(world.broker, "p"), TO_TWO, is_forced=False)
    busy.cancel()
    await asyncio.sleep(1)
    sent = len(world.broker.values("in"))
    assert world.offsets == {0: sent}
    assert world.written == world.broker.values("in"), "nothing was done twice"
    world.call("release")
    await task


@simulated
async def test_a_forced_reset_of_a_running_pipeline_is_taken_up_by_it_and_harms_nothing() -> None:
    world = World()
    world.send(6)
    task = asyncio.create_task(world.keep())
    await until(lambda: world.offsets == {0: 6})
    await carry_out(MemoryLog(world.broker, "p"), TO_TWO, is_forced=True)
    await until(lambda: len(world.written) == 10)
    assert world.offsets == {0: 6}
    assert world.written == world.broker.values("in") + world.broker.values("in")[2:]
    world.call("release")
    await task


@simulated
async def test_an_owner_that_asks_for_no_fence_is_noticed_by_the_offsets_that_it_commits() -> None:
    world = World()
    await stopped_at(world, 6)

    async def commit_at_least_once() -> None:
        await asyncio.sleep(3)
        world.broker.offsets["p", place(0)] = CommittedOffset(7, world.broker.topics["in"].id)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(commit_at_least_once())
        with pytest.raises(RefusedError, match="its offsets move"):
            await carry_out(MemoryLog(world.broker, "p"), TO_TWO, is_forced=False)
    assert world.offsets == {0: 7}


@simulated
async def test_a_commit_whose_outcome_nobody_knows_is_an_error_and_asking_again_settles_it() -> None:
    world = World()
    await stopped_at(world, 6)
    log = MemoryLog(world.broker, "p")
    log.trouble.fail("end", OutcomeUnknownError("nobody answered"))
    with pytest.raises(OutcomeUnknownError):
        await carry_out(log, TO_TWO, is_forced=False)
    assert world.offsets == {0: 6}
    await carry_out(log, TO_TWO, is_forced=False)
    assert world.offsets == {0: 2}


@simulated
async def test_a_pipeline_that_was_never_started_is_named_with_its_ledger() -> None:
    with pytest.raises(SettingsError, match=r"no pipeline 'ghost'.*\n.*ghost\.ledger"):
        await known_pipeline(MemoryLog(World().broker, "ghost"), "ghost")


def test_places_to_go_to_are_read_from_the_command_line() -> None:
    assert request_from("p", ["earliest"], []).to == "earliest"
    assert request_from("p", ["latest"], ["a"]).topics == ("a",)
    assert request_from("p", ["2026-11-01T00:00:00Z"], []).to == datetime(2026, 11, 1, tzinfo=UTC)
    offsets = request_from("p", ["a.b-c:0=5", "a.b-c:1=0"], []).offsets
    assert offsets == {("a.b-c", 0): 5, ("a.b-c", 1): 0}


@pytest.mark.parametrize(
    ("to", "topics", "part"),
    [
        (["yesterday"], [], "'yesterday': it is no time"),
        (["2026-11-01T00:00:00"], [], "the time has no zone"),
        (["a:x=5"], [], "no partition with an offset"),
        (["a:0=-1"], [], "no partition with an offset"),
        (["earliest", "latest"], [], "--to earliest and --to latest contradict"),
        (["earliest", "a:0=5"], [], "contradict"),
        (["a:0=5", "a:0=6"], [], "twice, with 5 and 6"),
        (["a:0=5"], ["b"], "--topic b and --to a:0=5 contradict"),
    ],
)
def test_a_place_that_makes_no_sense_is_named_with_the_remedy(to: list[str], topics: list[str], part: str) -> None:
    with pytest.raises(SettingsError) as caught:
        request_from("p", to, topics)
    assert part in str(caught.value)
