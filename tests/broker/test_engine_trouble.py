"""The engine when the world does not play along: brokers that go and come, two owners, a cluster that is too old."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from outside import Outside

from millstream.connectors.kafka.connection import Connection
from millstream.connectors.kafka.development_broker import DevelopmentBroker
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.connectors.kafka.wire import Reader, Writer
from millstream.processor import Pipeline, wiring
from millstream.processor.errors import RefusedError, UnavailableError
from millstream.processor.host import RunOptions

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

EVENTS = 20_000


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[DevelopmentBroker]:
    """A broker that a test may stop and kill, and start again with its data."""
    with DevelopmentBroker(heap_mb=512, data_directory=tmp_path) as started:
        yield started


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_broker_restarted_under_load_costs_time_and_no_record(
    own_broker: DevelopmentBroker, unique: Callable[[str], str], end: str
) -> None:
    outside = Outside(own_broker.bootstrap, unique)
    source, target = outside.topic("in"), outside.topic("out")
    await asyncio.to_thread(outside.load, source, EVENTS)
    computed = 0
    under_way = asyncio.Event()

    async def slowly(value: bytes) -> bytes:
        nonlocal computed
        await asyncio.sleep(0.001)
        computed += 1
        if computed == EVENTS // 4:
            under_way.set()
        return value

    pipeline = Pipeline(unique("survivor"), shards=3, commit_interval_ms=5)
    pipeline.read(source).map(slowly, concurrency=8).write(target)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(pipeline.run(brokers=outside.bootstrap, events=EVENTS, timeout_s=150))
        await under_way.wait()
        await asyncio.to_thread(getattr(own_broker, end))
        assert computed < EVENTS, "the broker must go while there is work"
        await asyncio.sleep(1)
        await asyncio.to_thread(own_broker.start)
    assert running.result().counts.records_in == EVENTS
    verdict = outside.judge(source, target, group=pipeline.name)
    assert verdict.is_clean, verdict.as_json()


async def test_of_two_owners_that_both_believe_kafka_lets_one_commit_at_a_time(outside: Outside) -> None:
    source, target = outside.topic("in"), outside.topic("out")
    name = outside.unique("contested")

    def owner() -> Pipeline:
        pipeline = Pipeline(name, shards=1)
        pipeline.read(source).write(target)
        return pipeline

    async with asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(_own_all(owner(), outside)) for _ in range(2)]
        loads = 0
        # While there is input they fence each other, until one of them sees that this is no takeover.
        while not any(run.done() for run in runs):
            await asyncio.to_thread(outside.load, source, 200, first_id=200 * loads)
            loads += 1
        for run in runs:
            run.cancel()
    assert [run.result() for run in runs if not run.cancelled() and "another process runs" in run.result()]
    await owner().run(brokers=outside.bootstrap, until="caught-up", timeout_s=60)
    verdict = outside.judge(source, target, group=name)
    assert verdict.is_clean, verdict.as_json()


async def _own_all(pipeline: Pipeline, outside: Outside) -> str:
    """Run all shards, whatever the ledger says of their owners."""
    engine = wiring.host(pipeline.build(), KafkaSettings(brokers=(outside.bootstrap,)), RunOptions())
    engine.assign(frozenset(range((await engine.prepare()).shards)))
    try:
        await engine.serve(lambda _: None)
    except RefusedError as error:
        return str(error)
    return ""


async def test_a_broker_that_cannot_be_reached_is_named_after_a_bounded_wait(unique: Callable[[str], str]) -> None:
    pipeline = Pipeline(unique("lonely"))
    pipeline.read(unique("in")).write(unique("out"))
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 could be reached within 1 s"):
        await pipeline.run(brokers=KafkaSettings(brokers=("127.0.0.1:1",), connect_timeout_ms=1000))


async def test_a_broker_without_transactions_v2_is_refused_with_the_remedy(
    own_broker: DevelopmentBroker, unique: Callable[[str], str]
) -> None:
    await _downgrade_transactions(own_broker)
    pipeline = Pipeline(unique("modern"))
    pipeline.read(unique("in")).write(unique("out"))
    with pytest.raises(RefusedError, match=r"transaction\.version=[01].*kafka-features\.sh"):
        await pipeline.run(brokers=own_broker.bootstrap, timeout_s=20)


class _DowngradeRequest:
    """UpdateFeatures v1: finalize the level of `transaction.version` that a cluster upgraded from Kafka 3 has."""

    API_KEY: ClassVar[int] = 57
    API_VERSION: ClassVar[int] = 1

    def write(self, writer: Writer) -> None:
        writer.int32(10_000)
        writer.array_size(1)
        writer.string("transaction.version")
        writer.int16(0)
        writer.int8(2)  # a safe downgrade
        writer.no_tags()
        writer.boolean(False)  # validate only
        writer.no_tags()

    def read(self, reader: Reader) -> int:
        reader.int32()
        return reader.int16()


async def _downgrade_transactions(broker: DevelopmentBroker) -> None:
    settings = KafkaSettings(brokers=(broker.bootstrap,))
    connection = await Connection.open(*settings.addresses[0], settings)
    assert await connection.call(_DowngradeRequest(), timeout_s=15) == 0
    connection.close()


def test_a_limit_that_was_lowered_while_running_ends_the_run_with_the_remedy(outside: Outside) -> None:
    source, target = outside.topic("in", partitions=1), outside.topic("out", partitions=1)
    outside.send(source, [(b"k", b"x" * 5000)])
    pipeline = Pipeline(outside.unique("limited"))

    def lower_the_limit(value: bytes) -> bytes:
        outside.set_topic(target, max_message_bytes="2000")
        return value

    pipeline.read(source).map(lower_the_limit).write(target)
    with pytest.raises(RefusedError, match=r"max\.message\.bytes"):
        asyncio.run(pipeline.run(brokers=outside.bootstrap, until="caught-up", timeout_s=30))
