"""Kafka's log keeps the contract that the log in memory keeps."""

from __future__ import annotations

import asyncio

import pytest
from log_contract import LogContract, connected, take, topic_of, write
from outside import Outside

from millstream.connectors.kafka.fetcher import FetchLimits
from millstream.connectors.kafka.kafka_log import KafkaLog, LogSettings
from millstream.connectors.kafka.settings import KafkaSettings, split_brokers
from millstream.processor.log import Log
from millstream.processor.partitions import TopicPartition

pytestmark = pytest.mark.broker


class KafkaWorld:
    def __init__(self, outside: Outside, limits: FetchLimits | None = None) -> None:
        self._outside = outside
        self._limits = limits or FetchLimits()
        self._names = 0

    def log(self, group: str) -> Log:
        settings = KafkaSettings(brokers=split_brokers(self._outside.bootstrap))
        return KafkaLog(settings, LogSettings(group=group, exactly_once=True, fetch=self._limits))

    def unique(self, name: str) -> str:
        self._names += 1
        return self._outside.unique(f"{name}-{self._names}")

    async def delete(self, topic: str) -> None:
        await asyncio.to_thread(self._outside.delete, topic)


class TestKafkaLog(LogContract):
    @pytest.fixture
    def world(self, outside: Outside) -> KafkaWorld:
        return KafkaWorld(outside)


async def test_what_waits_for_a_new_owner_does_not_wait_for_the_fetch_in_flight(outside: Outside) -> None:
    # For as long as a fetch waits at the broker here, nobody waits for records.
    world = KafkaWorld(outside, FetchLimits(wait_ms_max=25_000))
    group = world.unique("group")
    async with connected(world, group) as log:
        topic = await topic_of(log, world, partitions=2)
        shard = log.shard(0)
        permit = await write(shard, await shard.fence(), topic, b"a", b"b", partition=1)
        arrived = [asyncio.Event(), asyncio.Event()]
        quiet = shard.open(permit, TopicPartition(topic, 0), 0, arrived[0].set)
        # Now its second fetch is under way.
        await asyncio.sleep(0.5)
        feed = shard.open(permit, TopicPartition(topic, 1), 0, arrived[1].set)
        async with asyncio.timeout(5):
            assert (await take(feed, arrived[1], 2))[0] == [b"a", b"b"]
        # Afterwards it is fetched for like any other, and goes on where it was.
        permit = await write(shard, permit, topic, b"q")
        assert (await take(quiet, arrived[0], 1))[0] == [b"q"]
        permit = await write(shard, permit, topic, b"c", b"d", partition=1)
        assert (await take(feed, arrived[1], 2))[0] == [b"c", b"d"]
        quiet.close()
        feed.close()
        shard.close()
