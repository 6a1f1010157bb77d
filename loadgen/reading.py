"""Reads whole topics as an outsider would: committed records only, every partition, in no consumer group.

The judge must share nothing with the system that it judges, so this stands on confluent-kafka (librdkafka) and
decodes with msgspec, and knows nothing of how the processor reads or writes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, Self

import confluent_kafka
import msgspec
import numpy as np

from millstream.loadgen.accounting import Observed
from millstream.processor.columns import Int64s, TopicPartition
from millstream.processor.errors import SettingsError, UnavailableError

READ_RECORDS_MAX = 20_000
_METADATA_S = 15.0

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _EventFields(msgspec.Struct, gc=False):
    """What the judge needs of an event; all other fields are skipped without being built."""

    id: _Int64
    seq: _Int64
    sent_us: _Int64


_decoder = msgspec.json.Decoder(_EventFields)


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
        self.partitions: tuple[TopicPartition, ...] = ()

    def __enter__(self) -> Self:
        """Finds the topics and begins to read. Raises SettingsError for topics that do not exist."""
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
        try:
            return {
                where: int(
                    consumer.get_watermark_offsets(
                        confluent_kafka.TopicPartition(where.topic, where.partition), timeout=_METADATA_S
                    )[1]
                )
                for where in self.partitions
            }
        except confluent_kafka.KafkaException as error:
            raise UnavailableError(f"the broker does not say where topics end: {error.args[0]}") from error

    def read(self, timeout_s: float) -> Reading:
        """Events as soon as there are any, and all that have arrived with them; none after `timeout_s`."""
        consumer = self._open_consumer()
        # Waiting for one and then taking what is there, since a timed batch would wait out its time for more.
        first = consumer.poll(timeout_s)
        arrived_us = time.time_ns() // 1000
        if first is None:
            return Reading(_columns([], [], [], []), 0, arrived_us)
        messages = [first, *consumer.consume(READ_RECORDS_MAX, 0)]
        records = [message for message in messages if message.error() is None]
        events, foreign = self._decoded(records)
        self._note_ends(messages, len(records))
        return Reading(events, foreign, arrived_us)

    def _assign(self, consumer: confluent_kafka.Consumer) -> None:
        partitions: list[TopicPartition] = []
        missing = []
        for topic in self._topics:
            try:
                found = consumer.list_topics(topic, timeout=_METADATA_S).topics[topic]
            except confluent_kafka.KafkaException as error:
                raise UnavailableError(f"the brokers do not answer: {error.args[0]}") from error
            if found.error is not None or not found.partitions:
                missing.append(f"topic {topic!r} does not exist; name one that does, or create it first")
            self._first_partition[topic] = len(partitions)
            partitions += [TopicPartition(topic, number) for number in sorted(found.partitions)]
        if missing:
            raise SettingsError("nothing can be read", missing)
        self.partitions = tuple(partitions)
        consumer.assign(
            [confluent_kafka.TopicPartition(t, p, confluent_kafka.OFFSET_BEGINNING) for t, p in self.partitions]
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
            elif error.code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise SettingsError("nothing can be read", [f"topic {message.topic()!r} does not exist any more"])
            elif error.fatal() or not error.retriable():
                raise UnavailableError(f"reading {message.topic()}-{message.partition()} failed: {error.str()}")

    def _decoded(self, records: list[confluent_kafka.Message]) -> tuple[Observed, int]:
        values = [record.value() for record in records]
        fields = _decoded_together(values)
        foreign = 0
        if fields is None:
            one_by_one = [_decoded_alone(value) for value in values]
            records = [record for record, event in zip(records, one_by_one, strict=True) if event is not None]
            fields = [event for event in one_by_one if event is not None]
            foreign = len(values) - len(fields)
        keys = list(map(self._keys.__getitem__, [record.key() for record in records]))
        if len(self._topics) == 1:
            partitions = [record.partition() for record in records]
        else:
            partitions = [self._partition_number(record) for record in records]
        return _columns(fields, keys, partitions, [record.offset() for record in records]), foreign


def _decoded_together(values: list[bytes | None]) -> list[_EventFields] | None:
    """All values at once; None where one of them is not an event, or not one line."""
    try:
        fields = _decoder.decode_lines(b"\n".join(values))  # type: ignore[arg-type]  # None is what the except is for
    except (msgspec.DecodeError, TypeError, UnicodeDecodeError):
        return None
    return fields if len(fields) == len(values) else None


def _decoded_alone(value: bytes | None) -> _EventFields | None:
    if value is None:
        return None
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _columns(fields: list[_EventFields], keys: list[int], partitions: list[int], offsets: list[int]) -> Observed:
    count = len(fields)
    return Observed(
        event_id=np.fromiter([event.id for event in fields], np.int64, count),
        key=_int64s(keys),
        seq=np.fromiter([event.seq for event in fields], np.int64, count),
        sent_us=np.fromiter([event.sent_us for event in fields], np.int64, count),
        partition=_int64s(partitions),
        offset=_int64s(offsets),
    )


def _int64s(numbers: list[int]) -> Int64s:
    return np.fromiter(numbers, np.int64, len(numbers))
