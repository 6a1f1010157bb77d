"""A shard's input: each partition in order and in its turn, and a decision where one cannot go on."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Literal

import pytest
from engine_bench import STOP, numbered, place, until
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_broker import MemoryBroker
from memory_log import MemoryLog
from virtual_time import simulated

from millstream.processor.counts import Counts
from millstream.processor.errors import (
    CorruptBatchError,
    InvariantError,
    OffsetLostError,
    StageError,
    UnavailableError,
)
from millstream.processor.intake import Intake, Taken, of_shard
from millstream.processor.interfaces import Effects
from millstream.processor.partitions import TopicPartition


class World:
    """An intake on all partitions of a topic, from their beginning, whose feeds are filled by hand."""

    def __init__(self, partitions: int = 1, lost: Literal["stop", "earliest", "latest"] = "stop") -> None:
        self.broker = MemoryBroker()
        self.broker.create("in", partitions)
        self.log = MemoryLog(self.broker, "group")
        self.policy = replace(STOP, on_offset_lost=lost)
        self.left_out: list[tuple[TopicPartition, CorruptBatchError]] = []
        self.stops_at_damage = False

    async def open(self) -> Intake:
        self.shard_log = self.log.shard(0)
        permit = await self.shard_log.fence()
        intake = Intake(self.shard_log, permit, {"in": self.policy}, self.leave_out)
        intake.open({place(p): 0 for p in range(len(self.broker.topics["in"].partitions))})
        self.fill()
        return intake

    def leave_out(self, partition: TopicPartition, error: CorruptBatchError) -> Effects:
        if self.stops_at_damage:
            raise StageError(f"{partition}: {error}")
        self.left_out.append((partition, error))
        return Effects([], Counts(skipped=1))

    def fill(self) -> None:
        self.log._fill()


def values(taken: Taken) -> list[bytes | None]:
    return [] if taken.records is None else taken.records.value.to_list()


@simulated
async def test_nothing_at_hand_is_nothing_taken() -> None:
    intake = await World().open()
    assert await intake.take(100) == Taken(None, {}, 0)
    assert not intake.has_something


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(1, 200))
@simulated
async def test_all_is_taken_once_in_order_and_positions_follow(sizes: list[int], bytes_wanted: int) -> None:
    world = World(len(sizes))
    for partition, size in enumerate(sizes):
        world.broker.send("in", partition, numbered(size, f"{partition}-"))
    intake = await world.open()
    got: dict[int, list[bytes | None]] = {partition: [] for partition in range(len(sizes))}
    while True:
        world.fill()
        taken = await intake.take(bytes_wanted)
        if not taken.positions:
            break
        # One piece of four records is 28 bytes; the last one may pass what was wanted.
        assert taken.byte_count < bytes_wanted + 28
        assert taken.records is not None
        for origin, value in zip(taken.records.origin.tolist(), values(taken), strict=True):
            got[taken.records.origins[origin].partition].append(value)
        assert all(intake.positions[p] == taken.positions[p] == len(got[p.partition]) for p in taken.positions)
    assert got == {partition: numbered(size, f"{partition}-") for partition, size in enumerate(sizes)}
    assert intake.lag() == 0


@simulated
async def test_each_partition_gets_its_turn_although_the_first_always_has_something() -> None:
    world = World(3)
    for partition in range(3):
        world.broker.send("in", partition, numbered(400))
    intake = await world.open()
    turns: Counter[int] = Counter()
    for _ in range(60):
        world.fill()
        turns.update(partition.partition for partition in (await intake.take(1)).positions)
    assert turns == {0: 20, 1: 20, 2: 20}


@simulated
async def test_lag_counts_what_is_not_taken_yet() -> None:
    world = World(2)
    world.broker.send("in", 0, numbered(10))
    world.broker.send("in", 1, numbered(5))
    intake = await world.open()
    assert intake.lag() == 15
    await intake.take(1_000_000)
    assert intake.lag() == 15 - 4 - 4


@simulated
async def test_waiting_ends_with_an_arrival_an_interruption_and_at_once_where_something_is_at_hand() -> None:
    world = World()
    intake = await world.open()
    for wake in (intake.interrupt, lambda: (world.broker.send("in", 0, [b"x"]), world.fill())):
        waiting = asyncio.create_task(intake.wait())
        await asyncio.sleep(10)
        assert not waiting.done()
        wake()
        await waiting
    await intake.wait()


@simulated
async def test_a_lost_position_stops_the_pipeline_and_names_the_remedy() -> None:
    world = World()
    world.broker.send("in", 0, numbered(10))
    world.broker.expire("in", 0, 5)
    intake = await world.open()
    with pytest.raises(OffsetLostError, match=r"in-0: .*on_offset_lost='earliest' or 'latest'"):
        await intake.take(100)


@pytest.mark.parametrize(("lost", "offset"), [("earliest", 5), ("latest", 10)])
@simulated
async def test_a_lost_position_goes_on_where_the_policy_says(lost: Literal["earliest", "latest"], offset: int) -> None:
    world = World(lost=lost)
    world.broker.send("in", 0, numbered(10))
    world.broker.expire("in", 0, 5)
    intake = await world.open()
    taken = await intake.take(100)
    assert (taken.positions, taken.moved) == ({place(0): offset}, {place(0): 10})
    world.fill()
    assert values(await intake.take(1)) == numbered(10)[offset : offset + 4]
    intake.close()
    assert world.log.open_feeds == 0


@simulated
async def test_trouble_while_looking_for_another_position_leaves_no_feed_open() -> None:
    world = World(2, lost="earliest")
    world.broker.send("in", 0, numbered(10))
    world.broker.expire("in", 0, 5)
    intake = await world.open()
    world.log.trouble.fail("bounds", UnavailableError("not now"))
    with pytest.raises(UnavailableError):
        await intake.take(100)
    intake.close()
    world.shard_log.close()
    assert world.log.open_feeds == 0


@simulated
async def test_a_damaged_batch_is_left_out_and_its_neighbours_are_taken_once() -> None:
    world = World(2)
    for partition in (0, 1):
        world.broker.send("in", partition, numbered(10, f"{partition}-"))
    world.broker.damage("in", 0, 3, 7)
    intake = await world.open()
    got: list[bytes | None] = []
    effects: list[Effects] = []
    while True:
        world.fill()
        taken = await intake.take(1)
        if not taken.positions:
            break
        got += values(taken)
        effects += taken.left_out
    expected = [*numbered(10, "0-")[:3], *numbered(10, "0-")[7:], *numbered(10, "1-")]
    assert sorted(map(bytes, got)) == sorted(expected)
    assert [(partition, error.base_offset) for partition, error in world.left_out] == [(place(0), 3)]
    assert effects == [Effects([], Counts(skipped=1))]
    assert intake.positions == {place(0): 10, place(1): 10}


@simulated
async def test_a_damaged_batch_stops_where_that_is_decided_after_what_stands_before_it() -> None:
    world = World()
    world.stops_at_damage = True
    world.broker.send("in", 0, numbered(10))
    world.broker.damage("in", 0, 3, 7)
    intake = await world.open()
    assert values(await intake.take(100)) == numbered(3)
    with pytest.raises(StageError, match="in-0: record batch at offset 3"):
        await intake.take(100)
    assert intake.positions == {place(0): 3}


@pytest.mark.parametrize("next_offset", [None, 2, 3])
@simulated
async def test_a_way_around_damage_that_leads_nowhere_is_never_gone(next_offset: int | None) -> None:
    world = World()
    world.broker.send("in", 0, numbered(10))
    world.broker.damage("in", 0, 3, next_offset)
    intake = await world.open()
    await intake.take(100)
    with pytest.raises(InvariantError):
        await intake.take(100)


@given(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=3), st.integers(1, 12))
def test_every_partition_belongs_to_one_shard_and_equal_numbers_belong_together(
    counts: dict[str, int], shards: int
) -> None:
    owned = [list(of_shard(counts, shard, shards)) for shard in range(shards)]
    everything = sorted(partition for partitions in owned for partition in partitions)
    assert everything == sorted(TopicPartition(t, p) for t, count in counts.items() for p in range(count))
    assert all(p.partition % shards == shard for shard in range(shards) for p in owned[shard])


@simulated
async def test_interrupting_again_and_again_never_loses_an_arrival() -> None:
    world = World()
    intake = await world.open()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(world.log.run())
        got: list[bytes | None] = []

        async def take_all() -> None:
            while len(got) < 100:
                taken = await intake.take(1)
                got.extend(values(taken))
                if not taken.positions:
                    await intake.wait()

        tasks.create_task(take_all())
        for number, value in enumerate(numbered(100)):
            world.broker.send("in", 0, [value])
            if number % 3:
                intake.interrupt()
            await asyncio.sleep(0.0007 * (number % 5))
        await until(lambda: len(got) == 100)
        running.cancel()
    assert got == numbered(100)
