"""What the runtime needs of the log that it reads from and writes to. `connectors.kafka` implements it.

The order that keeps records safe is in the types: a `Permit` comes only from `ShardLog.fence`, and everything that
reads or commits for a shard asks for one (design, invariant I2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from millstream.processor.partitions import TopicPartition

if TYPE_CHECKING:
    # The agent asks for offsets and topics as well, and has no arrays.
    from millstream.processor.columns import OutputRecords, Records

Start: TypeAlias = Literal["earliest", "latest"] | datetime
"""Where to begin: at the log's start, at its end, or at the first record at or after a time."""

Positions: TypeAlias = Mapping[TopicPartition, int]


class Permit(Protocol):
    """The right to read for a shard and to commit its next transaction. Made by the log alone."""


class Sealed(Protocol):
    """Outputs that are fixed: what is sent, and sent again, is the same bytes (I5). Made by an outbox alone."""

    @property
    def byte_count(self) -> int:
        """Its size in bytes."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A piece of one partition: its records (possibly none), and the position after them."""

    records: Records
    next_offset: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed position, and whether it belongs to the topic as it is now.

    `stale` is true where the topic was deleted and created again since.
    """

    offset: int
    stale: bool


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a partition's log begins, and where its committed records end."""

    start: int
    end: int


class Feed(Protocol):
    """What has arrived of one partition, in order."""

    @property
    def end_offset(self) -> int | None:
        """Where the partition's committed records ended when last seen."""

    @property
    def has_something(self) -> bool:
        """True where `take_nowait` would answer or raise."""

    @property
    def silent_s(self) -> float:
        """For how many seconds the log has not answered what was asked for; 0 while something is at hand."""

    def take_nowait(self) -> Fetched | None:
        """The next piece; None when there is none now.

        Raises PositionLostError or CorruptBatchError when all before it was taken.
        """

    def close(self) -> None:
        """Drop everything that was read ahead."""


class Outbox(Protocol):
    """Collects outputs for one transaction."""

    @property
    def byte_count(self) -> int:
        """The bytes collected so far."""

    def add(self, outputs: OutputRecords) -> None:
        """Add records, in order, behind those added before."""

    def seal(self) -> Sealed:
        """Fix what was collected, and begin anew with nothing."""


class ShardLog(Protocol):
    """The log as one shard uses it. Every method may raise UnavailableError or RefusedError."""

    async def fence(self) -> Permit:
        """Become the only one who can commit for the shard; what another has open is resolved."""

    async def committed(
        self, permit: Permit, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, Committed]:
        """The committed positions, stable ones; a partition without one is left out."""

    async def starting(self, partitions: Mapping[TopicPartition, Start]) -> Positions:
        """The offsets at which to begin."""

    async def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        """Where the partitions begin and end now."""

    async def holds(self, permit: Permit) -> bool:
        """Whether nobody has fenced the shard since; for one who has nothing to commit, since a commit tells as well.

        True where it cannot be told now, and where there are no fences.
        """

    def open(self, permit: Permit, partition: TopicPartition, offset: int, notify: Callable[[], None]) -> Feed:
        """Read from `offset` on; `notify` is called whenever something arrives."""

    def outbox(self) -> Outbox:
        """An empty outbox."""

    async def commit(self, permit: Permit, outputs: Sealed, positions: Positions) -> Permit:
        """Commit both together or not at all. Raises FencedError or OutcomeUnknownError; the permit is then void."""

    def close(self) -> None:
        """Close what is the shard's own."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic that is to exist. `replication` None: as the cluster does by default."""

    name: str
    partitions: int
    settings: Mapping[str, str]
    replication: int | None = None


class Log(Protocol):
    """The log as a worker uses it."""

    async def connect(self) -> None:
        """Reach the cluster within a bound. Raises UnavailableError, or RefusedError for what waiting can't mend."""

    async def run(self) -> None:
        """Keep feeds filled, until cancelled."""

    @property
    def last_failure(self) -> str | None:
        """Why what was last asked of the log for feeds was not answered; None where it was."""

    async def broker_count(self) -> int:
        """How many brokers are there now."""

    async def missing_topics(self, topics: Sequence[str]) -> Sequence[str]:
        """Those that do not exist."""

    async def create_topics(self, plans: Sequence[TopicPlan]) -> None:
        """Create those that do not exist."""

    async def partition_counts(self, topics: Sequence[str]) -> Mapping[str, int]:
        """How many partitions each existing topic has now."""

    async def record_bytes_max(self, topics: Sequence[str]) -> Mapping[str, int]:
        """The largest record batch that each topic takes."""

    async def read_ledger(self, topic: str) -> Sequence[bytes]:
        """All records of a one-partition topic, in order."""

    async def append_to_ledger(self, topic: str, records: Sequence[bytes]) -> None:
        """Append records, stored by all in-sync replicas."""

    def shard(self, shard: int) -> ShardLog:
        """The log for one shard."""

    def close(self) -> None:
        """Close every connection."""
