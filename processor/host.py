"""The engine in a worker: brings shards to life on a log, and lets go of them in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from millstream.processor.build import BuiltPipeline
from millstream.processor.columns import OutputRecords
from millstream.processor.counts import Counts
from millstream.processor.device_desk import Offloading
from millstream.processor.errors import MillstreamError
from millstream.processor.intake import InputPolicy, of_shard
from millstream.processor.keeper import KeeperSettings, ShardKeeper
from millstream.processor.known import Known
from millstream.processor.log import Log
from millstream.processor.measures import REASON_CHARS_MAX, Measures, Tally
from millstream.processor.names import Names
from millstream.processor.oversight import Oversight, Watched
from millstream.processor.pacing import Pacing, default_interval_ms
from millstream.processor.preparation import Preparation, prepare
from millstream.processor.shard import ShardSettings
from millstream.processor.shard_host import (
    DeviceNews,
    HostEvent,
    Prepared,
    ShardCommitted,
    ShardReleased,
    ShardRestarted,
    ShardStarted,
)
from millstream.processor.shard_watch import ShardWatch
from millstream.processor.stage_page import StagePage
from millstream.processor.stalled import Stalled, of_shards
from millstream.processor.together import first_error, told
from millstream.processor.turns import Turns

_WATCH_S = 1.0
_BACKLOG_LOOK_S = 0.25
_BACKLOG_INTERVAL_S = 0.1
_PAUSE_AFTER_COMMIT_S = 0.004
_GATHERED_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How long a run goes on, and what it keeps.

    `until_caught_up`: each shard ends at the end of its partitions as it was when the shard began.
    `on_outputs` is given what was committed; the outputs are then kept in memory until their commit.
    `workers` is how many hosts share the pipeline's shards at its first start.
    `stays`: a host whose shards have all come to their end goes on, since there may be others for it, until `stop`.
    """

    until_caught_up: bool = False
    on_outputs: Callable[[Sequence[OutputRecords]], None] | None = None
    workers: int = 1
    stays: bool = False


