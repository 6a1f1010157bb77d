"""What the engine relies on in a log, as one suite for every log: Kafka's, and the one in memory that stands for it.

A test module subclasses `LogContract` and gives it a fixture `world`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Protocol

import numpy as np
import pytest

from millstream.processor.columns import OutputRecords, Slices
from millstream.processor.errors import FencedError
from millstream.processor.log import Bounds, Committed, Feed, Fetched, Log, Outbox, Permit, ShardLog, TopicPlan
from millstream.processor.partitions import TopicPartition


class World(Protocol):
    """A cluster, and what no log needs to be able to do."""

    def log(self, group: str) -> Log:
        """A new client, not connected."""

    def unique(self, name: str) -> str:
        """A name of this test's own."""

    async def delete(self, topic: str) -> None:
        """The topic is gone afterwards."""


@asynccontextmanager
async def connected(world: World, group: str) -> AsyncIterator[Log]:
    log = world.log(group)
    await log.connect()
    running = asyncio.create_task(log.run())
    try:
        yield log
    finally:
        running.cancel()
        await asyncio.wait([running])
        log.close()


async def topic_of(log: Log, world: World, partitions: int = 1) -> str:
    topic = world.unique("topic")
    await log.create_topics([TopicPlan(topic, partitions, {})])
    await log.record_bytes_max([topic])
    return topic


def filled(outbox: Outbox, topic: str, values: Sequence[bytes], *, partition: int = 0, timestamp: int = -1) -> Outbox:
    count = len(values)
    none = Slices.repeated(None, count)
    outbox.add(
        OutputRecords(
            topic,
            none,
            Slices.from_list(list(values)),
            Slices.repeated(b"\0", count),
            np.full(count, timestamp, np.int64),
            np.full(count, partition, np.int32),
            np.arange(count, dtype=np.int32),
        )
    )
    return outbox


async def write(
    shard: ShardLog, permit: Permit, topic: str, *values: bytes, partition: int = 0, timestamp: int = -1
) -> Permit:
    outbox = filled(shard.outbox(), topic, values, partition=partition, timestamp=timestamp)
    return await shard.commit(permit, outbox.seal(), {})


async def take(feed: Feed, arrived: asyncio.Event, count: int) -> tuple[list[bytes | None], list[Fetched]]:
    """At least so many values, and the pieces that they came in."""
    values: list[bytes | None] = []
    pieces: list[Fetched] = []
    async with asyncio.timeout(10):
        while len(values) < count:
            piece = feed.take_nowait()
            if piece is None:
                arrived.clear()
                await arrived.wait()
                continue
            pieces.append(piece)
            values += piece.records.value.to_list()
    return values, pieces


async def read(shard: ShardLog, permit: Permit, place: TopicPartition, count: int) -> list[bytes | None]:
    arrived = asyncio.Event()
    feed = shard.open(permit, place, 0, arrived.set)
    try:
        return (await take(feed, arrived, count))[0]
    finally:
        feed.close()


