"""A pipeline that copies through a function, and its host, for the host's tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from engine_bench import numbered
from memory_broker import MemoryBroker
from memory_log import MemoryLog

from millstream.processor import Pipeline
from millstream.processor.host import Host, RunOptions
from millstream.processor.shard_host import HostEvent


async def same(value: bytes) -> bytes:
    return value


class World:
    """A pipeline that copies `in` to `out` through a function, and its host."""

    def __init__(
        self,
        partitions: int = 4,
        *,
        function: Callable[[bytes], Awaitable[bytes]] = same,
        options: RunOptions | None = None,
        broker: MemoryBroker | None = None,
        **settings: Any,
    ) -> None:
        self.broker = broker or MemoryBroker()
        self.broker.create("in", partitions)
        self.broker.create("out", partitions)
        self.log = MemoryLog(self.broker, "p")
        pipeline = Pipeline("p", **settings)
        pipeline.read("in").map(function).write("out")
        # As many shards as partitions, unless a test says otherwise.
        self.host = Host(pipeline.build(), self.log, replace(options or RunOptions(), workers=partitions))
        self.events: list[HostEvent] = []

    async def serve(self, *shards: int) -> None:
        """From the preparation to the end, with all shards or these."""
        prepared = await self.host.prepare()
        self.host.assign(frozenset(shards or range(prepared.shards)))
        await self.host.serve(self.events.append)

    @contextlib.asynccontextmanager
    async def serving(self, *shards: int) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self.serve(*shards))
        try:
            yield task
        finally:
            if not task.done():
                await self.host.stop(5)
            await task

    def send(self, count: int, prefix: str = "") -> list[bytes]:
        """So many records in each partition; all of them."""
        sent = []
        for partition in range(len(self.broker.topics["in"].partitions)):
            values = numbered(count, f"{prefix}{partition}-")
            self.broker.send("in", partition, values)
            sent += values
        return sent

    @property
    def written(self) -> list[bytes]:
        return sorted(value or b"" for value in self.broker.values("out"))

    @property
    def offsets(self) -> dict[int, int]:
        return self.broker.committed("p", "in")

    def is_done(self, sent: list[bytes]) -> bool:
        return len(self.broker.values("out")) >= len(sent)

    def check_ended(self) -> None:
        assert self.log.closed
        assert self.log.open_feeds == 0
