"""DescribeTransactions: who holds a transactional id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from millstream.connectors.kafka.transaction_requests import ProducerIdentity
from millstream.connectors.kafka.wire import Reader, Writer


@dataclass(frozen=True, slots=True)
class TransactionState:
    """A transactional id as its coordinator sees it."""

    error: int
    transactional_id: str
    state: str
    identity: ProducerIdentity


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
    reader.int32()  # timeout
    reader.int64()  # when the open transaction began
    identity = ProducerIdentity(reader.int64(), reader.int16())
    reader.array(_skip_topic)
    reader.skip_tags()
    return TransactionState(error, transactional_id, state, identity)


def _skip_topic(reader: Reader) -> None:
    reader.string()
    reader.array(Reader.int32)
    reader.skip_tags()
