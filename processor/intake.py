"""A shard's input: the feeds of its partitions, taken fairly, and what happens when one cannot go on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from millstream.processor.careful import Offsets
from millstream.processor.columns import Records
from millstream.processor.errors import CorruptBatchError, InvariantError, OffsetLostError, PositionLostError
from millstream.processor.event_log import EventLog
from millstream.processor.interfaces import Effects
from millstream.processor.log import Feed, Permit, ShardLog, Start
from millstream.processor.partitions import TopicPartition
from millstream.processor.shard_watch import Standing
from millstream.processor.stage_page import RANGES_MAX

_log: Final = EventLog(logging.getLogger("millstream.engine"))


@dataclass(frozen=True, slots=True)
class InputPolicy:
    """What the user decided for an input topic."""

    start: Start
    on_offset_lost: Literal["stop", "earliest", "latest"]


LeaveOut = Callable[[TopicPartition, CorruptBatchError], Effects]
"""What comes of leaving out a damaged batch. Raises StageError where the pipeline is to stop instead."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Records in the order of each partition, the positions after them, and their size in bytes.

    `moved` are partitions whose old position was lost, each with the end of its log as it is now: their positions may
    lie before what was committed. `left_out` is what came of damaged batches that the positions pass. `ranges` has, for
    each partition with records, the offset where they may begin and the one after them. `since` is about when the first
    of them had arrived, on the machine's monotonic clock.
    """

    records: Records | None
    positions: Mapping[TopicPartition, int]
    byte_count: int
    moved: Mapping[TopicPartition, int] = field(default_factory=dict)
    left_out: Sequence[Effects] = field(default_factory=list)
    since: float | None = None
    ranges: Offsets = field(default_factory=dict)


class Intake:
    """Reads a shard's partitions for one run. Close it to drop everything that was read ahead."""

    def __init__(
        self, shard_log: ShardLog, permit: Permit, policies: Mapping[str, InputPolicy], leave_out: LeaveOut
    ) -> None:
        self._log = shard_log
        self._permit = permit
        self._policies = policies
        self._leave_out = leave_out
        self._feeds: dict[TopicPartition, Feed] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._arrived = asyncio.Event()
        self._oldest_at: float | None = None
        self._turn = 0

    def open(self, positions: Mapping[TopicPartition, int]) -> None:
        """Begin to read these partitions at these positions."""
        for partition, offset in positions.items():
            self._feeds[partition] = self._log.open(self._permit, partition, offset, self._notify)
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

    def standings(self, committed: Mapping[TopicPartition, int]) -> dict[TopicPartition, Standing]:
        """How far each partition is, by its committed position."""
        return {
            partition: Standing(committed[partition], feed.end_offset, feed.silent_s)
            for partition, feed in self._feeds.items()
        }

    def interrupt(self) -> None:
        """Have `wait` return although nothing has arrived."""
        self._arrived.set()

    async def wait(self) -> None:
        """Return when something has arrived, or on `interrupt`."""
        if not self.has_something:
            self._arrived.clear()
            await self._arrived.wait()

    async def gather(self, records: int, wait_s: float) -> None:
        """Return when there are so many records at hand, or what came first has waited for so long."""
        while self._oldest_at is not None and self.lag() < records:
            left_s = self._oldest_at + wait_s - time.monotonic()
            if left_s <= 0:
                return
            self._arrived.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._arrived.wait()
            except TimeoutError:
                return

    def _notify(self) -> None:
        if self._oldest_at is None:
            # Not the loop's time, which stands still while a stage computes.
            self._oldest_at = time.monotonic()
        self._arrived.set()

    async def take(self, bytes_wanted: int) -> Taken:
        """What is at hand, up to about `bytes_wanted`, from each partition in turn.

        Raises OffsetLostError or StageError where a partition cannot go on and its policy says stop.
        """
        parts: list[Records] = []
        positions: dict[TopicPartition, int] = {}
        moved: dict[TopicPartition, int] = {}
        left_out: list[Effects] = []
        ranges: Offsets = {}
        size = 0
        feeds = list(self._feeds.items())
        if not feeds:
            return Taken(None, {}, 0)
        self._turn = (self._turn + 1) % len(feeds)
        for partition, feed in feeds[self._turn :] + feeds[: self._turn]:
            if size >= bytes_wanted or len(ranges) >= RANGES_MAX:
                break
            try:
                piece = feed.take_nowait()
            except CorruptBatchError as error:
                left_out.append(self._leave_out(partition, error))
                positions[partition] = self._go_on_at(partition, self._behind(partition, error))
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
                    ranges[partition] = self._positions[partition], piece.next_offset
        self._positions.update(positions)
        since = self._oldest_at
        # When the rest of it came is not known; it has waited for no longer than until now.
        self._oldest_at = time.monotonic() if since is not None and self.has_something else None
        records = Records.concatenated(parts) if parts else None
        return Taken(records, positions, size, moved, left_out, since, ranges)

    def _go_on_at(self, partition: TopicPartition, offset: int) -> int:
        self._feeds[partition].close()
        self._feeds[partition] = self._log.open(self._permit, partition, offset, self._notify)
        return offset

    def _behind(self, partition: TopicPartition, error: CorruptBatchError) -> int:
        if error.next_offset is None or error.next_offset <= self._positions[partition]:
            raise InvariantError(f"{partition}: no way around the {error}")
        _log.error(
            "batch.left_out",
            partition=str(partition),
            offset=error.base_offset,
            next_offset=error.next_offset,
            reason=error.reason,
        )
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
    _log.error("position.lost", partition=str(partition), going_on_at=offset, reason=why)
    return Found(offset, bounds.end)


def of_shard(counts: Mapping[str, int], shard: int, shards: int) -> Iterable[TopicPartition]:
    """The partitions of a shard: partition p of every input topic is in shard p mod shards."""
    for topic, partitions in counts.items():
        for partition in range(shard, partitions, shards):
            yield TopicPartition(topic, partition)
