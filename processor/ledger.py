"""The ledger: what a pipeline must remember about itself, as records in a topic of its own, in the log's order.

Everyone who reads the ledger derives the same from it, by pure functions. Two things are kept in it:

- *Facts* about the pipeline, folded here (`LedgerState`). The first CREATED record fixes the number of shards. The
  first READING record of a topic says how many partitions it had when it was first read: those added later are new
  from their first record on. A STARTED record says that a partition has had a committed offset: should that be missing
  one day, it was lost, and nobody may take the partition for a new one (design, invariant I3).
- *Membership*: which nodes and workers live, and who has which shard. `membership.py` folds it.

A SNAPSHOT record holds all that the records up to some offset said, so that they can be deleted.

`VERSION` is that of the records *and* of what is derived from them: two nodes whose folds or plans differ would
disagree on who owns what, so whoever changes an answer of `apply` or `plan` raises it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeAlias

import msgspec

from millstream.processor.errors import RefusedError
from millstream.processor.partitions import TopicPartition

VERSION = 1

Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
NodeId: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


class CreatedRecord(msgspec.Struct, frozen=True, tag_field="type", tag="created"):
    """The pipeline was started for the first time."""

    shards: Count
    version: int = VERSION


class StartedRecord(msgspec.Struct, frozen=True, tag_field="type", tag="started"):
    """A first offset was committed for a partition."""

    topic: str
    partition: Natural
    version: int = VERSION


class ReadingRecord(msgspec.Struct, frozen=True, tag_field="type", tag="reading"):
    """An input topic was first read, with so many partitions."""

    topic: str
    partitions: Count
    version: int = VERSION


class JoinRecord(msgspec.Struct, frozen=True, tag_field="type", tag="join"):
    """A node is there. `node` is unique for each of its lives; `at_ms` is its wall clock, only ever shown."""

    node: NodeId
    name: str
    zone: str = ""
    labels: list[str] = msgspec.field(default_factory=list)
    at_ms: int = 0
    version: int = VERSION


class WorkerUpRecord(msgspec.Struct, frozen=True, tag_field="type", tag="worker-up"):
    """A worker is ready for shards, if it is `eligible`: if its node has all that the pipeline requires."""

    node: NodeId
    worker: Natural
    incarnation: Natural
    eligible: bool = True
    version: int = VERSION


class Stalled(msgspec.Struct, frozen=True):
    """A batch at which a worker hung: offsets from `first_offset` up to and without `next_offset` of one partition.

    `attempts` counts the workers that hung at it one after the other. In a record it is 1: the fold counts.
    """

    shard: Natural
    stage: str
    topic: str
    partition: Natural
    first_offset: Natural
    next_offset: Natural
    attempts: Count = 1

    def overlaps(self, other: Stalled) -> bool:
        """Whether both can be the same trouble: the next try need not cut its batches where the last one did."""
        return (
            (self.shard, self.topic, self.partition) == (other.shard, other.topic, other.partition)
            and self.first_offset < other.next_offset
            and other.first_offset < self.next_offset
        )


class WorkerDownRecord(msgspec.Struct, frozen=True, tag_field="type", tag="worker-down"):
    """A worker is gone, with whatever it held. `stalls` are the batches at which it hung, if it did."""

    node: NodeId
    worker: Natural
    incarnation: Natural
    why: str
    stalls: list[Stalled] = msgspec.field(default_factory=list)
    version: int = VERSION


class LeavingRecord(msgspec.Struct, frozen=True, tag_field="type", tag="leaving"):
    """A worker, or (where `worker` is None) the whole node, wants no shards any more and releases what it has.

    With a worker goes its `incarnation`, so that a late copy says nothing about the next one.
    """

    node: NodeId
    worker: Natural | None = None
    incarnation: Natural | None = None
    version: int = VERSION


class LeaveRecord(msgspec.Struct, frozen=True, tag_field="type", tag="leave"):
    """A node is gone in order."""

    node: NodeId
    version: int = VERSION


class DeadRecord(msgspec.Struct, frozen=True, tag_field="type", tag="dead"):
    """The verdict of a node (`by`) on another, and what led to it. It is final."""

    node: NodeId
    by: NodeId
    silence_ms: float
    threshold_ms: float
    beats_seen: Natural
    at_ms: int = 0
    version: int = VERSION


class ReleasedRecord(msgspec.Struct, frozen=True, tag_field="type", tag="released"):
    """A worker has let go of a shard that it had since the ledger's offset `since`."""

    shard: Natural
    node: NodeId
    worker: Natural
    incarnation: Natural
    since: Natural
    version: int = VERSION