class LogContract:
    """Subclass it with a fixture `world`."""

    @pytest.fixture
    def group(self, world: World) -> str:
        return world.unique("group")

    async def test_topics_are_created_once_and_missing_ones_are_told(self, world: World, group: str) -> None:
        async with connected(world, group) as log:
            here, gone = world.unique("here"), world.unique("gone")
            assert list(await log.missing_topics([here, gone])) == [here, gone]
            assert await log.broker_count() >= 1
            await log.create_topics([TopicPlan(here, 3, {}, replication=1)])
            await log.create_topics([TopicPlan(here, 5, {})])
            assert list(await log.missing_topics([here, gone])) == [gone]
            assert await log.partition_counts([here, gone]) == {here: 3}
            assert (await log.record_bytes_max([here]))[here] > 100_000

    async def test_a_ledger_is_read_as_it_was_appended(self, world: World, group: str) -> None:
        async with connected(world, group) as log:
            ledger = await topic_of(log, world)
            assert await log.read_ledger(ledger) == []
            await log.append_to_ledger(ledger, [b"one", b"two"])
            await log.append_to_ledger(ledger, [b"three"])
            assert await log.read_ledger(ledger) == [b"one", b"two", b"three"]

    async def test_outputs_and_offsets_are_committed_together(self, world: World, group: str) -> None:
        async with connected(world, group) as log:
            topic = await topic_of(log, world, partitions=2)
            place = TopicPartition(topic, 1)
            shard = log.shard(0)
            permit = await shard.fence()
            assert await shard.committed(permit, [place]) == {}
            outbox = filled(shard.outbox(), topic, [b"a", b"b"], partition=1)
            assert outbox.byte_count > 0
            sealed = outbox.seal()
            assert sealed.byte_count > 0
            assert outbox.seal().byte_count == 0
            permit = await shard.commit(permit, sealed, {place: 0})
            # A new fence waits until the end of what came before is complete, and so do stable offsets.
            assert await shard.committed(permit, [place]) == {place: Committed(0, stale=False)}
            permit = await shard.commit(permit, shard.outbox().seal(), {place: 2})
            assert await shard.committed(permit, [place]) == {place: Committed(2, stale=False)}
            assert await read(shard, permit, place, 2) == [b"a", b"b"]
            shard.close()

    async def test_only_the_last_to_fence_can_commit(self, world: World, group: str) -> None:
        async with connected(world, group) as log, connected(world, group) as other:
            topic = await topic_of(log, world)
            await other.missing_topics([topic])
            await other.record_bytes_max([topic])
            place = TopicPartition(topic, 0)
            zombie, owner = log.shard(0), other.shard(0)
            held = await zombie.fence()
            held = await zombie.commit(held, zombie.outbox().seal(), {place: 1})
            assert await zombie.holds(held)
            permit = await owner.fence()
            assert not await zombie.holds(held)
            assert await owner.holds(permit)
            with pytest.raises(FencedError):
                await zombie.commit(held, filled(zombie.outbox(), topic, [b"zombie"]).seal(), {place: 7})
            assert (await owner.committed(permit, [place]))[place].offset == 1
            permit = await owner.commit(permit, filled(owner.outbox(), topic, [b"owner"]).seal(), {place: 2})
            assert await read(owner, permit, place, 1) == [b"owner"]
            zombie.close()
            owner.close()

    async def test_another_shard_and_another_group_are_not_disturbed_by_a_fence(self, world: World, group: str) -> None:
        elsewhere = world.unique("elsewhere")
        async with connected(world, group) as log, connected(world, elsewhere) as other:
            topic = await topic_of(log, world)
            await other.missing_topics([topic])
            place = TopicPartition(topic, 0)
            zero, one, foreign = log.shard(0), log.shard(1), other.shard(0)
            permits = [await shard.fence() for shard in (zero, one, foreign)]
            for shard, permit in zip((zero, one, foreign), permits, strict=True):
                await shard.commit(permit, shard.outbox().seal(), {place: 3})
            reader = other.shard(1)
            assert (await reader.committed(await reader.fence(), [place]))[place].offset == 3
            for shard in (zero, one, foreign, reader):
                shard.close()

    async def test_a_feed_delivers_in_order_from_its_offset_on(self, world: World, group: str) -> None:
        async with connected(world, group) as log:
            topic = await topic_of(log, world)
            place = TopicPartition(topic, 0)
            shard = log.shard(0)
            permit = await write(shard, await shard.fence(), topic, *(b"%d" % i for i in range(5)))
            arrived = asyncio.Event()
            feed = shard.open(permit, place, 2, arrived.set)
            values, pieces = await take(feed, arrived, 3)
            assert values == [b"2", b"3", b"4"]
            assert [o for piece in pieces for o in piece.records.offset.tolist()] == [2, 3, 4]
            assert pieces[-1].next_offset >= 5
            assert feed.end_offset is not None
            assert feed.end_offset >= 5
            permit = await write(shard, permit, topic, b"later")
            later, pieces = await take(feed, arrived, 1)
            assert later == [b"later"]
            assert pieces[-1].records.origins == (place,)
            feed.close()
            assert not feed.has_something
            shard.close()

    async def test_positions_by_start_and_bounds(self, world: World, group: str) -> None:
        async with connected(world, group) as log:
            topic = await topic_of(log, world)
            place = TopicPartition(topic, 0)
            shard = log.shard(0)
            permit = await shard.fence()
            assert await shard.starting({}) == {}
            assert await shard.bounds([place]) == {place: Bounds(0, 0)}
            # A little ahead, since a broker gives the markers between them its own time, and finds those too.
            base_s = int(time.time()) + 600
            for second in range(3):
                permit = await write(shard, permit, topic, b"x", timestamp=(base_s + second) * 1000)
            # Each record is followed by the marker that ends its transaction; the last one may still be on its way.
            permit = await shard.fence()
            bounds = (await shard.bounds([place]))[place]
            assert bounds == Bounds(0, 6)
            starts = {
                "earliest": 0,
                "latest": 6,
                datetime.fromtimestamp(base_s + 1, UTC): 2,
                datetime.fromtimestamp(base_s + 60, UTC): 6,
            }
            for start, offset in starts.items():
                assert await shard.starting({place: start}) == {place: offset}  # type: ignore[dict-item]
            shard.close()

    async def test_an_offset_of_a_topic_that_was_made_anew_is_stale(self, world: World, group: str) -> None:
        async with connected(world, group) as log:
            topic = await topic_of(log, world)
            place = TopicPartition(topic, 0)
            shard = log.shard(0)
            permit = await shard.fence()
            await shard.commit(permit, shard.outbox().seal(), {place: 5})
            shard.close()
        await world.delete(topic)
        async with connected(world, group) as log:
            await log.create_topics([TopicPlan(topic, 1, {})])
            shard = log.shard(0)
            permit = await shard.fence()
            # Kafka may forget the offsets of a topic together with it; what it must not do is to pass them on.
            found = await shard.committed(permit, [place])
            assert all(committed.stale for committed in found.values())
            shard.close()
