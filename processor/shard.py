"""One run of a shard: fence, read the committed positions, then read, compute and commit until told to stop.

Two loops work side by side: one computes the next batch while the other commits the last. A run has no repair: whatever
leaves an outcome open ends it, and with it every buffer and everything that was read ahead; the next run begins
with the fence again (design, invariants I2 and I4).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from millstream.processor.careful import Offsets
from millstream.processor.columns import OutputRecords, Records
from millstream.processor.errors import (
    CorruptBatchError,
    FencedError,
    InvariantError,
    OutcomeUnknownError,
    UnavailableError,
    UserError,
)
from millstream.processor.gathering import Gatherer
from millstream.processor.intake import InputPolicy, Intake, Taken
from millstream.processor.interfaces import Counts, Effects, Program
from millstream.processor.log import Outbox, Permit, ShardLog
from millstream.processor.oversight import Oversight
from millstream.processor.pacing import Commits, Gathered, Pacing, commit_wait_s
from millstream.processor.partitions import TopicPartition
from millstream.processor.shard_watch import Sample, ShardWatch, Standing, sample_of
from millstream.processor.together import together

LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How a shard works: pacing, how much it computes at a time, and how often an idle one commits again.

    Committed offsets expire a week after their last commit; `recommit_s` keeps those of quiet partitions alive. An idle
    shard looks every `look_s` whether it was fenced, since no commit would tell it.
    """

    pacing: Pacing
    chunk_bytes: int = 512 * 1024
    recommit_s: float = 6 * 3600.0
    look_s: float = LOOK_S


