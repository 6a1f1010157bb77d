"""A shard is kept running: every run begins with the fence, and ends when it should and only then."""

from __future__ import annotations

import asyncio

import pytest
from engine_bench import POISON, place, until
from keeper_world import World
from memory_broker import CommittedOffset
from trouble import COMMIT_STEPS
from virtual_time import simulated

from millstream.processor.errors import (
    FencedError,
    OffsetLostError,
    OutcomeUnknownError,
    RefusedError,
    StageError,
    UnavailableError,
    WorldError,
)
from millstream.processor.shard import LOOK_S


@pytest.mark.parametrize("step", [*COMMIT_STEPS, "fence", "committed"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [FencedError("f"), OutcomeUnknownError("o"), UnavailableError("u")])
@simulated
async def test_whatever_the_world_does_the_next_run_begins_with_the_fence_and_ends_exact(
    step: str, after: bool, error: WorldError
) -> None:
    """I2, I4."""
    world = World(until_caught_up=True)
    values = world.send(40)
    world.log.trouble.fail(step, error, after=after, times=3)
    await world.keep()
    assert world.written == values
    assert world.offsets == {0: 40}
    assert world.counts.records_in <= 40, "what is told to be committed was"
    assert world.restarts == [f"{type(error).__name__}: {error}"] * 3
    steps = [step for shard, step in world.log.journal if shard == 0]
    assert steps[0] == "fence"
    assert world.fences == (1 if (step, after) == ("fence", False) else 4)
    world.check_dropped()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [OutcomeUnknownError("o"), UnavailableError("u")])
@pytest.mark.parametrize("times", [1, 3])
@simulated
async def test_a_commit_that_nobody_answered_is_told_once_whether_it_was_made_or_not(
    after: bool, error: WorldError, times: int
) -> None:
    world = World(until_caught_up=True)
    values = world.send(40)
    world.log.trouble.fail("end", error, after=after, times=times)
    await world.keep()
    assert world.written == values
    assert world.counts.records_in == 40
    assert sum(len(outputs.value) for outputs in world.outputs) == 40


@simulated
async def test_after_trouble_nothing_is_asked_for_the_shard_before_the_fence() -> None:
    world = World()
    world.send(40)
    world.log.trouble.fail("end", OutcomeUnknownError("o"), after=True)
    task = asyncio.create_task(world.keep())
    await until(lambda: len(world.restarts) == 1)
    asked = len([step for shard, step in world.log.journal if shard == 0])
    world.check_dropped()
    await until(lambda: world.offsets == {0: 40})
    assert [step for shard, step in world.log.journal if shard == 0][asked] == "fence"
    world.call("release")
    await task


@simulated
async def test_a_contest_is_given_up_with_the_name_and_the_remedy() -> None:
    world = World()
    world.log.trouble.fail("end", FencedError("another has it"), times=1000)
    with pytest.raises(RefusedError, match=r"shard 0 was fenced 13 times in a row.*'p'.*give it another name"):
        await world.keep()
    world.check_dropped()


@simulated
async def test_a_contest_in_which_each_owner_commits_a_little_lasts_for_ten_seconds_at_least() -> None:
    world = World()
    task = asyncio.create_task(world.keep())
    began = asyncio.get_running_loop().time()
    for sent in range(1, 100):
        world.send(1, prefix=f"{sent}-")
        await until(lambda sent=sent: task.done() or world.offsets.get(0) == sent)
        if task.done():
            break
        world.broker.fence("p.0")
    with pytest.raises(RefusedError, match="shard 0 was fenced 13 times in a row"):
        await task
    assert asyncio.get_running_loop().time() - began > 10, "a node that is cut off hears of it by then"


@simulated
async def test_takeovers_with_good_work_between_them_are_no_contest() -> None:
    world = World()
    task = asyncio.create_task(world.keep())
    for round_ in range(30):
        await asyncio.sleep(31)
        world.broker.fence("p.0")
        world.send(1, prefix=f"{round_}-")
        await until(lambda round_=round_: world.offsets.get(0) == round_ + 1)
    assert len(world.restarts) == 30
    world.call("release")
    await task


@simulated
async def test_an_idle_shard_notices_within_seconds_that_it_was_fenced_and_takes_up_what_was_committed_since() -> None:
    world = World()
    values = world.send(10)
    task = asyncio.create_task(world.keep())
    await until(lambda: world.offsets == {0: 10})
    await asyncio.sleep(600)
    assert world.restarts == [], "a shard that nobody fenced goes on"
    world.broker.fence("p.0")
    world.broker.offsets["p", place(0)] = CommittedOffset(4, world.broker.topics["in"].id)
    await asyncio.sleep(LOOK_S + 1)
    assert world.restarts == ["FencedError: another owner has fenced this shard while it was idle"]
    await until(lambda: world.offsets == {0: 10})
    assert world.written == values + values[4:]
    world.call("release")
    await task


