"""A pipeline that copies, and the keeper of one of its shards, for the keeper's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine_bench import PACING, STOP, Copy, numbered
from memory_broker import MemoryBroker
from memory_log import MemoryLog

from millstream.processor import Pipeline
from millstream.processor.columns import OutputRecords
from millstream.processor.counts import Counts
from millstream.processor.keeper import KeeperSettings, ShardKeeper
from millstream.processor.known import Known
from millstream.processor.names import Names
from millstream.processor.preparation import prepare
from millstream.processor.shard import ShardSettings

BEFORE_A_RUN = ("fence", "read-ledger", "committed", "starting", "offsets", "end", "append-ledger", "limits")


class World:
    """A pipeline that copies `in` to `out`, and the keeper of its shard 0."""

    def __init__(self, partitions: int = 1, shards: int = 1, *, until_caught_up: bool = False) -> None:
        self.broker = MemoryBroker()
        self.broker.create("in", partitions)
        self.broker.create("out", partitions)
        self.log = MemoryLog(self.broker, "p")
        self.program = Copy()
        self.shards = shards
        self.until_caught_up = until_caught_up
        self.counts = Counts()
        self.restarts: list[str] = []
        self.outputs: list[OutputRecords] = []
        self.keeper: ShardKeeper | None = None

    async def keep(self, shard: int = 0, **policy: Any) -> None:
        """Prepare, and keep the shard until its end."""
        pipeline = Pipeline("p", shards=self.shards)
        pipeline.read("in").write("out")
        built = replace(pipeline.build(), program=self.program)
        prepared = await prepare(self.log, built)
        known = Known(self.log, Names.of(built.name).ledger, prepared.ledger, built.written_topics)
        settings = KeeperSettings(
            pipeline=built,
            policies={"in": replace(STOP, **policy)},
            shards=prepared.shards,
            known=known,
            shard=ShardSettings(PACING, chunk_bytes=100),
            until_caught_up=self.until_caught_up,
            keep_outputs=True,
        )
        self.keeper = ShardKeeper(shard, self.log, settings, self.on_commit, self.restarts.append)
        fetching = asyncio.create_task(self.log.run())
        try:
            await self.keeper.run()
        finally:
            fetching.cancel()
            await asyncio.wait([fetching])

    def on_commit(self, counts: Counts, outputs: Sequence[OutputRecords]) -> None:
        self.counts.add(counts)
        self.outputs += outputs

    def call(self, method: str) -> None:
        assert self.keeper is not None
        getattr(self.keeper, method)()

    def send(self, count: int, partition: int = 0, prefix: str = "r") -> list[bytes]:
        values = numbered(count, prefix)
        self.broker.send("in", partition, values)
        return values

    @property
    def fences(self) -> int:
        return self.log.journal.count((0, "fence"))

    @property
    def written(self) -> list[bytes | None]:
        return self.broker.values("out")

    @property
    def offsets(self) -> dict[int, int]:
        return self.broker.committed("p", "in")

    def check_dropped(self) -> None:
        assert self.log.open_feeds == 0
