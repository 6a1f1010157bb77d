"""The requests of Transactions V2 (KIP-890): fence, produce, offsets, end.

Produce and TxnOffsetCommit add their partitions and group to the transaction implicitly; EndTxn answers with the
producer id and epoch to use next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from millstream.connectors.kafka.wire import Reader, Writer
from millstream.processor.partitions import TopicPartition


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The producer id and epoch that a transaction's requests carry."""

    producer_id: int
    epoch: int


NO_PRODUCER = ProducerIdentity(-1, -1)


@dataclass(frozen=True, slots=True)
class InitProducerIdAnswer:
    error: int
    identity: ProducerIdentity


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest:
    """InitProducerId v5, always without an expected identity.

    With an expected identity and an open transaction the broker compares the id alone, so that a stale caller could
    abort a newer owner's work. A transactional id of None asks for an id of a producer without transactions.
    """

    transactional_id: str | None
    transaction_timeout_ms: int

    API_KEY: ClassVar[int] = 22
    API_VERSION: ClassVar[int] = 5

    def write(self, writer: Writer) -> None:
        writer.string(self.transactional_id)
        writer.int32(self.transaction_timeout_ms)
        writer.int64(-1)
        writer.int16(-1)
        writer.no_tags()

    def read(self, reader: Reader) -> InitProducerIdAnswer:
        reader.int32()
        return InitProducerIdAnswer(reader.int16(), ProducerIdentity(reader.int64(), reader.int16()))


@dataclass(frozen=True, slots=True)
class ProduceAnswer:
    """The answer for one partition."""

    partition: TopicPartition
    error: int
    message: str | None


ALL_IN_SYNC = -1
LEADER_ALONE = 1


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """Produce v12: one record batch for each partition. Without a transactional id it is an ordinary produce.

    `acks` says who has stored the batches when it is answered.
    """

    transactional_id: str | None
    batches: Mapping[TopicPartition, bytes | memoryview]
    timeout_ms: int
    acks: int = ALL_IN_SYNC

    API_KEY: ClassVar[int] = 0
    API_VERSION: ClassVar[int] = 12

    def write(self, writer: Writer) -> None:
        writer.string(self.transactional_id)
        writer.int16(self.acks)
        writer.int32(self.timeout_ms)
        topics = by_topic(self.batches)
        writer.array_size(len(topics))
        for topic, partitions in topics.items():
            writer.string(topic)
            writer.array_size(len(partitions))
            for partition in partitions:
                writer.int32(partition)
                writer.blob([self.batches[TopicPartition(topic, partition)]])
                writer.no_tags()
            writer.no_tags()
        writer.no_tags()

    def read(self, reader: Reader) -> list[ProduceAnswer]:
        return [answer for topic in reader.array(_read_produced_topic) for answer in topic]


def by_topic(partitions: Mapping[TopicPartition, object] | Sequence[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers gathered under their topics, in order of first appearance."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def _read_produced_topic(reader: Reader) -> list[ProduceAnswer]:
    topic = reader.string()

    def read_partition(reader: Reader) -> ProduceAnswer:
        partition = reader.int32()
        error = reader.int16()
        for _ in range(3):  # base offset, append time, log start offset
            reader.int64()
        reader.array(_skip_record_error)
        message = reader.nullable_string()
        reader.skip_tags()
        return ProduceAnswer(TopicPartition(topic, partition), error, message)

    answers = reader.array(read_partition)
    reader.skip_tags()
    return answers


def _skip_record_error(reader: Reader) -> None:
    reader.int32()
    reader.nullable_string()
    reader.skip_tags()


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """The position to go on from, and a note that comes back with it."""

    offset: int
    metadata: str = ""


def _write_offsets(writer: Writer, offsets: Mapping[TopicPartition, OffsetToCommit]) -> None:
    topics = by_topic(offsets)
    writer.array_size(len(topics))
    for topic, partitions in topics.items():
        writer.string(topic)
        writer.array_size(len(partitions))
        for partition in partitions:
            commit = offsets[TopicPartition(topic, partition)]
            writer.int32(partition)
            writer.int64(commit.offset)
            writer.int32(-1)
            writer.string(commit.metadata)
            writer.no_tags()
        writer.no_tags()
    writer.no_tags()


def _read_committed(reader: Reader) -> list[tuple[TopicPartition, int]]:
    def read_topic(reader: Reader) -> list[tuple[TopicPartition, int]]:
        topic = reader.string()

        def read_partition(reader: Reader) -> tuple[TopicPartition, int]:
            answer = (TopicPartition(topic, reader.int32()), reader.int16())
            reader.skip_tags()
            return answer

        answers = reader.array(read_partition)
        reader.skip_tags()
        return answers

    reader.int32()
    return [answer for topic in reader.array(read_topic) for answer in topic]


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequest:
    """TxnOffsetCommit v5, outside any group generation: the group is an offset store."""

    transactional_id: str
    group: str
    identity: ProducerIdentity
    offsets: Mapping[TopicPartition, OffsetToCommit]

    API_KEY: ClassVar[int] = 28
    API_VERSION: ClassVar[int] = 5

    def write(self, writer: Writer) -> None:
        writer.string(self.transactional_id)
        writer.string(self.group)
        writer.int64(self.identity.producer_id)
        writer.int16(self.identity.epoch)
        writer.int32(-1)  # generation
        writer.string("")  # member
        writer.string(None)  # instance
        _write_offsets(writer, self.offsets)

    def read(self, reader: Reader) -> list[tuple[TopicPartition, int]]:
        return _read_committed(reader)


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest:
    """OffsetCommit v8, outside any group generation and outside any transaction (at least once)."""

    group: str
    offsets: Mapping[TopicPartition, OffsetToCommit]

    API_KEY: ClassVar[int] = 8
    API_VERSION: ClassVar[int] = 8

    def write(self, writer: Writer) -> None:
        writer.string(self.group)
        writer.int32(-1)
        writer.string("")
        writer.string(None)
        _write_offsets(writer, self.offsets)

    def read(self, reader: Reader) -> list[tuple[TopicPartition, int]]:
        return _read_committed(reader)


@dataclass(frozen=True, slots=True)
class EndTxnAnswer:
    error: int
    identity: ProducerIdentity


@dataclass(frozen=True, slots=True)
class EndTxnRequest:
    """EndTxn v5 that commits. Repeating it with the same identity is safe; the broker answers as it did before.

    An abort is never sent: whatever goes wrong ends in a new fence, which aborts (design, invariant 4).
    """

    transactional_id: str
    identity: ProducerIdentity

    API_KEY: ClassVar[int] = 26
    API_VERSION: ClassVar[int] = 5

    def write(self, writer: Writer) -> None:
        writer.string(self.transactional_id)
        writer.int64(self.identity.producer_id)
        writer.int16(self.identity.epoch)
        writer.boolean(True)
        writer.no_tags()

    def read(self, reader: Reader) -> EndTxnAnswer:
        reader.int32()
        return EndTxnAnswer(reader.int16(), ProducerIdentity(reader.int64(), reader.int16()))