class Host:
    """Implements `shard_host.ShardHost` for a pipeline on a log."""

    def __init__(
        self, pipeline: BuiltPipeline, log: Log, options: RunOptions, offloading: Offloading | None = None
    ) -> None:
        self._offloading = offloading
        self._pipeline = pipeline
        self._log = log
        self._options = options
        self._counts = Counts()
        self._tally = Tally()
        self._waits_for: str | None = None
        self._prepared: Preparation | None = None
        self._known: Known | None = None
        self._wanted: frozenset[int] = frozenset()
        self._keepers: dict[int, ShardKeeper] = {}
        self._not_started: deque[ShardKeeper] = deque()
        self._finished: set[int] = set()
        self._uncommitted: set[int] = set()
        self._report: Callable[[HostEvent], None] = lambda _: None
        self._changed = asyncio.Event()
        self._stopping = False
        self._stalls: Sequence[Stalled] = ()
        self._tokens: Mapping[int, int] = {}
        self._watched = Watched(None, Turns(), pipeline.watch_plan.attempts)

    async def prepare(self) -> Prepared:
        """Connect, make sure of topics and ledger, fix the number of shards."""
        try:
            self._waits_for = "a broker that answers"
            await self._log.connect()
            self._waits_for = "its topics and ledger"
            self._prepared = await prepare(self._log, self._pipeline, self._options.workers)
            ledger_topic = Names.of(self._pipeline.name).ledger
            self._known = Known(self._log, ledger_topic, self._prepared.ledger, self._pipeline.written_topics)
            await self._known.record_bytes_max()
            self._waits_for = None
            for stage in self._pipeline.offloads:
                stage.load()
        except BaseException:
            self._log.close()
            raise
        requires_device = any(stage.definition.device == "required" for stage in self._pipeline.offloads)
        return Prepared(self._pipeline.name, self._prepared.shards, self._pipeline.watch_plan, requires_device)

    async def serve(self, report: Callable[[HostEvent], None], page: StagePage | None = None) -> None:
        """Run what is assigned until `stop`, or until all of it is caught up where that was asked for."""
        self._report = report
        if page is not None:
            page.name_topics(self._pipeline.watch_plan.topics)
            self._watched = replace(self._watched, page=page)
        try:
            async with asyncio.TaskGroup() as tasks:
                company = [tasks.create_task(told(self._log.run)), tasks.create_task(told(self._watch_partitions))]
                if self._offloading is not None:
                    company.append(tasks.create_task(told(self._offloading.run, report)))
                    company.append(tasks.create_task(told(self._watch_backlog)))
                # Keepers are started here and nowhere else: this task is cancelled as soon as something has failed.
                while not self._is_done():
                    while self._not_started:
                        tasks.create_task(told(self._keep, self._not_started.popleft()))
                    self._changed.clear()
                    await self._changed.wait()
                for task in company:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise first_error(group) from group
        finally:
            self._log.close()
            # Whoever waits in `stop` need not wait for shards that an error has ended.
            self._keepers.clear()
            self._changed.set()

    def _is_done(self) -> bool:
        if self._keepers:
            return False
        is_at_end = not self._options.stays and self._wanted and self._wanted <= self._finished
        return self._stopping or bool(is_at_end)

    def assign(
        self, shards: frozenset[int], stalls: Sequence[Stalled] = (), tokens: Mapping[int, int] | None = None
    ) -> None:
        """The shards to own from now on, where workers hung in them, and the tokens of their ownership."""
        self._wanted = shards
        self._tokens = tokens or {}
        self._stalls = stalls
        for shard, keeper in self._keepers.items():
            if shard not in shards:
                keeper.release()
        self._make_keepers()

    def _make_keepers(self) -> None:
        """Every shard that is wanted has a keeper at once, so that whatever becomes of it its release is reported."""
        if not self._stopping:
            for shard in sorted(self._wanted - self._keepers.keys() - self._finished):
                self._keepers[shard] = self._keeper(shard)
                self._not_started.append(self._keepers[shard])
        self._changed.set()

    def _keeper(self, shard: int) -> ShardKeeper:
        self._uncommitted.add(shard)
        return ShardKeeper(
            shard,
            self._log,
            self._keeper_settings(),
            partial(self._on_commit, shard),
            lambda reason: self._report(ShardRestarted(shard, reason)),
            ShardWatch(self._tally),
            Oversight(shard, self._pipeline.program, self._watched, of_shards(self._stalls, {shard})),
            lambda: self._tokens.get(shard, 0),
        )

    def _keeper_settings(self) -> KeeperSettings:
        assert self._prepared is not None
        assert self._known is not None
        interval_ms = self._pipeline.settings.commit_interval_ms or default_interval_ms(self._prepared.shards)
        pacing = Pacing(
            interval_s=interval_ms / 1000,
            backlog_interval_s=max(_BACKLOG_INTERVAL_S, interval_ms / 1000),
            pause_s=_PAUSE_AFTER_COMMIT_S,
            gathered_bytes_max=_GATHERED_BYTES_MAX,
        )
        return KeeperSettings(
            pipeline=self._pipeline,
            policies={topic.topic: InputPolicy(topic.start, topic.on_offset_lost) for topic in self._pipeline.inputs},
            shards=self._prepared.shards,
            known=self._known,
            shard=ShardSettings(pacing),
            until_caught_up=self._options.until_caught_up,
            keep_outputs=self._options.on_outputs is not None,
        )

    async def _keep(self, keeper: ShardKeeper) -> None:
        self._report(ShardStarted(keeper.shard))
        await keeper.run()
        del self._keepers[keeper.shard]
        if not keeper.is_released:
            self._finished.add(keeper.shard)
        self._report(ShardReleased(keeper.shard))
        self._make_keepers()

    def _on_commit(self, shard: int, counts: Counts, outputs: Sequence[OutputRecords]) -> None:
        if shard in self._uncommitted:
            self._uncommitted.remove(shard)
            self._report(ShardCommitted(shard))
        self._counts.add(counts)
        if self._options.on_outputs is not None:
            self._options.on_outputs(outputs)

    async def _watch_partitions(self) -> None:
        """Begin a shard's run anew when partitions were added to its topics."""
        assert self._prepared is not None
        topics = [topic.topic for topic in self._pipeline.inputs]
        while True:
            await asyncio.sleep(_WATCH_S)
            counts = await self._log.partition_counts(topics)
            for shard, keeper in self._keepers.items():
                if not keeper.partitions.issuperset(of_shard(counts, shard, self._prepared.shards)):
                    keeper.rerun()

    async def _watch_backlog(self) -> None:
        """Have the placements of offload stages know what waits in the log."""
        while True:
            waiting = sum(keeper.waiting() for keeper in self._keepers.values())
            for stage in self._pipeline.offloads:
                stage.placement.backlog(waiting)
            await asyncio.sleep(_BACKLOG_LOOK_S)

    def device_news(self, news: DeviceNews) -> None:
        """The node's answer to a wish for a device, or the end of a lease."""
        if self._offloading is not None:
            self._offloading.heard(news)

    async def stop(self, timeout_s: float) -> None:
        """Commit what is in hand within the bound, and let go of everything.

        What is not committed by then is dropped, and will be done again by whoever owns the shard next.
        """
        self._stopping = True
        for keeper in self._keepers.values():
            keeper.release()
        self._changed.set()
        try:
            async with asyncio.timeout(timeout_s):
                while self._keepers:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise MillstreamError(
                f"shards {sorted(self._keepers)} did not drain within {timeout_s:g} s; the rest is redone"
            ) from error

    def counts(self) -> Counts:
        """What was committed since the host was made."""
        return self._counts

    def measures(self) -> Measures:
        """What was measured since the host was made, and how its shards are now."""
        topics = [topic.topic for topic in self._pipeline.inputs]
        reports = [keeper.report() for _, keeper in sorted(self._keepers.items())]
        failure = self._log.last_failure
        return Measures(self._tally, topics, reports, self._waits_for, failure and failure[:REASON_CHARS_MAX])