class SeizedRecord(msgspec.Struct, frozen=True, tag_field="type", tag="seized"):
    """The planned owner takes a shard that another has had since `since`: its release is overdue."""

    shard: Natural
    node: NodeId
    worker: Natural
    incarnation: Natural
    since: Natural
    version: int = VERSION


class Verdict(msgspec.Struct, frozen=True):
    """A DEAD record that counted, and its offset."""

    offset: Natural
    node: str
    name: str
    by: str
    silence_ms: float
    threshold_ms: float
    beats_seen: int
    at_ms: int


class Node(msgspec.Struct, frozen=True):
    """A live node. `incarnations` has, for each of its workers, the last incarnation that was heard of.

    `at_ms` is its wall clock when it joined, only ever shown.
    """

    name: str
    zone: str
    labels: tuple[str, ...]
    joined: int
    leaving: bool = False
    incarnations: dict[int, int] = msgspec.field(default_factory=dict)
    at_ms: int = 0


class WorkerState(msgspec.Struct, frozen=True):
    """A live worker in a snapshot."""

    node: NodeId
    worker: Natural
    incarnation: Natural
    eligible: bool
    leaving: bool


class SnapshotState(msgspec.Struct, frozen=True):
    """All that the ledger said. Workers are named by their place in `workers`, holdings are (worker, since)."""

    shards: Count | None
    widths: dict[str, Count]
    started: dict[str, list[Natural]]
    nodes: dict[str, Node]
    workers: list[WorkerState]
    planned: dict[int, Natural]
    holdings: dict[int, tuple[Natural, Natural]]
    verdicts: list[Verdict]
    stalls: list[Stalled]
    gone: list[str]
    snapshot_through: int

    def facts(self) -> LedgerState:
        """The facts in it."""
        started = (TopicPartition(topic, partition) for topic, theirs in self.started.items() for partition in theirs)
        return LedgerState(self.shards, self.widths, frozenset(started))


class SnapshotRecord(msgspec.Struct, frozen=True, tag_field="type", tag="snapshot"):
    """All that the records up to and with the offset `through` said."""

    through: Natural
    state: SnapshotState
    version: int = VERSION


LedgerRecord: TypeAlias = (
    CreatedRecord
    | StartedRecord
    | ReadingRecord
    | JoinRecord
    | WorkerUpRecord
    | WorkerDownRecord
    | LeavingRecord
    | LeaveRecord
    | DeadRecord
    | ReleasedRecord
    | SeizedRecord
    | SnapshotRecord
)


class _Versioned(msgspec.Struct):
    version: int


_version_decoder = msgspec.json.Decoder(_Versioned)
_record_decoder: msgspec.json.Decoder[LedgerRecord] = msgspec.json.Decoder(LedgerRecord)
_encoder = msgspec.json.Encoder()


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
        raise RefusedError(
            f"the ledger holds something that is not a ledger record: {error}; upgrade millstream if a newer one "
            "wrote it, or use another pipeline name"
        ) from error


@dataclass(frozen=True, slots=True)
class LedgerState:
    """What the ledger says. `shards` is None while the pipeline was never started.

    `widths` has, for each input topic, its partitions when it was first read.
    """

    shards: int | None = None
    widths: Mapping[str, int] = field(default_factory=dict)
    started: frozenset[TopicPartition] = field(default_factory=frozenset)


def learn(state: LedgerState, record: LedgerRecord) -> LedgerState:
    """The facts after one more record; the very same object where it says nothing new."""
    match record:
        case CreatedRecord() if state.shards is None:
            return replace(state, shards=record.shards)
        case ReadingRecord() if record.topic not in state.widths:
            return replace(state, widths={**state.widths, record.topic: record.partitions})
        case StartedRecord():
            partition = TopicPartition(record.topic, record.partition)
            return state if partition in state.started else replace(state, started=state.started | {partition})
        case SnapshotRecord():
            return _merged(state, record.state.facts())
        case _:
            return state


def _merged(state: LedgerState, older: LedgerState) -> LedgerState:
    # What a snapshot says comes from before whatever of the log is still there, and the first word counts.
    merged = LedgerState(
        state.shards if older.shards is None else older.shards,
        {**state.widths, **older.widths},
        state.started | older.started,
    )
    return state if merged == state else merged


def fold(records: Iterable[LedgerRecord]) -> LedgerState:
    """The facts after all records of a ledger, from its start to its end, in the log's order."""
    state = LedgerState()
    for record in records:
        state = learn(state, record)
    return state
