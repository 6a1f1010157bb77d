"""ListTransactions and DescribeTransactions: which transactional ids there are, who holds them, and what is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from millstream.connectors.kafka.transaction_requests import ProducerIdentity
from millstream.connectors.kafka.wire import Reader, Writer
from millstream.processor.partitions import TopicPartition


@dataclass(frozen=True, slots=True)
class TransactionState:
    """A transactional id as its coordinator sees it.

    `started_ms` is when the open transaction began, by the broker's clock, and `partitions` are what it has written to.
    """

    error: int
    transactional_id: str
    state: str
    timeout_ms: int
    started_ms: int
    identity: ProducerIdentity
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest:
    """DescribeTransactions v0, at the coordinator of the ids."""

    transactional_ids: Sequence[str]

    API_KEY: ClassVar[int] = 65
    API_VERSION: ClassVar[int] = 0

    def write(self, writer: Writer) -> None:
        writer.array(self.transactional_ids, Writer.string)
        writer.no_tags()

    def read(self, reader: Reader) -> list[TransactionState]:
        reader.int32()
        return reader.array(_read_state)


def _read_state(reader: Reader) -> TransactionState:
    error = reader.int16()
    transactional_id = reader.string()
    state = reader.string()
    timeout_ms = reader.int32()
    started_ms = reader.int64()
    identity = ProducerIdentity(reader.int64(), reader.int16())
    partitions = [partition for topic in reader.array(_read_topic) for partition in topic]
    reader.skip_tags()
    return TransactionState(error, transactional_id, state, timeout_ms, started_ms, identity, partitions)


def _read_topic(reader: Reader) -> list[TopicPartition]:
    topic = reader.string()
    partitions = [TopicPartition(topic, partition) for partition in reader.array(Reader.int32)]
    reader.skip_tags()
    return partitions


@dataclass(frozen=True, slots=True)
class ListedTransactions:
    """The transactional ids that one broker coordinates, as far as the user may see them."""

    error: int
    transactional_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest:
    """ListTransactions v0, at any broker: those of which it is the coordinator, in whatever state."""

    API_KEY: ClassVar[int] = 66
    API_VERSION: ClassVar[int] = 0

    def write(self, writer: Writer) -> None:
        writer.array_size(0)  # states
        writer.array_size(0)  # producer ids
        writer.no_tags()

    def read(self, reader: Reader) -> ListedTransactions:
        reader.int32()
        error = reader.int16()
        reader.array(Reader.string)  # states that the broker does not know
        return ListedTransactions(error, reader.array(_read_listed))


def _read_listed(reader: Reader) -> str:
    transactional_id = reader.string()
    reader.int64()
    reader.string()
    reader.skip_tags()
    return transactional_id
