"""Keeps one shard running: run after run, each from the fence, until the shard is released."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from millstream.processor.build import BuiltPipeline
from millstream.processor.columns import OutputRecords
from millstream.processor.errors import FencedError, OutcomeUnknownError, RefusedError, UnavailableError
from millstream.processor.gathering import Gatherer
from millstream.processor.intake import InputPolicy, of_shard
from millstream.processor.interfaces import Counts
from millstream.processor.known import Known
from millstream.processor.log import Log, ShardLog
from millstream.processor.measures import ShardReport
from millstream.processor.oversight import Oversight
from millstream.processor.ownership import begin_ownership
from millstream.processor.partitions import TopicPartition
from millstream.processor.positions import Begun, begin
from millstream.processor.shard import ShardRun, ShardSettings, Unanswered
from millstream.processor.shard_watch import ShardWatch

_PAUSE_S_MIN = 0.02
_PAUSE_S_MAX = 2.0
_FENCES_IN_ROW_MAX = 12
_GOOD_LIFE_S = 30.0


@dataclass(frozen=True, slots=True)
class KeeperSettings:
    """What all keepers of a host have in common."""

    pipeline: BuiltPipeline
    policies: Mapping[str, InputPolicy]
    shards: int
    shard: ShardSettings
    known: Known
    until_caught_up: bool
    keep_outputs: bool


class ShardKeeper:
    """Runs one shard until `release`, or to its end where the run has one."""

    def __init__(
        self,
        shard: int,
        log_: Log,
        settings: KeeperSettings,
        on_commit: Callable[[Counts, Sequence[OutputRecords]], None],
        on_restart: Callable[[str], None],
        watch: ShardWatch | None = None,
        oversight: Oversight | None = None,
        token: Callable[[], int] = lambda: 0,
    ) -> None:
        self.shard = shard
        self._oversight = oversight
        self._token = token
        self._log = log_
        self._settings = settings
        self._on_commit = on_commit
        self._on_restart = on_restart
        self._watch = watch or ShardWatch()
        self._released = asyncio.Event()
        self._again = False
        self._wake = asyncio.Event()
        self._preparing: asyncio.Timeout | None = None
        self._run: ShardRun | None = None
        self._until: Mapping[TopicPartition, int] | None = None
        self._record_bytes_max: Mapping[str, int] = {}
        self._has_committed = False
        self._unanswered: Unanswered | None = None
        self.partitions: frozenset[TopicPartition] = frozenset()

    def report(self) -> ShardReport:
        """The shard as it is now."""
        topics = [topic.topic for topic in self._settings.pipeline.inputs]
        return self._watch.report(self.shard, topics, {} if self._run is None else self._run.standings())

    def waiting(self) -> int:
        """How many records of the shard are known to wait in the log."""
        return 0 if self._run is None else self._run.waiting()

    @property
    def is_released(self) -> bool:
        """Whether `release` was called."""
        return self._released.is_set()

    def release(self) -> None:
        """Commit what is taken, then let go; `run` returns. At once, where nothing was taken yet."""
        self._released.set()
        if self._preparing is not None:
            self._preparing.reschedule(asyncio.get_running_loop().time())
            self._preparing = None
        self._end_run()

    def rerun(self) -> None:
        """End the run in order and begin another: the shard's partitions have changed."""
        self._again = True
        self._end_run()

    def _end_run(self) -> None:
        self._wake.set()
        if self._run is not None:
            self._run.stop()

    async def run(self) -> None:
        """Run until released, or caught up. Raises UserError and RefusedError, which no new run can mend."""
        loop = asyncio.get_running_loop()
        failures = fences = 0
        while not self.is_released:
            self._has_committed = False
            began = loop.time()
            try:
                await self._run_once()
            except (FencedError, OutcomeUnknownError, UnavailableError) as error:
                if loop.time() - began > _GOOD_LIFE_S:
                    failures = fences = 0
                failures = 0 if self._has_committed else failures + 1
                fences = fences + 1 if isinstance(error, FencedError) else 0
                self._refuse_a_contest(fences, error)
                reason = f"{type(error).__name__}: {error}"
                self._watch.restarting(reason)
                self._on_restart(reason)
                # Of two owners each may commit a little before the other fences it: a contest has longer pauses too.
                setbacks = max(failures, fences - 1)
                await self._back_off(min(_PAUSE_S_MIN * 2**setbacks, _PAUSE_S_MAX))
            else:
                if not self._again:
                    return

    def _refuse_a_contest(self, fences: int, error: Exception) -> None:
        # A takeover fences once, and an owner that does not hear what the others have decided a few times more: so
        # many, with the pauses between them, take more than ten seconds.
        if fences > _FENCES_IN_ROW_MAX:
            raise RefusedError(
                f"shard {self.shard} was fenced {fences} times in a row: another process runs a pipeline named "
                f"{self._settings.pipeline.name!r}, or one of its nodes has not heard of the others for long. "
                "Stop one of the two, or give it another name"
            ) from error

    async def _run_once(self) -> None:
        shard_log = self._log.shard(self.shard)
        self._watch.preparing()
        # Whoever has had the shard meanwhile has fenced us: then this is another run, with the token as it is now.
        begin_ownership(self._token())
        try:
            await self._fence_and_run(shard_log)
        finally:
            if self._run is not None:
                self._unanswered = self._run.unanswered
            self._run = None
            shard_log.close()

    async def _fence_and_run(self, shard_log: ShardLog) -> None:
        begun = await self._begun(shard_log)
        if begun is None or self.is_released or self._again:
            return
        self._run = ShardRun(
            shard_log,
            self._settings.pipeline.program,
            self._settings.policies,
            self._record_bytes_max,
            self._settings.shard,
            self._committed,
            keep_outputs=self._settings.keep_outputs,
            watch=self._watch,
            oversight=self._oversight,
            gatherer=Gatherer(self._settings.pipeline.offloads),
        )
        self._watch.running()
        await self._run.run(begun.permit, begun.positions, self._until)

    async def _begun(self, shard_log: ShardLog) -> Begun | None:
        """All that precedes a run. None when there is nothing to run, or on `release`: nothing is in hand yet."""
        try:
            async with asyncio.timeout(None) as self._preparing:
                return await self._begin(shard_log)
        except TimeoutError:
            if not self.is_released:
                raise
            return None
        finally:
            self._preparing = None

    async def _begin(self, shard_log: ShardLog) -> Begun | None:
        permit = await shard_log.fence()
        # A change of partitions from here on asks for another run; what changed before is seen now.
        self._again = False
        topics = [topic.topic for topic in self._settings.pipeline.inputs]
        counts = await self._log.partition_counts(topics)
        self.partitions = frozenset(of_shard(counts, self.shard, self._settings.shards))
        if not self.partitions:
            # A topic that is not known at the moment may well have partitions for this shard.
            if not self._settings.until_caught_up or len(counts) < len(topics):
                self._watch.running()
                await self._until_again()
            return None
        partitions = sorted(self.partitions)
        known = self._settings.known
        facts = await known.facts(partitions)
        policies = self._settings.policies
        begun = await begin(self._log, shard_log, permit, partitions, policies, known.ledger_topic, facts)
        self._count_unanswered(begun.positions)
        if self._settings.until_caught_up:
            self._until = await self._ends(shard_log, partitions)
        self._record_bytes_max = await known.record_bytes_max()
        return begun

    def _count_unanswered(self, committed: Mapping[TopicPartition, int]) -> None:
        """What the run before has done is told now, if its last commit was made after all.

        Where another owner had the shard in between and has come to the very same offsets, it is told by both.
        """
        unanswered, self._unanswered = self._unanswered, None
        if unanswered is not None and unanswered.is_in(committed):
            self._committed(unanswered.counts, unanswered.advanced, unanswered.outputs)

    async def _ends(self, shard_log: ShardLog, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where the run ends: at the ends as they were when it began, or lower where a log was made anew since."""
        ends = {partition: bound.end for partition, bound in (await shard_log.bounds(partitions)).items()}
        if self._until is None:
            return ends
        return {partition: min(end, ends.get(partition, end)) for partition, end in self._until.items()}

    def _committed(
        self, counts: Counts, positions: Mapping[TopicPartition, int], outputs: Sequence[OutputRecords]
    ) -> None:
        del positions
        self._has_committed = True
        self._on_commit(counts, outputs)

    async def _back_off(self, seconds: float) -> None:
        """Wait for so long, or until released. A change of partitions can wait for the next run, which sees it."""
        try:
            async with asyncio.timeout(seconds):
                await self._released.wait()
        except TimeoutError:
            pass

    async def _until_again(self) -> None:
        """Wait until the partitions have changed. `release` ends this with all that precedes a run."""
        while not self._again:
            self._wake.clear()
            await self._wake.wait()
