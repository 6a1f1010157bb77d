"""The requests of administration: creating topics, reading their settings, deleting records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from millstream.connectors.kafka.transaction_requests import by_topic
from millstream.connectors.kafka.wire import Reader, Writer
from millstream.processor.partitions import TopicPartition

REPLICATION_DEFAULT = -1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created."""

    name: str
    partitions: int
    replication: int = REPLICATION_DEFAULT
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicAnswer:
    """What became of one topic."""

    name: str
    error: int
    message: str | None


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest:
    """CreateTopics v5."""

    topics: Sequence[NewTopic]
    timeout_ms: int

    API_KEY: ClassVar[int] = 19
    API_VERSION: ClassVar[int] = 5

    def write(self, writer: Writer) -> None:
        writer.array(self.topics, _write_new_topic)
        writer.int32(self.timeout_ms)
        writer.boolean(False)  # validate only
        writer.no_tags()

    def read(self, reader: Reader) -> list[TopicAnswer]:
        reader.int32()
        return reader.array(_read_created_topic)


def _write_new_topic(writer: Writer, topic: NewTopic) -> None:
    writer.string(topic.name)
    writer.int32(topic.partitions)
    writer.int16(topic.replication)
    writer.array_size(0)  # manual assignments
    writer.array(topic.settings.items(), _write_setting)
    writer.no_tags()


def _write_setting(writer: Writer, setting: tuple[str, str]) -> None:
    name, value = setting
    writer.string(name)
    writer.string(value)
    writer.no_tags()


def _read_created_topic(reader: Reader) -> TopicAnswer:
    answer = TopicAnswer(reader.string(), reader.int16(), reader.nullable_string())
    reader.int32()
    reader.int16()
    reader.array(_skip_created_setting)
    reader.skip_tags()
    return answer


def _skip_created_setting(reader: Reader) -> None:
    reader.string()
    reader.nullable_string()
    reader.boolean()
    reader.int8()
    reader.boolean()
    reader.skip_tags()


_TOPIC_RESOURCE = 2


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """The value of the asked setting for one topic."""

    topic: str
    error: int
    value: str | None


@dataclass(frozen=True, slots=True)
class DescribeTopicSettingRequest:
    """DescribeConfigs v4: one setting of several topics."""

    topics: Sequence[str]
    setting: str

    API_KEY: ClassVar[int] = 32
    API_VERSION: ClassVar[int] = 4

    def write(self, writer: Writer) -> None:
        writer.array_size(len(self.topics))
        for topic in self.topics:
            writer.int8(_TOPIC_RESOURCE)
            writer.string(topic)
            writer.array([self.setting], Writer.string)
            writer.no_tags()
        writer.boolean(False)  # synonyms
        writer.boolean(False)  # documentation
        writer.no_tags()

    def read(self, reader: Reader) -> list[TopicSetting]:
        reader.int32()
        return reader.array(_read_described)


def _read_described(reader: Reader) -> TopicSetting:
    error = reader.int16()
    reader.nullable_string()
    reader.int8()
    topic = reader.string()
    values = reader.array(_read_described_value)
    reader.skip_tags()
    return TopicSetting(topic, error, values[0] if values else None)


def _read_described_value(reader: Reader) -> str | None:
    reader.string()
    value = reader.nullable_string()
    reader.boolean()
    reader.int8()
    reader.boolean()
    reader.array(_skip_synonym)
    reader.int8()
    reader.nullable_string()
    reader.skip_tags()
    return value


def _skip_synonym(reader: Reader) -> None:
    reader.string()
    reader.nullable_string()
    reader.int8()
    reader.skip_tags()


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """Where a partition's log starts now; -1 where there was an error."""

    partition: TopicPartition
    log_start: int
    error: int


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest:
    """DeleteRecords v2, at the leader of the partitions: everything before an offset."""

    before: Mapping[TopicPartition, int]
    timeout_ms: int

    API_KEY: ClassVar[int] = 21
    API_VERSION: ClassVar[int] = 2

    def write(self, writer: Writer) -> None:
        topics = by_topic(self.before)
        writer.array_size(len(topics))
        for topic, partitions in topics.items():
            writer.string(topic)
            writer.array_size(len(partitions))
            for partition in partitions:
                writer.int32(partition)
                writer.int64(self.before[TopicPartition(topic, partition)])
                writer.no_tags()
            writer.no_tags()
        writer.int32(self.timeout_ms)
        writer.no_tags()

    def read(self, reader: Reader) -> list[DeletedRecords]:
        reader.int32()
        return [deleted for topic in reader.array(_read_deleted_topic) for deleted in topic]


def _read_deleted_topic(reader: Reader) -> list[DeletedRecords]:
    topic = reader.string()

    def read_partition(reader: Reader) -> DeletedRecords:
        partition = TopicPartition(topic, reader.int32())
        deleted = DeletedRecords(partition, reader.int64(), reader.int16())
        reader.skip_tags()
        return deleted

    partitions = reader.array(read_partition)
    reader.skip_tags()
    return partitions