@dataclass(slots=True)
class Transaction:
    """What was gathered since the last commit. `moved` are partitions whose old position is lost: it may go back."""

    outbox: Outbox
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    moved: set[TopicPartition] = field(default_factory=set)
    counts: Counts = field(default_factory=Counts)
    outputs: list[OutputRecords] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    batches: int = 0
    input_bytes: int = 0

    @property
    def byte_count(self) -> int:
        """The larger of what came in and what goes out, so that neither is unbounded."""
        return max(self.input_bytes, self.outbox.byte_count)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A commit that was made, or not: nobody answered. `advanced` are the offsets that only it would have committed."""

    counts: Counts
    advanced: Mapping[TopicPartition, int]
    outputs: Sequence[OutputRecords]

    def is_in(self, committed: Mapping[TopicPartition, int]) -> bool:
        """Whether it was made, by the stable offsets after the next fence. A transaction is there whole or not (I1)."""
        return all(committed.get(partition) == offset for partition, offset in self.advanced.items())


CommitListener = Callable[[Counts, Mapping[TopicPartition, int], Sequence[OutputRecords]], None]


class ShardRun:
    """One run. `stop` ends it in order; cancelling `run` ends it at once."""

    def __init__(
        self,
        shard_log: ShardLog,
        program: Program,
        policies: Mapping[str, InputPolicy],
        record_bytes_max: Mapping[str, int],
        settings: ShardSettings,
        on_commit: CommitListener,
        *,
        keep_outputs: bool = False,
        watch: ShardWatch | None = None,
        oversight: Oversight | None = None,
        gatherer: Gatherer | None = None,
    ) -> None:
        self._log = shard_log
        self._program = program
        self._policies = policies
        self._record_bytes_max = record_bytes_max
        self._settings = settings
        self._on_commit = on_commit
        self._keep_outputs = keep_outputs
        self._watch = watch or ShardWatch()
        self._oversight = oversight
        self._gatherer = gatherer or Gatherer()
        self._stopping = False
        self._computed_all = False
        self._failure: UserError | None = None
        self._work = asyncio.Event()
        self._nudge = asyncio.Event()
        self._room = asyncio.Event()
        self._gathering = Transaction(shard_log.outbox())
        self._committed: dict[TopicPartition, int] = {}
        self.unanswered: Unanswered | None = None
        self._recommit_at = 0.0
        self._until: dict[TopicPartition, int] | None = None
        self._intake: Intake | None = None

    def standings(self) -> Mapping[TopicPartition, Standing]:
        """How far each partition is; empty before the run has begun to read."""
        return {} if self._intake is None else self._intake.standings(self._committed)

    def waiting(self) -> int:
        """How many offsets lie between what was taken and the ends as last seen."""
        return 0 if self._intake is None else self._intake.lag()

    def stop(self) -> None:
        """Take nothing more; `run` returns when everything taken is committed."""
        self._stopping = True
        self._room.set()
        self._nudge.set()
        if self._intake is not None:
            self._intake.interrupt()

    async def run(
        self,
        permit: Permit,
        positions: Mapping[TopicPartition, int],
        until: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Read from `positions`, which are committed, until `stop` or until the positions `until` are reached.

        Raises FencedError, OutcomeUnknownError and UnavailableError, which end this run; StageError and
        OffsetLostError, which end the pipeline, after everything before the offending batch is committed.
        """
        self._committed = dict(positions)
        self._recommit_at = asyncio.get_running_loop().time() + self._settings.recommit_s
        self._until = None if until is None else dict(until)
        self._intake = Intake(self._log, permit, self._policies, self._leave_out)
        try:
            self._intake.open(positions)
            await together(partial(self._compute_loop, self._intake), partial(self._commit_loop, permit, self._intake))
        finally:
            self._intake.close()
        if self._failure is not None:
            raise self._failure

    async def _compute_loop(self, intake: Intake) -> None:
        try:
            while not self._stopping and not _reached(intake, self._until):
                await self._compute_next(intake)
        except UserError as error:
            # What was gathered before is whole and good: it is committed before the error is raised.
            self._failure = error
        self._computed_all = True
        self._work.set()
        self._nudge.set()

    async def _compute_next(self, intake: Intake) -> None:
        if self._gathering.byte_count >= self._settings.pacing.gathered_bytes_max:
            self._room.clear()
            self._nudge.set()
            await self._room.wait()
            return
        gathering = self._gatherer.wanted()
        if gathering.wait_s > 0 and intake.has_something:
            await intake.gather(gathering.records, gathering.wait_s)
        taken = await intake.take(self._gatherer.bytes_wanted(gathering, self._settings.chunk_bytes))
        if not taken.positions:
            await intake.wait()
            return
        effects = list(taken.left_out)
        if taken.records is not None:
            self._gatherer.taken(len(taken.records), taken.byte_count)
            effects += await self._process(taken.records, taken.ranges)
            if taken.since is not None:
                self._gatherer.done(time.monotonic() - taken.since)
        self._gather(taken, effects)
        self._work.set()
        # Without this a backlog would keep the event loop from ever serving its sockets.
        await asyncio.sleep(0)

    async def _process(self, records: Records, ranges: Offsets) -> Sequence[Effects]:
        if self._oversight is None:
            return [await self._program.process(records, self._record_bytes_max)]
        return await self._oversight.process(records, ranges, self._record_bytes_max)

    def _leave_out(self, partition: TopicPartition, error: CorruptBatchError) -> Effects:
        return self._program.leave_out(partition, error, self._record_bytes_max)

    def _gather(self, taken: Taken, effects: Sequence[Effects]) -> None:
        # Nothing is awaited between the effects of a batch and its positions: whatever is sealed has both (I1).
        gathering = self._gathering
        try:
            for effect in effects:
                for outputs in effect.outputs:
                    gathering.outbox.add(outputs)
        except BaseException:
            # Now the outbox holds half of a batch, and the commit loop may have its turn before this error ends it.
            self._gathering = Transaction(self._log.outbox())
            raise
        for effect in effects:
            gathering.counts.add(effect.counts)
            if self._keep_outputs:
                gathering.outputs.extend(effect.outputs)
        gathering.positions.update(taken.positions)
        gathering.input_bytes += taken.byte_count
        if taken.records is not None:
            gathering.samples.append(sample_of(taken.records))
            gathering.batches += 1
        gathering.moved.update(taken.moved)
        if self._until is not None:
            self._until |= {p: min(self._until[p], end) for p, end in taken.moved.items() if p in self._until}

    async def _commit_loop(self, permit: Permit, intake: Intake) -> None:
        loop = asyncio.get_running_loop()
        commits = Commits()
        while True:
            await self._wait_for_work(permit)
            if self._gathering.positions:
                await self._pace(intake, commits)
            if self._gathering.positions:
                start = loop.time()
                permit = await self._commit(permit)
                commits = commits.followed_by(start, loop.time())
            elif self._computed_all:
                return

    async def _wait_for_work(self, permit: Permit) -> None:
        """Return when something was gathered, when everything was computed, or when it is time to commit again.

        Raises FencedError where all was quiet and another owner has fenced the shard meanwhile.
        """
        loop = asyncio.get_running_loop()
        if not self._gathering.positions and not self._computed_all:
            self._work.clear()
            try:
                async with asyncio.timeout_at(min(self._recommit_at, loop.time() + self._settings.look_s)):
                    await self._work.wait()
            except TimeoutError:
                if not await self._log.holds(permit):
                    raise FencedError("another owner has fenced this shard while it was idle") from None
        if loop.time() >= self._recommit_at:
            # Those of quiet partitions too, whose neighbours keep the shard busy. Only what is committed already: the
            # intake is ahead of that by the batch that is being computed.
            self._gathering.positions = self._committed | self._gathering.positions
            self._recommit_at = loop.time() + self._settings.recommit_s

    async def _pace(self, intake: Intake, commits: Commits) -> None:
        loop = asyncio.get_running_loop()
        while not self._computed_all:
            gathering = self._gathering
            gathered = Gathered(gathering.counts.records_in, gathering.byte_count, intake.lag())
            wait_s = commit_wait_s(self._settings.pacing, gathered, commits, now=loop.time())
            if wait_s == 0:
                return
            self._nudge.clear()
            try:
                # Not all of it at once: what is a backlog now may be worked off soon.
                async with asyncio.timeout(min(wait_s, self._settings.pacing.interval_s)):
                    await self._nudge.wait()
            except TimeoutError:
                pass

    async def _commit(self, permit: Permit) -> Permit:
        transaction, self._gathering = self._gathering, Transaction(self._log.outbox())
        self._room.set()
        for partition, position in transaction.positions.items():
            if position < self._committed.get(partition, 0) and partition not in transaction.moved:
                raise InvariantError(
                    f"the offset of {partition} would go back from {self._committed[partition]} to {position} (I3)"
                )
        self._watch.commit_began()
        try:
            permit = await self._log.commit(permit, transaction.outbox.seal(), transaction.positions)
        except BaseException as error:
            self._watch.failed(error)
            if isinstance(error, (OutcomeUnknownError, UnavailableError)):
                self.unanswered = self._what_may_be_in(transaction)
            raise
        self._watch.committed(transaction.samples, transaction.batches)
        self._committed.update(transaction.positions)
        self._on_commit(transaction.counts, transaction.positions, transaction.outputs)
        return permit

    def _what_may_be_in(self, transaction: Transaction) -> Unanswered | None:
        before = self._committed
        advanced = {p: at for p, at in transaction.positions.items() if at != before.get(p)}
        return Unanswered(transaction.counts, advanced, transaction.outputs) if advanced else None


def _reached(intake: Intake, until: Mapping[TopicPartition, int] | None) -> bool:
    return until is not None and all(intake.positions.get(p, 0) >= end for p, end in until.items())
