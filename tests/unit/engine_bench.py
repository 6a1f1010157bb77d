"""Parts of the engine's unit tests: a program that copies, runs of one shard, and settings small enough to see."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from memory_broker import MemoryBroker
from memory_log import MemoryLog

from millstream.processor.columns import OutputRecords, Records
from millstream.processor.counts import Counts
from millstream.processor.errors import StageError
from millstream.processor.intake import InputPolicy
from millstream.processor.interfaces import Effects
from millstream.processor.pacing import Pacing
from millstream.processor.partitions import TopicPartition
from millstream.processor.shard import ShardRun, ShardSettings

STOP = InputPolicy("earliest", "stop")
PACING = Pacing(interval_s=0.01, backlog_interval_s=0.1, pause_s=0.004, gathered_bytes_max=1000)
POISON = b"poison"


def place(partition: int, topic: str = "in") -> TopicPartition:
    return TopicPartition(topic, partition)


@dataclass
class Copy:
    """A program that writes what it reads, and stops at a poisoned record."""

    target: str = "out"
    copies: int = 1
    meanwhile: Callable[[], Awaitable[object]] | None = None
    batches: list[list[bytes | None]] = field(default_factory=list)

    async def process(self, records: Records, record_bytes_max: Mapping[str, int]) -> Effects:
        del record_bytes_max  # a copy is never larger than what it copies
        values = records.value.to_list()
        self.batches.append(values)
        if self.meanwhile is not None:
            await self.meanwhile()
        if POISON in values:
            raise StageError(f"failed on record {values.index(POISON)} of the batch")
        partition = np.array([origin.partition for origin in records.origins], np.int32)[records.origin]
        outputs = OutputRecords(
            self.target,
            records.key,
            records.value,
            records.headers,
            records.timestamp,
            partition,
            np.arange(len(records), dtype=np.int32),
        )
        counts = Counts(records_in=len(records), records_out=len(records) * self.copies)
        return Effects([outputs] * self.copies, counts)


@dataclass
class Commit:
    """What a run said that it committed."""

    counts: Counts
    positions: Mapping[TopicPartition, int]
    outputs: Sequence[OutputRecords]


class Bench:
    """One shard with all partitions of topic `in`, on a log of its own."""

    def __init__(self, partitions: int = 1, **settings: Any) -> None:
        self.broker = MemoryBroker()
        self.broker.create("in", partitions)
        self.broker.create("out", partitions)
        self.log = MemoryLog(self.broker, "group")
        self.program = Copy()
        self.policies = {"in": STOP}
        self.settings = ShardSettings(**{"pacing": PACING, "chunk_bytes": 100} | settings)
        self.commits: list[Commit] = []
        self.run: ShardRun | None = None

    @contextlib.asynccontextmanager
    async def fetching(self) -> AsyncIterator[None]:
        fetching = asyncio.create_task(self.log.run())
        try:
            yield
        finally:
            fetching.cancel()
            await asyncio.wait([fetching])

    async def serve(self, until: Mapping[TopicPartition, int] | None = None) -> None:
        """One run, from the fence to its end."""
        async with self.fetching():
            await self.serve_alone(until)

    async def serve_alone(self, until: Mapping[TopicPartition, int] | None = None) -> None:
        shard_log = self.log.shard(0)
        try:
            permit = await shard_log.fence()
            committed = self.broker.committed("group", "in")
            positions = {place(p): committed.get(p, 0) for p in range(len(self.broker.topics["in"].partitions))}
            self.run = ShardRun(
                shard_log,
                self.program,
                self.policies,
                {"out": 1000},
                self.settings,
                lambda *what: self.commits.append(Commit(*what)),
                keep_outputs=True,
            )
            await self.run.run(permit, positions, until)
        finally:
            shard_log.close()

    def send(self, *values: bytes, partition: int = 0) -> None:
        self.broker.send("in", partition, values)

    def stop(self) -> None:
        assert self.run is not None
        self.run.stop()

    @property
    def written(self) -> list[bytes | None]:
        return self.broker.values("out")

    @property
    def offsets(self) -> dict[int, int]:
        return self.broker.committed("group", "in")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it, in virtual time; where it never comes true nothing ends but the test."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0.0005)
    raise AssertionError("it never came true")


def numbered(count: int, prefix: str = "r") -> list[bytes]:
    return [f"{prefix}{i:04d}".encode() for i in range(count)]


async def raises(kind: type[Exception], awaited: Awaitable[object]) -> None:
    """As a task of its own: that it ends with this error."""
    with pytest.raises(kind):
        await awaited
