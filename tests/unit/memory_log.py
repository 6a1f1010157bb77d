"""The log that the engine works on, in memory: `processor.log` on a `MemoryBroker`.

Every step (a request and its answer) takes time, may be held up, and may fail before or after it took effect, so that a
test can stop the world at each of them. What only a bug can do is asserted here: reading before the fence, a permit
that is used again after it was void, a transaction without contents, feeds that are left open.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, cast

import numpy as np
from memory_broker import MemoryBroker, Message
from trouble import Trouble

from millstream.processor.columns import OutputRecords, Records, Slices
from millstream.processor.errors import (
    CorruptBatchError,
    MillstreamError,
    PositionLostError,
    UnavailableError,
)
from millstream.processor.log import Bounds, Committed, Fetched, Start, TopicPlan
from millstream.processor.partitions import TopicPartition

T = TypeVar("T")

_PIECES_AHEAD = 2
_UNSTABLE_TRIES = 100


@dataclass(frozen=True)
class MemoryPermit:
    name: str
    epoch: int


@dataclass(frozen=True)
class MemorySealed:
    """Immutable, so that what is sent again is the same (I5)."""

    outputs: tuple[OutputRecords, ...]
    byte_count: int


class MemoryOutbox:
    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._outputs: list[OutputRecords] = []
        self.byte_count = 0

    def add(self, outputs: OutputRecords) -> None:
        if outputs.topic not in self._broker.topics:
            raise UnavailableError(f"output topic {outputs.topic} is not known any more")
        if len(outputs):
            self._outputs.append(outputs)
            self.byte_count += outputs.key.byte_count + outputs.value.byte_count

    def seal(self) -> MemorySealed:
        sealed = MemorySealed(tuple(self._outputs), self.byte_count)
        self._outputs, self.byte_count = [], 0
        return sealed


class MemoryFeed:
    """Filled by `MemoryLog.run`, a few records at a time."""

    def __init__(self, log: MemoryLog, place: TopicPartition, offset: int, notify: Callable[[], None]) -> None:
        self._log = log
        self._topic_id = log.broker.topics[place.topic].id
        self._notify = notify
        self._pieces: deque[Fetched] = deque()
        self._error: MillstreamError | None = None
        self.place = place
        self.next_offset = offset
        self.end_offset: int | None = None
        self.closed = False

    @property
    def has_something(self) -> bool:
        return bool(self._pieces) or self._error is not None

    @property
    def silent_s(self) -> float:
        return 0.0

    def take_nowait(self) -> Fetched | None:
        assert not self.closed, "a feed that was closed is read"
        if self._pieces:
            self._log.wake()
            return self._pieces.popleft()
        if self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        self.closed = True
        self._pieces.clear()

    def fill(self) -> None:
        """What a fetch would bring now."""
        before = len(self._pieces), self._error
        while len(self._pieces) < _PIECES_AHEAD and self._error is None and self._fill_one():
            pass
        if before != (len(self._pieces), self._error):
            self._notify()

    def _fill_one(self) -> bool:
        topic = self._log.broker.topics.get(self.place.topic)
        if topic is None:
            return False
        if topic.id != self._topic_id:
            self._error = PositionLostError(f"topic {self.place.topic} was deleted and created again while it was read")
            return False
        partition = topic.partitions[self.place.partition]
        self.end_offset = end = partition.stable_end
        if not partition.start <= self.next_offset <= len(partition.entries):
            self._error = PositionLostError(f"{self.place} does not hold offset {self.next_offset}")
            return False
        if self.next_offset in partition.damage:
            self._error = CorruptBatchError(
                "its CRC does not match its bytes",
                base_offset=self.next_offset,
                next_offset=partition.damage[self.next_offset],
            )
            return False
        last = min(end, self.next_offset + self._log.piece_records)
        last = min([last, *(base for base in partition.damage if base > self.next_offset)])
        if last <= self.next_offset:
            return False
        messages = [message for at in range(self.next_offset, last) if (message := partition.visible(at)) is not None]
        size = sum(len(message.value or b"") + len(message.key or b"") for message in messages)
        self._pieces.append(Fetched(_records(self.place, messages), last, size))
        self.next_offset = last
        return True


def _records(place: TopicPartition, messages: Sequence[Message]) -> Records:
    return Records(
        (place,),
        np.zeros(len(messages), np.int32),
        np.array([message.offset for message in messages], np.int64),
        np.array([message.timestamp for message in messages], np.int64),
        Slices.from_list([message.key for message in messages]),
        Slices.from_list([message.value for message in messages]),
        Slices.from_list([message.headers for message in messages]),
    )


class MemoryLog:
    """Implements `processor.log.Log`. Several may share a broker: workers, nodes, zombies."""

    def __init__(self, broker: MemoryBroker, group: str, *, piece_records: int = 4) -> None:
        self.broker = broker
        self.group = group
        self.piece_records = piece_records
        self.trouble = Trouble()
        self.journal: list[tuple[int | None, str]] = []
        self.closed = False
        self.last_failure: str | None = None
        self._feeds: list[MemoryFeed] = []
        self._wake = asyncio.Event()
        broker.on_change(self.wake)

    @property
    def open_feeds(self) -> int:
        return sum(not feed.closed for feed in self._feeds)

    def wake(self) -> None:
        self._wake.set()

    async def step(self, step: str, effect: Callable[[], T], shard: int | None = None) -> T:
        """A request: on its way, carried out, and its answer on its way back."""
        if self.closed:
            raise UnavailableError("the log is closed")
        error = await self.trouble.before(step)
        self.journal.append((shard, step))
        result = effect()
        if error is not None:
            raise error
        await asyncio.sleep(self.trouble.latency_s())
        return result

    async def connect(self) -> None:
        await self.step("connect", lambda: None)

    async def run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self.step("fetch", self._fill)
            except UnavailableError:
                continue
            await self._wake.wait()

    def _fill(self) -> None:
        self._feeds = [feed for feed in self._feeds if not feed.closed]
        for feed in self._feeds:
            feed.fill()

    def add_feed(self, feed: MemoryFeed) -> None:
        self._feeds.append(feed)
        self.wake()

    async def broker_count(self) -> int:
        return await self.step("brokers", lambda: self.broker.brokers)

    async def missing_topics(self, topics: Sequence[str]) -> Sequence[str]:
        return await self.step("topics", lambda: [topic for topic in topics if topic not in self.broker.topics])

    async def create_topics(self, plans: Sequence[TopicPlan]) -> None:
        def create() -> None:
            for plan in plans:
                self.broker.create(plan.name, plan.partitions, plan.settings, plan.replication)

        await self.step("create", create)

    async def partition_counts(self, topics: Sequence[str]) -> Mapping[str, int]:
        known = self.broker.topics
        return {topic: len(known[topic].partitions) for topic in topics if topic in known}

    async def record_bytes_max(self, topics: Sequence[str]) -> Mapping[str, int]:
        return await self.step("limits", lambda: {topic: self.broker.topics[topic].bytes_max for topic in topics})

    async def read_ledger(self, topic: str) -> Sequence[bytes]:
        return await self.step("read-ledger", lambda: [value or b"" for value in self.broker.values(topic)])

    async def append_to_ledger(self, topic: str, records: Sequence[bytes]) -> None:
        await self.step("append-ledger", lambda: self.broker.send(topic, 0, records))

    def shard(self, shard: int) -> MemoryShardLog:
        return MemoryShardLog(self, shard)

    def close(self) -> None:
        self.closed = True


class MemoryShardLog:
    """Implements `processor.log.ShardLog`."""

    def __init__(self, log: MemoryLog, shard: int) -> None:
        self._log = log
        self._broker = log.broker
        self._shard = shard
        self._name = f"{log.group}.{shard}"
        self._permit: MemoryPermit | None = None
        self._feeds: list[MemoryFeed] = []

    async def _step(self, step: str, effect: Callable[[], T]) -> T:
        return await self._log.step(step, effect, self._shard)

    def _check(self, permit: Any) -> None:
        assert self._permit is not None, "something is asked of the shard's log before its fence (I2)"
        assert permit == self._permit, "a permit that is void, or not the last one"

    async def fence(self) -> MemoryPermit:
        epoch = await self._step("fence", lambda: self._broker.fence(self._name))
        self._permit = MemoryPermit(self._name, epoch)
        return self._permit

    async def committed(self, permit: Any, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Committed]:
        self._check(permit)
        for _ in range(_UNSTABLE_TRIES):
            found = await self._step("committed", lambda: self._stable(partitions))
            if found is not None:
                return found
        # Only somebody who has fenced this owner can have left it open for so long.
        raise UnavailableError("the offsets depend on a transaction that is open")

    def _stable(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed] | None:
        group, offsets, topics = self._log.group, self._broker.offsets, self._broker.topics
        if any(self._broker.has_open_offset(group, place) for place in partitions):
            return None
        return {
            place: Committed(found.offset, stale=found.topic_id != topics[place.topic].id)
            for place in partitions
            if (found := offsets.get((group, place))) is not None
        }

    async def starting(self, partitions: Mapping[TopicPartition, Start]) -> Mapping[TopicPartition, int]:
        assert self._permit is not None, "positions are asked for before the fence (I2)"
        return await self._step("starting", lambda: {p: self._first(p, start) for p, start in partitions.items()})

    def _first(self, place: TopicPartition, start: Start) -> int:
        partition = self._broker.partition(place)
        if isinstance(start, datetime):
            stamps = ((at, partition.visible(at)) for at in range(partition.start, partition.stable_end))
            wanted = start.timestamp() * 1000
            return next((at for at, m in stamps if m is not None and m.timestamp >= wanted), partition.stable_end)
        return partition.start if start == "earliest" else partition.stable_end

    async def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        assert self._permit is not None, "positions are asked for before the fence (I2)"
        logs = {place: self._broker.partition(place) for place in partitions}
        return await self._step("bounds", lambda: {p: Bounds(log.start, log.stable_end) for p, log in logs.items()})

    async def holds(self, permit: Any) -> bool:
        self._check(permit)
        epoch = cast("MemoryPermit", permit).epoch
        try:
            return await self._step("holds", lambda: self._broker.epoch(self._name) == epoch)
        except UnavailableError:
            return True

    def open(self, permit: Any, partition: TopicPartition, offset: int, notify: Callable[[], None]) -> MemoryFeed:
        del permit  # reading goes on under the first one
        assert self._permit is not None, "a partition is read before the fence (I2)"
        feed = MemoryFeed(self._log, partition, offset, notify)
        self._feeds.append(feed)
        self._log.add_feed(feed)
        return feed

    def outbox(self) -> MemoryOutbox:
        return MemoryOutbox(self._broker)

    async def commit(self, permit: Any, outputs: Any, positions: Mapping[TopicPartition, int]) -> MemoryPermit:
        self._check(permit)
        sealed = cast("MemorySealed", outputs)
        assert sealed.outputs or positions, "an empty transaction is sent (I6)"
        held, self._permit = self._permit, MemoryPermit(self._name, -1)
        assert held is not None
        epoch = held.epoch
        for place, messages in self._placed(sealed).items():
            await self._step("produce", lambda p=place, m=messages: self._broker.produce(self._name, epoch, p, m))
        if positions:
            fixed = dict(positions)
            group = self._log.group
            await self._step("offsets", lambda: self._broker.add_offsets(self._name, epoch, group, fixed))
        self._permit = MemoryPermit(self._name, await self._step("end", lambda: self._broker.commit(self._name, epoch)))
        return self._permit

    def _placed(self, sealed: MemorySealed) -> dict[TopicPartition, list[Message]]:
        placed: dict[TopicPartition, list[Message]] = {}
        for outputs in sealed.outputs:
            partitions = len(self._broker.topics[outputs.topic].partitions)
            for row in range(len(outputs)):
                key = outputs.key[row]
                where = int(outputs.unkeyed_partition[row]) if key is None else zlib.crc32(key)
                place = TopicPartition(outputs.topic, where % partitions)
                message = Message(
                    place.partition,
                    -1,
                    key,
                    outputs.value[row],
                    outputs.headers[row] or b"\0",
                    int(outputs.timestamp[row]),
                )
                placed.setdefault(place, []).append(message)
        return placed

    def close(self) -> None:
        assert all(feed.closed for feed in self._feeds), "what was read ahead is kept after the run (I4)"
