"""A shard's input: the feeds of its partitions, taken fairly, and what happens when one cannot go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from millstream.processor.columns import Records, TopicPartition
from millstream.processor.errors import CorruptBatchError, OffsetLostError, PositionLostError, StageError
from millstream.processor.log import Feed, Permit, ShardLog, Start

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InputPolicy:
    """What the user decided for an input topic."""

    start: Start
    on_offset_lost: Literal["stop", "earliest", "latest"]
    on_corrupt: Literal["stop", "skip"]


@dataclass(frozen=True, slots=True)
class Taken:
    """Records in the order of each partition, the positions after them, and their size in bytes.

    `moved` are partitions whose old position was lost, each with the end of its log as it is now: their positions may
    lie before what was committed.
    """

    records: Records | None
    positions: Mapping[TopicPartition, int]
    byte_count: int
    moved: Mapping[TopicPartition, int] = field(default_factory=dict)


class Intake:
    """Reads a shard's partitions for one run. Close it to drop everything that was read ahead."""

    def __init__(self, shard_log: ShardLog, permit: Permit, policies: Mapping[str, InputPolicy]) -> None:
        self._log = shard_log
        self._permit = permit
        self._policies = policies
        self._feeds: dict[TopicPartition, Feed] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._arrived = asyncio.Event()
        self._turn = 0

    def open(self, positions: Mapping[TopicPartition, int]) -> None:
        """Begin to read these partitions at these positions."""
        for partition, offset in positions.items():
            self._feeds[partition] = self._log.open(self._permit, partition, offset, self._arrived.set)
            self._positions[partition] = offset

    def close(self) -> None:
        """Drop everything that was read ahead."""
        for feed in self._feeds.values():
            feed.close()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """What is being read."""
        return frozenset(self._feeds)

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The positions after everything that was taken."""
        return self._positions

    @property
    def has_something(self) -> bool:
        """True while more input is at hand."""
        return any(feed.has_something for feed in self._feeds.values())

    def lag(self) -> int:
        """How many offsets lie between what was taken and the ends as last seen."""
        return sum(
            max(0, feed.end_offset - self._positions[partition])
            for partition, feed in self._feeds.items()
            if feed.end_offset is not None
        )

    def interrupt(self) -> None:
        """Have `wait` return although nothing has arrived."""
        self._arrived.set()

    async def wait(self) -> None:
        """Return when something has arrived, or on `interrupt`."""
        if not self.has_something:
            self._arrived.clear()
            await self._arrived.wait()

    async def take(self, bytes_wanted: int) -> Taken:
        """What is at hand, up to about `bytes_wanted`, from each partition in turn.

        Raises OffsetLostError or StageError where a partition cannot go on and its policy says stop.
        """
        parts: list[Records] = []
        positions: dict[TopicPartition, int] = {}
        moved: dict[TopicPartition, int] = {}
        size = 0
        feeds = list(self._feeds.items())
        if not feeds:
            return Taken(None, {}, 0)
        self._turn = (self._turn + 1) % len(feeds)
        for partition, feed in feeds[self._turn :] + feeds[: self._turn]:
            if size >= bytes_wanted:
                break
            try:
                piece = feed.take_nowait()
            except CorruptBatchError as error:
                positions[partition] = self._go_on_at(partition, self._after_corrupt(partition, error))
                continue
            except PositionLostError as error:
                found = await after_lost(self._log, partition, self._policies[partition.topic], str(error))
                positions[partition] = self._go_on_at(partition, found.offset)
                moved[partition] = found.end
                continue
            if piece is not None:
                positions[partition] = piece.next_offset
                size += piece.byte_count
                if len(piece.records):
                    parts.append(piece.records)
        self._positions.update(positions)
        return Taken(Records.concatenated(parts) if parts else None, positions, size, moved)

    def _go_on_at(self, partition: TopicPartition, offset: int) -> int:
        self._feeds[partition].close()
        self._feeds[partition] = self._log.open(self._permit, partition, offset, self._arrived.set)
        return offset

    def _after_corrupt(self, partition: TopicPartition, error: CorruptBatchError) -> int:
        if self._policies[partition.topic].on_corrupt == "stop" or error.next_offset is None:
            raise StageError(
                f"{partition}: {error}. It was read several times and stays damaged; to leave the batch out, "
                f"read {partition.topic} with on_error='skip'"
            ) from error
        log.error("batch skipped partition=%s offset=%d reason=%s", partition, error.base_offset, error.reason)
        return error.next_offset


@dataclass(frozen=True, slots=True)
class Found:
    """Where to go on, and where the log ends, after a position was lost."""

    offset: int
    end: int


async def after_lost(shard_log: ShardLog, partition: TopicPartition, policy: InputPolicy, why: str) -> Found:
    """Where to go on when a position is lost. Raises OffsetLostError where the policy is to stop."""
    if policy.on_offset_lost == "stop":
        raise OffsetLostError(
            f"{partition}: {why}. Records may be missing. To go on, read {partition.topic} with "
            "on_offset_lost='earliest' or 'latest'"
        )
    bounds = (await shard_log.bounds([partition]))[partition]
    offset = bounds.start if policy.on_offset_lost == "earliest" else bounds.end
    log.error("position lost partition=%s going_on_at=%d reason=%s", partition, offset, why)
    return Found(offset, bounds.end)


def of_shard(counts: Mapping[str, int], shard: int, shards: int) -> Iterable[TopicPartition]:
    """The partitions of a shard: partition p of every input topic is in shard p mod shards."""
    for topic, partitions in counts.items():
        for partition in range(shard, partitions, shards):
            yield TopicPartition(topic, partition)
