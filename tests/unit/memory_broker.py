"""A broker in memory, as far as transactions go: partitions, open and ended transactions, epochs, stable offsets.

It behaves as Kafka does where exactly-once depends on it: records of an open transaction hide everything behind them
from committed readers, a fence resolves what is open and makes every older epoch useless, outputs and offsets become
visible together, and the end of a transaction takes an offset in each partition that it touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from millstream.processor.errors import FencedError
from millstream.processor.partitions import TopicPartition

Header = tuple[str, bytes | None]
_topic_ids = count(1)


@dataclass(frozen=True)
class Message:
    """A record as its writer gave it, and the offset that it got."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: bytes = b"\0"
    timestamp: int = -1


@dataclass
class Transaction:
    """What one epoch of a producer has written and not ended, or how it ended."""

    state: Literal["open", "committed", "aborted"] = "open"
    partitions: set[TopicPartition] = field(default_factory=set)
    offsets: dict[tuple[str, TopicPartition], CommittedOffset] = field(default_factory=dict)


@dataclass(frozen=True)
class CommittedOffset:
    """Belongs to a topic as it was then: a topic made anew has another id."""

    offset: int
    topic_id: int


@dataclass(frozen=True)
class Entry:
    """One offset of a partition: a record, or (without one) the marker of an ended transaction."""

    message: Message | None
    transaction: Transaction | None


@dataclass
class Partition:
    """`damage` has, by base offset, where reading may go on after a batch that cannot be read."""

    start: int = 0
    entries: list[Entry] = field(default_factory=list)
    damage: dict[int, int | None] = field(default_factory=dict)

    def append(self, message: Message | None, transaction: Transaction | None) -> None:
        self.entries.append(Entry(message, transaction))

    @property
    def stable_end(self) -> int:
        """Where what committed readers may see ends."""
        for offset, entry in enumerate(self.entries):
            if entry.transaction is not None and entry.transaction.state == "open":
                return offset
        return len(self.entries)

    def visible(self, offset: int) -> Message | None:
        """The record there, unless it was aborted or is a marker."""
        entry = self.entries[offset]
        aborted = entry.transaction is not None and entry.transaction.state == "aborted"
        return None if aborted else entry.message


@dataclass
class Topic:
    partitions: list[Partition]
    bytes_max: int = 1_000_000
    settings: Mapping[str, str] = field(default_factory=dict)
    replication: int | None = None
    id: int = field(default_factory=lambda: next(_topic_ids))


@dataclass
class Producer:
    epoch: int = -1
    transaction: Transaction | None = None


class MemoryBroker:
    """One cluster. Its methods are requests that have arrived; nothing here waits."""

    def __init__(self) -> None:
        self.brokers = 1
        self.topics: dict[str, Topic] = {}
        self.offsets: dict[tuple[str, TopicPartition], CommittedOffset] = {}
        self.commits: list[Mapping[tuple[str, TopicPartition], CommittedOffset]] = []
        self._producers: dict[str, Producer] = {}
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()

    # -- topics -------------------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        partitions: int = 1,
        settings: Mapping[str, str] | None = None,
        replication: int | None = None,
    ) -> None:
        """A topic that exists stays as it is."""
        bytes_max = int((settings or {}).get("max.message.bytes", 1_000_000))
        new = Topic([Partition() for _ in range(partitions)], bytes_max, settings or {}, replication)
        self.topics.setdefault(name, new)
        self._changed()

    def delete(self, name: str) -> None:
        del self.topics[name]

    def add_partitions(self, name: str, partitions: int) -> None:
        topic = self.topics[name]
        topic.partitions += [Partition() for _ in range(partitions - len(topic.partitions))]

    def partition(self, place: TopicPartition) -> Partition:
        return self.topics[place.topic].partitions[place.partition]

    def send(self, topic: str, partition: int, values: Sequence[bytes | None], key: bytes | None = None) -> None:
        """Write outside of any transaction."""
        log = self.partition(TopicPartition(topic, partition))
        for value in values:
            log.append(Message(partition, len(log.entries), key, value), None)
        self._changed()

    def damage(self, topic: str, partition: int, base_offset: int, next_offset: int | None) -> None:
        """From now on the batch that begins there cannot be read."""
        self.partition(TopicPartition(topic, partition)).damage[base_offset] = next_offset

    def expire(self, topic: str, partition: int, start: int) -> None:
        """Retention passes: the log begins at `start`."""
        self.partition(TopicPartition(topic, partition)).start = start

    def read(self, topic: str) -> list[Message]:
        """What a committed reader sees, partition by partition."""
        return [
            message
            for partition in self.topics[topic].partitions
            for offset in range(partition.start, partition.stable_end)
            if (message := partition.visible(offset)) is not None
        ]

    def values(self, topic: str) -> list[bytes | None]:
        return [message.value for message in self.read(topic)]

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The group's offsets by partition."""
        return {
            place.partition: found.offset
            for (owner, place), found in self.offsets.items()
            if owner == group and place.topic == topic
        }

    # -- transactions -------------------------------------------------------------------------------------------

    @property
    def open_transactions(self) -> int:
        return sum(producer.transaction is not None for producer in self._producers.values())

    def fence(self, name: str) -> int:
        """The only epoch that may write for `name` from now on; what an older one has open is aborted."""
        producer = self._producers.setdefault(name, Producer())
        self._end(producer, "aborted")
        producer.epoch += 1
        return producer.epoch

    def epoch(self, name: str) -> int:
        """The only epoch that may write for `name` now."""
        return self._producers.setdefault(name, Producer()).epoch

    def produce(self, name: str, epoch: int, place: TopicPartition, messages: Sequence[Message]) -> None:
        transaction = self._transaction(name, epoch)
        transaction.partitions.add(place)
        log = self.partition(place)
        for message in messages:
            placed = Message(
                place.partition, len(log.entries), message.key, message.value, message.headers, message.timestamp
            )
            log.append(placed, transaction)

    def add_offsets(self, name: str, epoch: int, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        transaction = self._transaction(name, epoch)
        for place, offset in offsets.items():
            transaction.offsets[group, place] = CommittedOffset(offset, self.topics[place.topic].id)

    def commit(self, name: str, epoch: int) -> int:
        """Outputs and offsets are visible from now on; answers the next epoch."""
        producer = self._producer(name, epoch)
        assert producer.transaction is not None, "the end of a transaction that was never begun (I6)"
        self._end(producer, "committed")
        producer.epoch += 1
        return producer.epoch

    def _producer(self, name: str, epoch: int) -> Producer:
        producer = self._producers[name]
        if producer.epoch != epoch:
            raise FencedError(f"{name} has epoch {producer.epoch} now, not {epoch}")
        return producer

    def _transaction(self, name: str, epoch: int) -> Transaction:
        producer = self._producer(name, epoch)
        if producer.transaction is None:
            producer.transaction = Transaction()
        return producer.transaction

    def _end(self, producer: Producer, state: Literal["committed", "aborted"]) -> None:
        transaction, producer.transaction = producer.transaction, None
        if transaction is None:
            return
        transaction.state = state
        for place in transaction.partitions:
            self.partition(place).append(None, transaction)
        if state == "committed":
            self.offsets |= transaction.offsets
            self.commits.append(transaction.offsets)
        self._changed()

    def has_open_offset(self, group: str, place: TopicPartition) -> bool:
        """Whether the place's offset depends on a transaction that is not resolved."""
        return any(
            producer.transaction is not None and (group, place) in producer.transaction.offsets
            for producer in self._producers.values()
        )
