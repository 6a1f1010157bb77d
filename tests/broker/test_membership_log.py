"""Kafka's ledger and beats keep the contract that the ones in memory keep, and meet what topics do with time."""

from __future__ import annotations

import asyncio

import pytest
from membership_contract import MembershipContract, beats_until, connected
from outside import Outside

from millstream.connectors.kafka.membership_log import KafkaMembershipLog, MembershipTimeouts
from millstream.connectors.kafka.settings import KafkaSettings, split_brokers
from millstream.processor.errors import UnavailableError

pytestmark = pytest.mark.broker


class KafkaWorld:
    def __init__(self, outside: Outside) -> None:
        self.outside = outside
        self.ledger = outside.topic("ledger", partitions=1)
        self.beats = outside.topic("beats", partitions=1)

    def log(self) -> KafkaMembershipLog:
        kafka = KafkaSettings(brokers=split_brokers(self.outside.bootstrap))
        # Bounds with room for a machine that is busy with other tests.
        timeouts = MembershipTimeouts(request_s=10, append_s=10, beat_s=10)
        return KafkaMembershipLog(kafka, ledger=self.ledger, beats=self.beats, timeouts=timeouts)

    async def make_anew(self) -> None:
        await asyncio.to_thread(self.outside.delete, self.ledger)
        await asyncio.to_thread(self.outside.create, self.ledger, 1)


@pytest.fixture
def world(outside: Outside) -> KafkaWorld:
    return KafkaWorld(outside)


class TestKafkaMembershipLog(MembershipContract):
    pass


async def test_beats_that_retention_has_passed_are_told_as_missed_and_reading_goes_on(world: KafkaWorld) -> None:
    async with connected(world) as log:
        await log.read_beats()
        for number in range(3):
            await log.send_beat(b"%d" % number)
        await asyncio.to_thread(world.outside.delete_records, world.beats, {0: 2})
        page = await log.read_beats()
        assert (list(page.values), page.is_behind) == ([], True)
        assert list((await log.read_beats()).values) == []
        await log.send_beat(b"later")
        assert await beats_until(log, b"later") == [b"later"]


async def test_what_another_client_packed_is_read_too(world: KafkaWorld) -> None:
    async with connected(world) as log:
        for kind in ("gzip", "snappy", "lz4", "zstd"):
            world.outside.send(world.ledger, [(b"key", kind.encode() * 50)], compression_type=kind)
        page = await log.follow(None)
        while not page.caught_up:
            page = await log.follow(0)
        assert [value for _, value in page.entries] == [k * 50 for k in (b"gzip", b"snappy", b"lz4", b"zstd")]


async def test_topics_that_do_not_exist_are_unavailable_until_they_do(outside: Outside) -> None:
    ledger, beats = outside.unique("ledger"), outside.unique("beats")
    kafka = KafkaSettings(brokers=split_brokers(outside.bootstrap))
    log = KafkaMembershipLog(kafka, ledger=ledger, beats=beats)
    await log.connect()
    try:
        for call in (log.follow(None), log.append([b"a"]), log.send_beat(b"b"), log.read_beats()):
            with pytest.raises(UnavailableError, match=r"ledger|beats"):
                await call
        await asyncio.to_thread(outside.create, ledger, 1)
        await log.append([b"a"])
        assert [value for _, value in (await log.follow(None)).entries] == [b"a"]
    finally:
        log.close()
