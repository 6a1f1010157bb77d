"""The generator and the judge on a real broker; a small transactional copy loop stands in for the processor.

The judge must be able to fail, so most of these write an output that is wrong in one place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.connectors.kafka.pytest_broker import Broker
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.baseline import BaselineSettings, BaselineWork, run_baseline
from millstream.loadgen.produce import send_all
from millstream.loadgen.schedule import Arrivals, FullSpeed, Pace, Schedule, arrivals_at
from millstream.loadgen.topics import TopicAdmin
from millstream.loadgen.verdict import Verdict
from millstream.loadgen.verify import VerifySettings, judge
from millstream.loadgen.workload import Workload, WorkloadSettings
from millstream.processor.errors import SettingsError

pytestmark = pytest.mark.broker

EVENTS = 5_000
PARTITIONS = 3
Kafka = dict[str, object]
Topics = tuple[str, str]
KeyedValues = list[tuple[bytes | None, bytes | None]]


@pytest.fixture
def kafka(broker: Broker) -> Kafka:
    return {"bootstrap.servers": broker.bootstrap}


@pytest.fixture
def topics(kafka: Kafka, unique: Callable[[str], str]) -> Topics:
    admin = TopicAdmin(kafka)
    names = unique("input"), unique("output")
    for name in names:
        admin.create(name, partitions=PARTITIONS)
    return names


@pytest.fixture
def loaded(kafka: Kafka, topics: Topics) -> KeyedValues:
    """The input's records, partition by partition, which is an order that an honest pipeline may write them in."""
    _load(kafka, topics[0], FullSpeed(EVENTS))
    return _read_all(kafka, topics[0])


def _settings(kafka: Kafka) -> KafkaSettings:
    return KafkaSettings(brokers=(str(kafka["bootstrap.servers"]),))


def _load(kafka: Kafka, topic: str, pace: Pace, first_id: int = 0) -> None:
    report = send_all(_settings(kafka), topic, Workload(WorkloadSettings(keys=50, first_id=first_id)), pace)
    assert report.failed == 0


def _read_all(kafka: Kafka, topic: str) -> KeyedValues:
    consumer = confluent_kafka.Consumer({**kafka, "group.id": "unused", "enable.partition.eof": True})
    partitions = range(PARTITIONS)
    consumer.assign([confluent_kafka.TopicPartition(topic, p, confluent_kafka.OFFSET_BEGINNING) for p in partitions])
    records: KeyedValues = []
    ended = 0
    while ended < PARTITIONS:
        for message in consumer.consume(10_000, 0.05):
            if message.error():
                ended += 1
            else:
                records.append((message.key(), message.value()))
    consumer.close()
    return records


def _write(kafka: Kafka, topic: str, records: KeyedValues) -> None:
    producer = confluent_kafka.Producer({**kafka, "partitioner": "murmur2_random", "enable.idempotence": True})
    for key, value in records:
        producer.produce(topic, key=key, value=value)
    assert producer.flush(20) == 0


def _judge(kafka: Kafka, topics: Topics, **changes: Any) -> Verdict:
    bounds: dict[str, Any] = {"patience_s": 1.0, "settle_s": 0.2}
    return judge(kafka, VerifySettings(inputs=topics[:1], outputs=topics[1:], **(bounds | changes)))


def _offences(verdict: Verdict) -> dict[str, int]:
    names = ("lost", "doubled", "unexpected", "altered", "reordered", "scattered")
    return {name: count for name in names if (count := getattr(verdict.balance, name))}


@pytest.mark.parametrize("work", BaselineWork)
def test_an_honest_transactional_pipeline_is_judged_clean_and_its_offsets_are_checked(
    kafka: Kafka, topics: Topics, loaded: KeyedValues, work: BaselineWork
) -> None:
    name = topics[1] + "-group"
    settings = BaselineSettings(name=name, source=topics[0], target=topics[1], work=work)
    deadline = time.monotonic() + 60
    run_baseline(kafka, settings, should_stop=lambda done: done >= EVENTS or time.monotonic() > deadline)
    verdict = _judge(kafka, topics, group=name)
    assert verdict.is_clean, verdict.sentences()
    assert verdict.offsets_behind == 0
    assert verdict.balance.inputs == EVENTS
    behind = _judge(kafka, topics, group=name + "-another")
    assert behind.offsets_behind == EVENTS
    assert not behind.is_clean


def test_a_lost_event_is_found_and_named_by_its_place_in_the_input(
    kafka: Kafka, topics: Topics, loaded: KeyedValues
) -> None:
    # The first record read stands at offset 0 of the partition that was read first; only one partition has it there.
    _write(kafka, topics[1], loaded[1:])
    verdict = _judge(kafka, topics)
    assert _offences(verdict) == {"lost": 1}
    (place,) = verdict.offenders["lost"]
    assert place.startswith(topics[0] + "-")
    assert "@0 (id " in place
    assert not verdict.is_clean