@simulated
async def test_a_world_that_stays_away_is_asked_less_and_less_but_never_given_up() -> None:
    world = World()
    values = world.send(10)
    world.log.trouble.fail("fence", UnavailableError("no broker"), times=100)
    task = asyncio.create_task(world.keep())
    loop = asyncio.get_running_loop()
    began = loop.time()
    await until(lambda: len(world.restarts) == 3)
    assert loop.time() - began < 0.5
    for _ in range(150):
        await asyncio.sleep(1)
        # Somebody looks at the partitions all the time; that is no reason to hurry.
        world.call("rerun")
    assert 70 <= len(world.restarts) <= 85
    await asyncio.sleep(60)
    assert world.written == values
    world.call("release")
    await task


@pytest.mark.parametrize("error", [StageError, OffsetLostError])
@simulated
async def test_what_no_new_run_can_mend_is_raised_at_once(error: type[Exception]) -> None:
    world = World()
    world.send(10)
    if error is StageError:
        world.broker.send("in", 0, [POISON])
    else:
        world.broker.expire("in", 0, 5)
        topic_id = world.broker.topics["in"].id
        world.broker.offsets["p", place(0)] = CommittedOffset(2, topic_id)
    with pytest.raises(error):
        await world.keep()
    assert world.restarts == []
    world.check_dropped()


@simulated
async def test_a_refusal_is_raised_at_once() -> None:
    world = World()
    world.log.trouble.fail("fence", RefusedError("no authorization"))
    with pytest.raises(RefusedError, match="no authorization"):
        await world.keep()
    assert world.restarts == []


@simulated
async def test_a_run_to_the_end_leaves_out_what_came_after_it_had_begun() -> None:
    world = World(until_caught_up=True)
    values = world.send(10)
    reached = world.log.trouble.hold("limits")
    task = asyncio.create_task(world.keep())
    await reached.wait()
    world.send(10, prefix="late")
    world.log.trouble.let_go("limits")
    await task
    assert world.written[:10] == values
    assert 10 <= world.offsets[0] <= 20
    assert world.restarts == []


@simulated
async def test_a_run_to_the_end_keeps_its_end_over_restarts() -> None:
    world = World(until_caught_up=True)
    world.send(10)
    for _ in range(5):
        world.log.trouble.fail("end", OutcomeUnknownError("o"))

    async def more_comes() -> None:
        world.send(4, prefix="more")

    world.program.meanwhile = more_comes
    await world.keep()
    assert 10 <= world.offsets[0] < 100


@simulated
async def test_a_shard_without_partitions_is_at_its_end_at_once() -> None:
    world = World(partitions=1, shards=3, until_caught_up=True)
    await world.keep(shard=2)
    assert world.restarts == []


@simulated
async def test_a_shard_without_partitions_waits_for_some() -> None:
    world = World(partitions=1, shards=2)
    task = asyncio.create_task(world.keep(shard=1))
    await asyncio.sleep(10)
    world.broker.add_partitions("in", 2)
    world.send(5, partition=1)
    world.call("rerun")
    await until(lambda: world.offsets.get(1) == 5)
    world.call("release")
    await task


@simulated
async def test_a_run_to_the_end_is_not_at_its_end_while_its_topic_is_unknown() -> None:
    world = World(until_caught_up=True)
    values = world.send(10)
    reached = world.log.trouble.hold("fence")
    task = asyncio.create_task(world.keep())
    await reached.wait()
    hidden = world.broker.topics.pop("in")
    world.log.trouble.let_go("fence")
    await asyncio.sleep(10)
    assert not task.done()
    world.broker.topics["in"] = hidden
    world.call("rerun")
    await task
    assert world.written == values


@simulated
async def test_added_partitions_are_read_after_a_rerun_and_nothing_is_lost_or_doubled() -> None:
    world = World()
    task = asyncio.create_task(world.keep())
    old = world.send(30, prefix="old")
    await asyncio.sleep(0.03)
    world.broker.add_partitions("in", 2)
    new = world.send(30, partition=1, prefix="new")
    world.call("rerun")
    await until(lambda: world.offsets == {0: 30, 1: 30})
    world.call("release")
    await task
    assert sorted(map(bytes, filter(None, world.written))) == sorted([*old, *new])
    assert world.restarts == []


@simulated
async def test_a_rerun_at_every_moment_loses_and_doubles_nothing() -> None:
    for tenth_ms in range(0, 600, 11):
        world = World(until_caught_up=True)
        values = world.send(40)
        task = asyncio.create_task(world.keep())
        await until(lambda world=world: world.keeper is not None)
        await asyncio.sleep(tenth_ms / 10_000)
        world.call("rerun")
        await task
        assert world.written == values
        assert world.restarts == []
