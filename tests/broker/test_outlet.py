"""The generator on a real broker: its own record batches, read by another client library."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import confluent_kafka
import numpy as np
import orjson
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.connectors.kafka.development_broker import DevelopmentBroker
from millstream.connectors.kafka.pytest_broker import Broker
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.outlet import Outlet
from millstream.loadgen.produce import send_all
from millstream.loadgen.schedule import FullSpeed, Schedule, constant_arrivals
from millstream.loadgen.workload import KeyDistribution, Workload, WorkloadSettings
from millstream.processor.errors import UnavailableError

pytestmark = pytest.mark.broker

PARTITIONS = 3


def _made(bootstrap: str, topic: str, **settings: str) -> KafkaSettings:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=settings)])[topic].result(20)
    return KafkaSettings(brokers=(bootstrap,))


def _read(bootstrap: str, topic: str) -> list[confluent_kafka.Message]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    partitions = range(PARTITIONS)
    consumer.assign([confluent_kafka.TopicPartition(topic, p, confluent_kafka.OFFSET_BEGINNING) for p in partitions])
    records: list[confluent_kafka.Message] = []
    ended = 0
    while ended < PARTITIONS:
        for message in consumer.consume(10_000, 0.05):
            if message.error() is None:
                records.append(message)
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                ended += 1
    consumer.close()
    return records


def test_another_client_reads_each_event_once_in_the_order_of_its_key_where_java_clients_place_it(
    broker: Broker, unique: Callable[[str], str]
) -> None:
    topic, beside = unique("load"), unique("beside")
    kafka = _made(broker.bootstrap, topic)
    settings = WorkloadSettings(keys=50, key_distribution=KeyDistribution.ZIPF, payload_bytes=80, payload_bytes_max=900)
    # Several requests, and batches that are too large for one.
    report = send_all(kafka, topic, Workload(settings), FullSpeed(70_000))
    assert (report.delivered, report.failed, report.first_error) == (70_000, 0, None)
    records = _read(broker.bootstrap, topic)
    events = [orjson.loads(record.value() or b"") for record in records]
    assert sorted(event["id"] for event in events) == list(range(70_000))
    last: dict[str, int] = {}
    for record, event in zip(records, events, strict=True):
        assert record.key() == event["key"].encode()
        assert record.timestamp() == (confluent_kafka.TIMESTAMP_CREATE_TIME, event["sent_us"] // 1000)
        assert event["seq"] == last.get(event["key"], -1) + 1
        last[event["key"]] = event["seq"]
    _made(broker.bootstrap, beside)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for key in last:
        producer.produce(beside, key=key.encode(), value=b"")
    assert producer.flush(20) == 0
    placed = {record.key(): record.partition() for record in _read(broker.bootstrap, beside)}
    assert {record.key(): record.partition() for record in records} == placed


def test_a_topic_that_is_not_there_is_told(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.loadgen.outlet._CONNECT_S_MAX", 0.3)
    kafka = KafkaSettings(brokers=(broker.bootstrap,))
    with pytest.raises(UnavailableError, match="never-made"):
        send_all(kafka, "never-made", Workload(WorkloadSettings()), FullSpeed(10))


def test_a_request_that_is_sent_twice_is_stored_once(broker: Broker, unique: Callable[[str], str]) -> None:
    topic = unique("twice")
    kafka = _made(broker.bootstrap, topic)

    async def send_twice() -> None:
        outlet = Outlet(kafka, topic)
        workload = Workload(WorkloadSettings(keys=10))
        times = np.arange(100, dtype=np.int64) + 1_730_000_000_000_000
        try:
            await outlet.connect()
            await outlet.send(workload.next_events(times))
            before = list(outlet._sequences)
            # As after an answer that got lost: the same events, under the same numbers.
            outlet._sequences = [0] * PARTITIONS
            await outlet.send(Workload(WorkloadSettings(keys=10)).next_events(times))
            assert outlet._sequences == before
            await outlet.send(workload.next_events(times))
        finally:
            outlet.close()

    asyncio.run(send_twice())
    assert len(_read(broker.bootstrap, topic)) == 200


def test_a_broker_that_stays_away_ends_the_load_and_what_is_not_known_to_be_stored_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millstream.loadgen.outlet._STORE_S_MAX", 1.0)
    with DevelopmentBroker() as broker:
        kafka = _made(broker.bootstrap, "left")
        pace = Schedule(constant_arrivals(10_000), 20_000)
        report = send_all(
            kafka, "left", Workload(WorkloadSettings()), pace, on_progress=lambda _progress: broker.kill()
        )
    assert 0 < report.delivered < 20_000
    assert report.delivered + report.failed == report.events == 20_000
    assert report.first_error is not None
    assert "left" in report.first_error


def test_a_broker_that_restarts_costs_time_and_neither_an_event_nor_the_order() -> None:
    with DevelopmentBroker() as broker:
        topic = "restarted"
        kafka = _made(broker.bootstrap, topic)
        restarts: list[Future[None]] = []

        def restart() -> None:
            broker.kill()
            broker.start()

        with ThreadPoolExecutor(1) as thread:

            def restart_once(_progress: object) -> None:
                if not restarts:
                    restarts.append(thread.submit(restart))

            pace = Schedule(constant_arrivals(10_000), 10_000)
            report = send_all(kafka, topic, Workload(WorkloadSettings(keys=50)), pace, on_progress=restart_once)
            restarts[0].result()
        assert report.failed == 0
        assert report.lateness is not None
        assert report.lateness.max > 100
        records = _read(broker.bootstrap, topic)
    events = [orjson.loads(record.value() or b"") for record in records]
    assert sorted(event["id"] for event in events) == list(range(10_000))
    last: dict[str, int] = {}
    for event in events:
        assert event["seq"] == last.get(event["key"], -1) + 1
        last[event["key"]] = event["seq"]