def test_a_doubled_event_is_found(kafka: Kafka, topics: Topics, loaded: KeyedValues) -> None:
    _write(kafka, topics[1], [*loaded, loaded[EVENTS // 2]])
    verdict = _judge(kafka, topics)
    assert _offences(verdict) == {"doubled": 1}
    assert len(verdict.offenders["doubled"]) == 1


def test_two_swapped_events_of_one_key_are_found(kafka: Kafka, topics: Topics, loaded: KeyedValues) -> None:
    key = loaded[0][0]
    first, second = [row for row, (other, _) in enumerate(loaded) if other == key][10:12]
    loaded[first], loaded[second] = loaded[second], loaded[first]
    _write(kafka, topics[1], loaded)
    verdict = _judge(kafka, topics)
    assert _offences(verdict) == {"reordered": 1}
    assert verdict.offenders["reordered"][0].startswith(topics[1] + "-")


@pytest.mark.parametrize(
    "foreign",
    [
        (b"k-0001", b'{"id":77777777,"key":"k-0001","seq":0,"sent_us":1}'),
        (b"k-0001", b"not an event"),
        (b"k-0001", b""),
        (None, None),
    ],
)
def test_a_foreign_record_in_the_output_is_found(
    kafka: Kafka, topics: Topics, loaded: KeyedValues, foreign: tuple[bytes | None, bytes | None]
) -> None:
    _write(kafka, topics[1], [foreign, *loaded])
    assert _offences(_judge(kafka, topics)) == {"unexpected": 1}


def test_values_under_each_others_keys_are_found(kafka: Kafka, topics: Topics, loaded: KeyedValues) -> None:
    keys = [key for key, _ in loaded]
    other = next(row for row, key in enumerate(keys) if key != keys[0])
    loaded[0], loaded[other] = (keys[other], loaded[0][1]), (keys[0], loaded[other][1])
    _write(kafka, topics[1], loaded)
    verdict = _judge(kafka, topics)
    assert verdict.balance.altered == 2
    assert not verdict.is_clean


def test_outputs_of_an_aborted_transaction_do_not_count(kafka: Kafka, topics: Topics, loaded: KeyedValues) -> None:
    producer = confluent_kafka.Producer(
        {
            **kafka,
            "partitioner": "murmur2_random",
            "transactional.id": topics[1],
            "queue.buffering.max.messages": 50_000,
        }
    )
    producer.init_transactions(20)
    for finish in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for key, value in loaded:
            producer.produce(topics[1], key=key, value=value)
        assert producer.flush(20) == 0
        finish(20)
    verdict = _judge(kafka, topics)
    assert verdict.is_clean, verdict.sentences()
    assert verdict.balance.outputs == EVENTS


def test_an_open_transaction_is_reported_and_its_outputs_do_not_count(
    kafka: Kafka, topics: Topics, loaded: KeyedValues
) -> None:
    _write(kafka, topics[1], loaded[:-1])
    producer = confluent_kafka.Producer(
        {**kafka, "partitioner": "murmur2_random", "transactional.id": topics[1] + "-open"}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topics[1], key=loaded[-1][0], value=loaded[-1][1])
    producer.flush(20)
    verdict = _judge(kafka, topics)
    assert verdict.uncommitted_records == 1
    assert _offences(verdict) == {"lost": 1}
    producer.commit_transaction(20)
    assert _judge(kafka, topics).is_clean


def test_a_wrong_or_an_empty_topic_is_said_to_be_so(kafka: Kafka, topics: Topics, unique: Callable[[str], str]) -> None:
    assert "holds no events of a load" in " ".join(_judge(kafka, topics, patience_s=0.3).remarks)
    _load(kafka, topics[0], FullSpeed(100))
    verdict = _judge(kafka, topics, patience_s=0.3)
    assert not verdict.is_clean
    assert "holds no committed record" in " ".join(verdict.remarks)
    _load(kafka, topics[1], FullSpeed(100), first_id=1_000)
    assert "a wrong topic?" in " ".join(_judge(kafka, topics, patience_s=0.3).remarks)
    with pytest.raises(SettingsError, match="does not exist"):
        _judge(kafka, (topics[0], unique("never-made")))


def test_a_judge_that_follows_measures_latency_from_the_intended_send_time(kafka: Kafka, topics: Topics) -> None:
    baseline = BaselineSettings(name=topics[1], source=topics[0], target=topics[1], commit_interval_ms=20)
    deadline = time.monotonic() + 60
    pace = Schedule(arrivals_at(Arrivals.POISSON, 5_000, seed=1), EVENTS)
    with ThreadPoolExecutor() as pool:
        began = Event()
        settings = VerifySettings(inputs=topics[:1], outputs=topics[1:], follow_events=EVENTS, settle_s=0.2)
        verdict = pool.submit(judge, kafka, settings, on_progress=lambda _progress: began.set())
        assert began.wait(30)
        processed = pool.submit(
            run_baseline, kafka, baseline, should_stop=lambda done: done >= EVENTS or time.monotonic() > deadline
        )
        _load(kafka, topics[0], pace)
        processed.result()
    found = verdict.result()
    assert found.is_clean, found.sentences()
    latency = found.latency
    assert latency is not None
    assert 0 < latency.p50 <= latency.p99 <= latency.max
    assert found.events_per_s is not None
    assert found.events_per_s <= 5_500
    assert found.output_pause_ms is not None
    assert not found.remarks


def test_a_judge_that_comes_late_says_so_and_measures_nothing_older(
    kafka: Kafka, topics: Topics, loaded: KeyedValues
) -> None:
    _write(kafka, topics[1], loaded)
    verdict = _judge(kafka, topics, follow_events=EVENTS)
    assert verdict.is_clean
    assert verdict.latency is None
    assert f"first {EVENTS} offsets" in " ".join(verdict.remarks)


def test_records_that_the_broker_refuses_are_counted_and_the_reason_is_told(
    kafka: Kafka, unique: Callable[[str], str]
) -> None:
    topic = unique("tiny")
    tiny = NewTopic(topic, num_partitions=1, config={"max.message.bytes": "200"})
    admin = AdminClient(kafka)
    admin.create_topics([tiny])[topic].result(20)
    report = send_all(_settings(kafka), topic, Workload(WorkloadSettings(payload_bytes=500)), FullSpeed(10))
    assert (report.events, report.delivered, report.failed) == (10, 0, 10)
    assert report.first_error
