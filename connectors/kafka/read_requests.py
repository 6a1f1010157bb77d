"""The requests of reading: fetch, committed offsets, offsets by time."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from millstream.connectors.kafka.transaction_requests import by_topic
from millstream.connectors.kafka.wire import Reader, Writer
from millstream.processor.partitions import TopicPartition

READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """From where, and how much, of one partition. By topic id, so that a topic made anew is not taken for the old."""

    topic_id: uuid.UUID
    partition: int
    offset: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition's part of the answer. `data` points into the answer's bytes.

    Both offsets are ends of the log: of what all in-sync replicas have, and of what of it is decided.
    """

    topic_id: uuid.UUID
    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[tuple[int, int]]
    data: memoryview


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    error: int
    partitions: Sequence[FetchedPartition]


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Fetch v13, committed records only, without a fetch session."""

    partitions: Sequence[FetchPartition]
    wait_ms_max: int
    bytes_min: int
    bytes_max: int

    API_KEY: ClassVar[int] = 1
    API_VERSION: ClassVar[int] = 13

    def write(self, writer: Writer) -> None:
        writer.int32(-1)
        writer.int32(self.wait_ms_max)
        writer.int32(self.bytes_min)
        writer.int32(self.bytes_max)
        writer.int8(READ_COMMITTED)
        writer.int32(0)  # session id
        writer.int32(-1)  # session epoch: none
        topics: dict[uuid.UUID, list[FetchPartition]] = {}
        for partition in self.partitions:
            topics.setdefault(partition.topic_id, []).append(partition)
        writer.array_size(len(topics))
        for topic_id, partitions in topics.items():
            writer.uuid(topic_id)
            writer.array(partitions, _write_fetch_partition)
            writer.no_tags()
        writer.array_size(0)  # forgotten topics
        writer.string("")  # rack
        writer.no_tags()

    def read(self, reader: Reader) -> FetchAnswer:
        reader.int32()
        error = reader.int16()
        reader.int32()
        topics = reader.array(_read_fetched_topic)
        return FetchAnswer(error, [part for topic in topics for part in topic])


def _write_fetch_partition(writer: Writer, partition: FetchPartition) -> None:
    writer.int32(partition.partition)
    writer.int32(-1)  # current leader epoch
    writer.int64(partition.offset)
    writer.int32(-1)  # last fetched epoch
    writer.int64(-1)  # log start offset, for followers
    writer.int32(partition.bytes_max)
    writer.no_tags()


def _read_fetched_topic(reader: Reader) -> list[FetchedPartition]:
    topic_id = reader.uuid()

    def read_partition(reader: Reader) -> FetchedPartition:
        partition = reader.int32()
        error = reader.int16()
        high_watermark = reader.int64()
        last_stable_offset = reader.int64()
        log_start_offset = reader.int64()
        aborted = reader.array(_read_aborted)
        reader.int32()  # preferred read replica
        data = reader.nullable_blob()
        reader.skip_tags()
        return FetchedPartition(
            topic_id,
            partition,
            error,
            high_watermark,
            last_stable_offset,
            log_start_offset,
            aborted,
            data or memoryview(b""),
        )

    partitions = reader.array(read_partition)
    reader.skip_tags()
    return partitions


def _read_aborted(reader: Reader) -> tuple[int, int]:
    aborted = (reader.int64(), reader.int64())
    reader.skip_tags()
    return aborted


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's offset of one partition; -1 where none is committed."""

    partition: TopicPartition
    offset: int
    metadata: str
    error: int


@dataclass(frozen=True, slots=True)
class OffsetFetchAnswer:
    error: int
    offsets: Sequence[CommittedOffset]


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest:
    """OffsetFetch v8 of stable offsets; one in an unfinished transaction is answered with an error, to be retried."""

    group: str
    partitions: Sequence[TopicPartition]

    API_KEY: ClassVar[int] = 9
    API_VERSION: ClassVar[int] = 8

    def write(self, writer: Writer) -> None:
        writer.array_size(1)
        writer.string(self.group)
        topics = by_topic(self.partitions)
        writer.array_size(len(topics))
        for topic, partitions in topics.items():
            writer.string(topic)
            writer.array(partitions, Writer.int32)
            writer.no_tags()
        writer.no_tags()
        writer.boolean(True)  # require stable
        writer.no_tags()

    def read(self, reader: Reader) -> OffsetFetchAnswer:
        reader.int32()
        return reader.only(_read_offset_group)


def _read_offset_group(reader: Reader) -> OffsetFetchAnswer:
    reader.string()

    def read_topic(reader: Reader) -> list[CommittedOffset]:
        topic = reader.string()

        def read_partition(reader: Reader) -> CommittedOffset:
            partition = TopicPartition(topic, reader.int32())
            offset = reader.int64()
            reader.int32()
            committed = CommittedOffset(partition, offset, reader.nullable_string() or "", reader.int16())
            reader.skip_tags()
            return committed

        partitions = reader.array(read_partition)
        reader.skip_tags()
        return partitions

    topics = reader.array(read_topic)
    answer = OffsetFetchAnswer(reader.int16(), [offset for topic in topics for offset in topic])
    reader.skip_tags()
    return answer


EARLIEST = -2
LATEST = -1


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """The first offset at or after the asked time; -1 where there is none."""

    partition: TopicPartition
    error: int
    offset: int


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    """ListOffsets v7: by timestamp in milliseconds, or EARLIEST, or LATEST (the last stable offset)."""

    timestamps: Mapping[TopicPartition, int]

    API_KEY: ClassVar[int] = 2
    API_VERSION: ClassVar[int] = 7

    def write(self, writer: Writer) -> None:
        writer.int32(-1)
        writer.int8(READ_COMMITTED)
        topics = by_topic(self.timestamps)
        writer.array_size(len(topics))
        for topic, partitions in topics.items():
            writer.string(topic)
            writer.array_size(len(partitions))
            for partition in partitions:
                writer.int32(partition)
                writer.int32(-1)
                writer.int64(self.timestamps[TopicPartition(topic, partition)])
                writer.no_tags()
            writer.no_tags()
        writer.no_tags()

    def read(self, reader: Reader) -> list[ListedOffset]:
        reader.int32()
        return [offset for topic in reader.array(_read_listed_topic) for offset in topic]


def _read_listed_topic(reader: Reader) -> list[ListedOffset]:
    topic = reader.string()

    def read_partition(reader: Reader) -> ListedOffset:
        partition = TopicPartition(topic, reader.int32())
        error = reader.int16()
        reader.int64()
        listed = ListedOffset(partition, error, reader.int64())
        reader.int32()
        reader.skip_tags()
        return listed

    partitions = reader.array(read_partition)
    reader.skip_tags()
    return partitions
