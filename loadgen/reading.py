"""Reads whole topics as an outsider would: committed records only, every partition, in no consumer group.

The judge must share nothing with the system that it judges, so this stands on confluent-kafka (librdkafka), and knows
nothing of how the processor reads or writes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

import confluent_kafka
import numpy as np
from confluent_kafka.admin import TopicMetadata

from millstream.loadgen.accounting import Observed
from millstream.loadgen.event_fields import event_fields
from millstream.loadgen.passing import PASSING_S, UNKNOWN, is_passing, patiently
from millstream.processor.columns import Int64s
from millstream.processor.errors import SettingsError, UnavailableError
from millstream.processor.partitions import TopicPartition

# Few enough to stay in a core's cache on their way from the client to columns, which halves the cost of a record.
READ_RECORDS_MAX = 1000
_METADATA_S = 15.0


class KeyNumbers(dict[bytes | None, int]):
    """Numbers Kafka keys in the order in which they are first met, so that books can be kept in arrays."""

    def __missing__(self, key: bytes | None) -> int:
        number = self[key] = len(self)
        return number


@dataclass(frozen=True, slots=True)
class Reading:
    """What one read brought: events, records that are none, and when they arrived (microseconds since the epoch)."""

    events: Observed
    foreign: int
    arrived_us: int

    def __len__(self) -> int:
        return len(self.events) + self.foreign


class TopicReader:
    """Reads all partitions of some topics from their beginnings. A context manager; opening assigns.

    `partitions[i]` is what the number i means in the events' `partition` column.
    """

    def __init__(self, confluent_arguments: Mapping[str, object], topics: Sequence[str], keys: KeyNumbers) -> None:
        self._arguments = confluent_arguments
        self._topics = tuple(topics)
        self._keys = keys
        self._consumer: confluent_kafka.Consumer | None = None
        self._first_partition: dict[str, int] = {}
        self._ended: set[int] = set()
        self._sure_from = 0.0
        self.partitions: tuple[TopicPartition, ...] = ()

    def __enter__(self) -> Self:
        """Finds the topics and begins to read. Raises SettingsError for topics that do not exist."""
        # What has to be compiled is compiled now, not while the first records wait to be noticed.
        event_fields([])
        self._consumer = confluent_kafka.Consumer(
            {
                **self._arguments,
                # The client wants a group's name; nothing is ever joined or committed under it.
                "group.id": f"millstream-judge-{uuid.uuid4().hex}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "queued.min.messages": 200_000,
                "queued.max.messages.kbytes": 128 * 1024,
                "fetch.message.max.bytes": 4 << 20,
                "fetch.wait.max.ms": 100,
                # The default of a second starves a reader that is faster than its queue fills.
                "fetch.queue.backoff.ms": 2,
                "check.crcs": True,
            }
        )
        try:
            self._assign(self._consumer)
        except BaseException:
            self._consumer.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    @property
    def is_at_end(self) -> bool:
        """Whether every partition had been read up to its last committed record when it was last asked."""
        return len(self._ended) == len(self.partitions)

    def ends(self) -> dict[TopicPartition, int]:
        """For each partition, the offset after its last committed record, as the broker says now."""
        consumer = self._open_consumer()
        return {where: _bounds(consumer, where)[1] for where in self.partitions}

    def read(self, timeout_s: float) -> Reading:
        """Events as soon as there are any, and all that have arrived with them; none after `timeout_s`."""
        consumer = self._open_consumer()
        # Waiting for one and then taking what is there, since a timed batch would wait out its time for more.
        first = consumer.poll(timeout_s)
        arrived_us = time.time_ns() // 1000
        if first is None:
            return Reading(_NOTHING, 0, arrived_us)
        messages = [first, *consumer.consume(READ_RECORDS_MAX, 0)]
        records = messages
        if any(map(_error, messages)):
            records = [message for message in messages if message.error() is None]
        events, foreign = self._decoded(records)
        self._note_ends(messages, len(records))
        return Reading(events, foreign, arrived_us)

    def _assign(self, consumer: confluent_kafka.Consumer) -> None:
        partitions: list[TopicPartition] = []
        missing = []
        for topic in self._topics:
            found = _found(consumer, topic)
            if not found.partitions:
                missing.append(f"topic {topic!r} does not exist; name one that does, or create it first")
            self._first_partition[topic] = len(partitions)
            partitions += [TopicPartition(topic, number) for number in sorted(found.partitions)]
        if missing:
            raise SettingsError("nothing can be read", missing)
        self.partitions = tuple(partitions)
        self._sure_from = time.monotonic() + PASSING_S
        # Not OFFSET_BEGINNING: the client gives a partition up whose leader has not heard of it when it asks for that.
        consumer.assign(
            [
                confluent_kafka.TopicPartition(where.topic, where.partition, _bounds(consumer, where)[0])
                for where in self.partitions
            ]
        )

    def _open_consumer(self) -> confluent_kafka.Consumer:
        if self._consumer is None:
            raise RuntimeError("a reader is used inside its `with` block only")
        return self._consumer

    def _partition_number(self, message: confluent_kafka.Message) -> int:
        return self._first_partition[message.topic()] + int(message.partition())

    def _note_ends(self, messages: list[confluent_kafka.Message], record_count: int) -> None:
        if record_count == len(messages):
            if self._ended:
                self._ended.difference_update({self._partition_number(message) for message in messages})
            return
        for message in messages:
            error = message.error()
            if error is None:
                self._ended.discard(self._partition_number(message))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                self._ended.add(self._partition_number(message))
            elif is_passing(error) and (error.code() not in UNKNOWN or time.monotonic() < self._sure_from):
                # The client goes on asking; of a topic that is gone it would never hear again.
                continue
            elif error.code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise SettingsError("nothing can be read", [f"topic {message.topic()!r} does not exist any more"])
            elif error.fatal() or not error.retriable():
                raise UnavailableError(f"reading {message.topic()}-{message.partition()} failed: {error.str()}")

    def _decoded(self, records: list[confluent_kafka.Message]) -> tuple[Observed, int]:
        fields = event_fields(list(map(_value, records)))
        foreign = int(len(records) - np.count_nonzero(fields.is_event))
        if len(self._topics) == 1:
            partition = _int64s(map(_partition, records), len(records))
        else:
            partition = _int64s(map(self._partition_number, records), len(records))
        events = Observed(
            event_id=fields.event_id,
            key=_int64s(map(self._keys.__getitem__, map(_key, records)), len(records)),
            seq=fields.seq,
            sent_us=fields.sent_us,
            partition=partition,
            offset=_int64s(map(_offset, records), len(records)),
        )
        return (events.take(fields.is_event) if foreign else events), foreign


def _found(consumer: confluent_kafka.Consumer, topic: str) -> TopicMetadata:
    """What the cluster says of a topic; nothing where there is none. Raises UnavailableError where nobody can say."""

    def ask() -> TopicMetadata:
        found = consumer.list_topics(topic, timeout=_METADATA_S).topics[topic]
        if found.error is not None:
            raise confluent_kafka.KafkaException(found.error)
        return found

    try:
        return patiently(ask)
    except confluent_kafka.KafkaException as error:
        if error.args[0].code() in UNKNOWN:
            return TopicMetadata()
        raise UnavailableError(f"the brokers do not answer for topic {topic!r}: {error.args[0]}") from error


def _bounds(consumer: confluent_kafka.Consumer, where: TopicPartition) -> tuple[int, int]:
    """The offset of the first record of a partition, and that after its last committed one."""
    asked = confluent_kafka.TopicPartition(where.topic, where.partition)
    try:
        first, end = patiently(partial(consumer.get_watermark_offsets, asked, timeout=_METADATA_S))
    except confluent_kafka.KafkaException as error:
        raise UnavailableError(
            f"the broker does not say where {where.topic}-{where.partition} begins and ends: {error.args[0]}"
        ) from error
    return int(first), int(end)


def _int64s(numbers: Iterable[int], count: int) -> Int64s:
    return np.fromiter(numbers, np.int64, count)


# Called by map, hundreds of thousands of times a second: without a frame of Python for each message.
_error, _key, _value = confluent_kafka.Message.error, confluent_kafka.Message.key, confluent_kafka.Message.value
_partition, _offset = confluent_kafka.Message.partition, confluent_kafka.Message.offset
_NOTHING = Observed(*(np.empty(0, np.int64) for _ in range(6)))
