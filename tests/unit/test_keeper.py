"""A shard is kept running: every run begins with the fence, and ends when it should and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from engine_bench import PACING, POISON, STOP, Copy, numbered, place, until
from memory_broker import CommittedOffset, MemoryBroker
from memory_log import COMMIT_STEPS, MemoryLog
from virtual_time import simulated

from millstream.processor import Pipeline
from millstream.processor.columns import OutputRecords
from millstream.processor.counts import Counts
from millstream.processor.errors import (
    FencedError,
    OffsetLostError,
    OutcomeUnknownError,
    RefusedError,
    StageError,
    UnavailableError,
    WorldError,
)
from millstream.processor.keeper import KeeperSettings, ShardKeeper
from millstream.processor.preparation import prepare
from millstream.processor.shard import LOOK_S, ShardSettings

BEFORE_A_RUN = ("fence", "read-ledger", "committed", "starting", "offsets", "end", "append-ledger", "limits")


class World:
    """A pipeline that copies `in` to `out`, and the keeper of its shard 0."""

    def __init__(self, partitions: int = 1, shards: int = 1, *, until_caught_up: bool = False) -> None:
        self.broker = MemoryBroker()
        self.broker.create("in", partitions)
        self.broker.create("out", partitions)
        self.log = MemoryLog(self.broker, "p")
        self.program = Copy()
        self.shards = shards
        self.until_caught_up = until_caught_up
        self.counts = Counts()
        self.restarts: list[str] = []
        self.outputs: list[OutputRecords] = []
        self.keeper: ShardKeeper | None = None

    async def keep(self, shard: int = 0, **policy: Any) -> None:
        """Prepare, and keep the shard until its end."""
        pipeline = Pipeline("p", shards=self.shards)
        pipeline.read("in").write("out")
        built = replace(pipeline.build(), program=self.program)
        settings = KeeperSettings(
            pipeline=built,
            policies={"in": replace(STOP, **policy)},
            shards=(await prepare(self.log, built)).shards,
            shard=ShardSettings(PACING, chunk_bytes=100),
            until_caught_up=self.until_caught_up,
            keep_outputs=True,
        )
        self.keeper = ShardKeeper(shard, self.log, settings, self.on_commit, self.restarts.append)
        fetching = asyncio.create_task(self.log.run())
        try:
            await self.keeper.run()
        finally:
            fetching.cancel()
            await asyncio.wait([fetching])

    def on_commit(self, counts: Counts, outputs: Sequence[OutputRecords]) -> None:
        self.counts.add(counts)
        self.outputs += outputs

    def call(self, method: str) -> None:
        assert self.keeper is not None
        getattr(self.keeper, method)()

    def send(self, count: int, partition: int = 0, prefix: str = "r") -> list[bytes]:
        values = numbered(count, prefix)
        self.broker.send("in", partition, values)
        return values

    @property
    def fences(self) -> int:
        return self.log.journal.count((0, "fence"))

    @property
    def written(self) -> list[bytes | None]:
        return self.broker.values("out")

    @property
    def offsets(self) -> dict[int, int]:
        return self.broker.committed("p", "in")

    def check_dropped(self) -> None:
        assert self.log.open_feeds == 0


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
