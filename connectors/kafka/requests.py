"""What a request is, and the requests that find the way: versions, metadata, coordinators.

A request knows its key, its one version, how to write its body and how to read its answer. Versions are chosen so that
every broker with Transactions V2 (Kafka 4.0 and later) speaks them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Protocol, TypeVar

from millstream.connectors.kafka.wire import Reader, Writer

R_co = TypeVar("R_co", covariant=True)


class Request(Protocol[R_co]):
    """One request and how to read its answer."""

    API_KEY: ClassVar[int]
    API_VERSION: ClassVar[int]

    def write(self, writer: Writer) -> None:
        """Write the body."""

    def read(self, reader: Reader) -> R_co:
        """Read the answer's body. Raises ProtocolError where it is malformed."""


@dataclass(frozen=True, slots=True)
class BrokerFeatures:
    """What a broker says of itself: finalized feature levels by name."""

    finalized: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest:
    """ApiVersions v3: the first version whose answer carries finalized features (KIP-584)."""

    API_KEY: ClassVar[int] = 18
    API_VERSION: ClassVar[int] = 3

    def write(self, writer: Writer) -> None:
        writer.string("millstream")
        writer.string("0.1.0")
        writer.no_tags()

    def read(self, reader: Reader) -> BrokerFeatures:
        reader.int16()
        reader.array(_skip_api)
        reader.int32()
        tags = reader.tags()
        # Tag 2 is the list of finalized features.
        finalized = Reader(bytes(tags[2])).array(_read_finalized_feature) if 2 in tags else []
        return BrokerFeatures(dict(finalized))


def _skip_api(reader: Reader) -> None:
    reader.int16()
    reader.int16()
    reader.int16()
    reader.skip_tags()


def _read_finalized_feature(reader: Reader) -> tuple[str, int]:
    name = reader.string()
    level = reader.int16()
    reader.int16()
    reader.skip_tags()
    return name, level


@dataclass(frozen=True, slots=True)
class Broker:
    """Where a broker listens."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition as metadata shows it; `leader` is -1 while it has none."""

    index: int
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic as metadata shows it; `error` is 0 when it exists."""

    name: str
    topic_id: uuid.UUID
    error: int
    partitions: Mapping[int, PartitionView]


@dataclass(frozen=True, slots=True)
class MetadataView:
    """The cluster at one moment."""

    brokers: Mapping[int, Broker]
    topics: Mapping[str, TopicView]


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    """Metadata v12, by topic name; never creates a topic."""

    topics: Sequence[str]

    API_KEY: ClassVar[int] = 3
    API_VERSION: ClassVar[int] = 12

    def write(self, writer: Writer) -> None:
        writer.array(self.topics, _write_metadata_topic)
        writer.boolean(False)  # allow auto creation
        writer.boolean(False)  # include authorized operations
        writer.no_tags()

    def read(self, reader: Reader) -> MetadataView:
        reader.int32()
        brokers = reader.array(_read_broker)
        reader.nullable_string()
        reader.int32()
        topics = reader.array(_read_topic)
        return MetadataView({b.node_id: b for b in brokers}, {t.name: t for t in topics})


def _write_metadata_topic(writer: Writer, name: str) -> None:
    writer.uuid(uuid.UUID(int=0))
    writer.string(name)
    writer.no_tags()


def _read_broker(reader: Reader) -> Broker:
    broker = Broker(reader.int32(), reader.string(), reader.int32())
    reader.nullable_string()
    reader.skip_tags()
    return broker


def _read_topic(reader: Reader) -> TopicView:
    error = reader.int16()
    name = reader.nullable_string() or ""
    topic_id = reader.uuid()
    reader.boolean()
    partitions = reader.array(_read_partition)
    reader.int32()
    reader.skip_tags()
    return TopicView(name, topic_id, error, {p.index: p for p in partitions})


def _read_partition(reader: Reader) -> PartitionView:
    reader.int16()
    view = PartitionView(reader.int32(), reader.int32(), reader.int32())
    for _ in range(3):  # replicas, in-sync replicas, offline replicas
        reader.array(Reader.int32)
    reader.skip_tags()
    return view


class CoordinatorType(IntEnum):
    """Which kind of coordinator is looked for."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The answer of FindCoordinator for one key."""

    node: Broker
    error: int
    message: str | None


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest:
    """FindCoordinator v4, for one key."""

    type: CoordinatorType
    key: str

    API_KEY: ClassVar[int] = 10
    API_VERSION: ClassVar[int] = 4

    def write(self, writer: Writer) -> None:
        writer.int8(self.type)
        writer.array([self.key], Writer.string)
        writer.no_tags()

    def read(self, reader: Reader) -> Coordinator:
        reader.int32()
        return reader.only(_read_coordinator)


def _read_coordinator(reader: Reader) -> Coordinator:
    reader.string()
    node = Broker(reader.int32(), reader.string(), reader.int32())
    coordinator = Coordinator(node, reader.int16(), reader.nullable_string())
    reader.skip_tags()
    return coordinator
