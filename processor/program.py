"""A built pipeline at work: one batch of input through all stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from millstream.processor.columns import Records
from millstream.processor.errors import CorruptBatchError, StalledError
from millstream.processor.interfaces import Effects, ValueCodec
from millstream.processor.partitions import TopicPartition
from millstream.processor.stage_mark import UNWATCHED, StageMark
from millstream.processor.stages.batch import Batch, Failure, Identity
from millstream.processor.stages.corrupt_batches import effects_of
from millstream.processor.stages.dead_letters import dead_letters
from millstream.processor.stages.flow import Flow, Stored
from millstream.processor.stalled import Stalled


class Stage(Protocol):
    """One step: a flow in, a flow out for each of its ports."""

    async def run(self, flow: Flow, batch: Batch) -> tuple[Flow, ...]:
        """Raises StageError where a record fails and the stage's policy is to stop."""


@dataclass(frozen=True, slots=True)
class Step:
    """A stage with its number in the graph, and the steps that take what comes out of each of its ports."""

    number: int
    identity: Identity
    stage: Stage
    children: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Records of some topics, as values of one codec, and the steps that take them."""

    topics: frozenset[str]
    codec: ValueCodec
    identity: Identity
    drops_tombstones: bool
    children: tuple[Step, ...]

    def open(self, batch: Batch) -> Flow:
        """The source's share of the batch; nothing is decoded yet."""
        records = batch.records
        rows = batch.all_rows
        mine = np.array([origin.topic in self.topics for origin in records.origins], np.bool_)
        if not mine.all():
            rows = np.flatnonzero(mine[records.origin])
        if self.drops_tombstones:
            null = records.value.size[rows] < 0
            rows = rows[~null] if null.any() else rows
        stored = Stored(batch.of_rows(records.value, rows), rows, self.codec, self.identity)
        return Flow(rows, stored, stored.order)


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """Implements `Program`. It keeps nothing between batches, so that a batch may be run again after a failure.

    Branches run one after the other, in the order in which they were written down. A record that fails in one branch
    goes on in the others.
    """

    sources: tuple[Source, ...]
    dead_letter_topic: str | None

    async def process(
        self,
        records: Records,
        record_bytes_max: Mapping[str, int],
        mark: StageMark = UNWATCHED,
        given_up: Stalled | None = None,
    ) -> Effects:
        """Run all stages on a batch. Raises StageError where a record fails and the stage's policy is to stop."""
        batch = Batch(records, record_bytes_max, mark)
        batch.counts.records_in = len(records)
        batch.counts.bytes_in = records.key.byte_count + records.value.byte_count
        for source in self.sources:
            await _run(source.children, source.open(batch), batch, given_up)
        if self.dead_letter_topic is not None:
            letters = dead_letters(self.dead_letter_topic, batch, record_bytes_max)
            if letters is not None:
                batch.outputs.append(letters)
        return Effects(batch.outputs, batch.counts)

    def leave_out(
        self, partition: TopicPartition, error: CorruptBatchError, record_bytes_max: Mapping[str, int]
    ) -> Effects:
        """What the policy of the read makes of a stored batch that stays damaged. Raises StageError."""
        source = next(source for source in self.sources if partition.topic in source.topics)
        return effects_of(error, partition, source.identity, self.dead_letter_topic, record_bytes_max)


async def _run(steps: tuple[Step, ...], flow: Flow, batch: Batch, given_up: Stalled | None) -> None:
    # A stack of our own rather than recursion: a pipeline may be longer than Python's call stack is deep.
    waiting = [(step, flow) for step in reversed(steps)]
    while waiting:
        step, taken = waiting.pop()
        if not len(taken):
            continue
        if given_up is not None and given_up.stage == step.identity.stage:
            _give_up(taken, step.identity, given_up, batch)
            continue
        batch.mark.enter(step.number)
        flows = await step.stage.run(taken, batch)
        for given, children in reversed(list(zip(flows, step.children, strict=True))):
            waiting.extend((child, given) for child in reversed(children))


def _give_up(flow: Flow, stage: Identity, given_up: Stalled, batch: Batch) -> None:
    """The stage's policy takes all values; its function, which would not come back from them, is not called."""
    error = StalledError(
        "the stage did not come back from it in time and its worker had to be replaced, again and again; mend the "
        "function, or raise stage_timeout_s if it only needs longer"
    )
    for row in dict.fromkeys(flow.rows.tolist()):
        batch.fail(Failure(stage, row, error, given_up.attempts))
