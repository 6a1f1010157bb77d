"""The ledger: what a pipeline must remember about itself, as records in a topic of its own, in the log's order.

Everyone who reads the ledger derives the same `LedgerState` from it; `fold` is pure. The first CREATED record fixes the
number of shards. The first READING record of a topic says how many partitions it had when it was first read: those
added later are new from their first record on. A STARTED record says that a partition has had a committed offset:
should that be missing one day, it was lost, and nobody may take the partition for a new one (design, invariant I3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import msgspec

from millstream.processor.errors import RefusedError
from millstream.processor.partitions import TopicPartition

VERSION = 1

Partition: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


class CreatedRecord(msgspec.Struct, frozen=True, tag_field="type", tag="created"):
    """The pipeline was started for the first time."""

    shards: Count
    version: int = VERSION


class StartedRecord(msgspec.Struct, frozen=True, tag_field="type", tag="started"):
    """A first offset was committed for a partition."""

    topic: str
    partition: Partition
    version: int = VERSION


class ReadingRecord(msgspec.Struct, frozen=True, tag_field="type", tag="reading"):
    """An input topic was first read, with so many partitions."""

    topic: str
    partitions: Count
    version: int = VERSION


LedgerRecord = CreatedRecord | StartedRecord | ReadingRecord


class _Versioned(msgspec.Struct):
    version: int


_version_decoder = msgspec.json.Decoder(_Versioned)
_record_decoder: msgspec.json.Decoder[LedgerRecord] = msgspec.json.Decoder(
    CreatedRecord | StartedRecord | ReadingRecord
)
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class LedgerState:
    """What the ledger says. `shards` is None while the pipeline was never started.

    `widths` has, for each input topic, its partitions when it was first read.
    """

    shards: int | None = None
    widths: Mapping[str, int] = field(default_factory=dict)
    started: frozenset[TopicPartition] = field(default_factory=frozenset)


def encode(record: LedgerRecord) -> bytes:
    """The bytes of a ledger record."""
    return _encoder.encode(record)


def decode(data: bytes) -> LedgerRecord:
    """The record in the bytes. Raises RefusedError for one that this version of millstream doesn't understand."""
    try:
        version = _version_decoder.decode(data).version
        if version != VERSION:
            raise RefusedError(
                f"the ledger holds a record of version {version}; this millstream knows version {VERSION}: "
                "upgrade it, or use another pipeline name"
            )
        return _record_decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise RefusedError(f"the ledger holds something that is not a ledger record: {error}") from error


def fold(records: Iterable[LedgerRecord]) -> LedgerState:
    """The state after all records, in the log's order."""
    shards: int | None = None
    widths: dict[str, int] = {}
    started: set[TopicPartition] = set()
    for record in records:
        match record:
            case CreatedRecord():
                shards = record.shards if shards is None else shards
            case StartedRecord():
                started.add(TopicPartition(record.topic, record.partition))
            case ReadingRecord():
                widths.setdefault(record.topic, record.partitions)
    return LedgerState(shards, widths, frozenset(started))
