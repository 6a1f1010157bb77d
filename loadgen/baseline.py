"""What a careful user of confluent-kafka would write: consume, process, produce, exactly once, in batches.

It is the yardstick that the benchmark stands beside, so it is tuned as well as its client allows: batches in both
directions, many of them in one transaction, no wait that is not needed. It also stands in for the processor
where the generator and the judge are tested by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import confluent_kafka
import msgspec
import orjson

from millstream.loadgen.bench_functions import Payment, charge, mark

_INIT_S = 30.0
_ANSWER_S = 60.0
_POLL_S = 0.1

Message = dict[str, bytes | None]


class BaselineWork(Enum):
    """What is done to each event."""

    COPY = "copy"
    JSON = "json"
    TYPED_JSON = "typed-json"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineSettings:
    """One loop in one process. `name` is the group id and the transactional id."""

    name: str
    source: str
    target: str
    work: BaselineWork = BaselineWork.COPY
    batch_records_max: int = 5_000
    transaction_records_max: int = 200_000
    commit_interval_ms: int = 100


def run_baseline(
    confluent_arguments: Mapping[str, object],
    settings: BaselineSettings,
    *,
    should_stop: Callable[[int], bool],
) -> int:
    """Process until `should_stop(records committed so far)` says so; answers how many were committed.

    It is asked after each transaction and each idle tenth of a second. Raises what confluent-kafka raises: an
    unfinished transaction is then left to its timeout, as a crash would leave it.
    """
    consumer = _consumer(confluent_arguments, settings)
    producer = _producer(confluent_arguments, settings)
    committed = 0
    try:
        producer.init_transactions(_INIT_S)
        consumer.assign(_all_partitions(consumer, settings.source))
        while not should_stop(committed):
            committed += _transact(consumer, producer, settings)
    finally:
        consumer.close()
    return committed


def _transact(
    consumer: confluent_kafka.Consumer, producer: confluent_kafka.Producer, settings: BaselineSettings
) -> int:
    """One transaction with what comes within the commit interval, up to the most that one may hold; answers how many.

    Each batch is handed over as soon as it is processed, so that the client sends it while the next one is read.
    Nothing is begun while nothing comes.
    """
    change = _CHANGES[settings.work]
    deadline = time.monotonic() + settings.commit_interval_ms / 1000
    taken = 0
    while taken < settings.transaction_records_max and (left_s := deadline - time.monotonic()) > 0:
        room = min(settings.batch_records_max, settings.transaction_records_max - taken)
        messages = consumer.consume(room, min(left_s, _POLL_S))
        if not messages and not taken:
            return 0
        for message in messages:
            if (error := message.error()) is not None:
                raise confluent_kafka.KafkaException(error)
        if messages and not taken:
            producer.begin_transaction()
        _produce(producer, settings.target, [change(message) for message in messages])
        taken += len(messages)
    offsets = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), _ANSWER_S)
    producer.commit_transaction(_ANSWER_S)
    return taken


def changed(work: BaselineWork, message: confluent_kafka.Message) -> Message:
    """The record that the loop writes for a record that it read."""
    return _CHANGES[work](message)


def _all_partitions(consumer: confluent_kafka.Consumer, topic: str) -> list[confluent_kafka.TopicPartition]:
    """Every partition, from its committed offset on.

    One process needs no group protocol, and a comparison should not wait for a join.
    """
    partitions = consumer.list_topics(topic, timeout=_INIT_S).topics[topic].partitions
    return [confluent_kafka.TopicPartition(topic, number) for number in partitions]


def _produce(producer: confluent_kafka.Producer, topic: str, messages: list[Message]) -> None:
    taken = producer.produce_batch(topic, messages)
    if taken != len(messages):
        raise BufferError(f"the client took {taken} of {len(messages)} records; its queue is too small for a batch")


def _copied(message: confluent_kafka.Message) -> Message:
    return {"key": message.key(), "value": message.value()}


def _with_fee(message: confluent_kafka.Message) -> Message:
    event = orjson.loads(message.value())
    event["fee"] = event["amount"] * 0.01
    return {"key": message.key(), "value": orjson.dumps(event)}


def _with_fee_typed(message: confluent_kafka.Message) -> Message:
    return {"key": message.key(), "value": _encode(charge(_decode(message.value())))}


def _marked(message: confluent_kafka.Message) -> Message:
    return {"key": message.key(), "value": mark(message.value())}


_decode = msgspec.json.Decoder(Payment).decode
_encode = msgspec.json.Encoder().encode
_CHANGES: Mapping[BaselineWork, Callable[[confluent_kafka.Message], Message]] = {
    BaselineWork.COPY: _copied,
    BaselineWork.JSON: _with_fee,
    BaselineWork.TYPED_JSON: _with_fee_typed,
    BaselineWork.BYTES: _marked,
}


def _consumer(confluent_arguments: Mapping[str, object], settings: BaselineSettings) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            **confluent_arguments,
            "group.id": settings.name,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            # Longer queues and larger fetches cost the client up to twice the CPU time for each event, in memory that
            # it has to have anew each time.
            "queued.min.messages": 100_000,
            "queued.max.messages.kbytes": 128 * 1024,
            "fetch.message.max.bytes": 1 << 20,
            "fetch.wait.max.ms": 50,
            # At its default of a second the reader starves between full queues: 216K instead of 1.5M events/s.
            "fetch.queue.backoff.ms": 2,
        }
    )


def _producer(confluent_arguments: Mapping[str, object], settings: BaselineSettings) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {
            **confluent_arguments,
            "transactional.id": settings.name,
            "partitioner": "murmur2_random",
            "linger.ms": 2,
            "batch.size": 1 << 20,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 2 * settings.transaction_records_max,
            "queue.buffering.max.kbytes": 1 << 20,
            "delivery.report.only.error": True,
        }
    )
