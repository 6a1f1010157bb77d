"""What must be true before the first shard runs: topics exist, and the ledger has fixed the number of shards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millstream.processor import ledger
from millstream.processor.errors import PipelineError
from millstream.processor.event_log import EventLog
from millstream.processor.ledger import CreatedRecord, LedgerRecord, LedgerState, ReadingRecord
from millstream.processor.log import Log, TopicPlan
from millstream.processor.names import Names

if TYPE_CHECKING:
    # The agent asks for the names, and loads no stages.
    from millstream.processor.built import BuiltPipeline

_log: Final = EventLog(logging.getLogger("millstream.engine"))

_WAIT_FOR_TOPICS_S = 1.0
_SHARDS_DEFAULT_MIN = 2
# A dead letter carries its record and what is known of the error; this is room for the latter.
_DEAD_LETTER_HEADROOM_BYTES = 64 * 1024
# Whoever finds the ledger empty thinks itself alone: nothing of it ever goes by time or size.
_LEDGER_SETTINGS = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
# Beats are of no use after a second. There is a file for each minute, deleted soon after: by the broker's clock, as a
# node's may be an hour ahead. The leader alone stores a beat, so that a slow replica is not taken for a dead node.
_BEATS_SETTINGS = {
    "retention.ms": "60000",
    "retention.bytes": str(64 * 1024 * 1024),
    "segment.ms": "60000",
    "segment.bytes": str(16 * 1024 * 1024),
    "cleanup.policy": "delete",
    "message.timestamp.type": "LogAppendTime",
    "min.insync.replicas": "1",
}
_REPLICATION_MAX = 3


@dataclass(frozen=True, slots=True)
class Preparation:
    """What preparation found."""

    shards: int
    ledger: LedgerState


def default_shards(partitions: int, workers: int) -> int:
    """One for each worker that the first start has, at least 2, and no more than the widest input has partitions.

    Every shard commits transactions of its own, and each costs the broker 1 to 3 ms of CPU; more shards buy a finer
    takeover. Whoever means to add nodes later says `shards=`.
    """
    return max(1, min(partitions, max(workers, _SHARDS_DEFAULT_MIN)))


async def prepare(log_: Log, pipeline: BuiltPipeline, workers: int = 1) -> Preparation:
    """Make sure of topics and ledger. Waits for missing topics where the pipeline says so.

    `workers` is how many share the work; a first start chooses the number of shards by it.

    Raises PipelineError when topics are missing and the pipeline says to fail, or when `shards` differs from what the
    ledger fixed.
    """
    await _ensure_topics(log_, pipeline)
    await _ensure_own_topics(log_, Names.of(pipeline.name))
    partitions = await _widest_input(log_, pipeline)
    state = await _ensure_ledger(log_, pipeline, partitions, workers)
    assert state.shards is not None
    if pipeline.shards is not None and pipeline.shards != state.shards:
        raise PipelineError(
            f"pipeline {pipeline.name!r} cannot be started",
            [f"shards={pipeline.shards}, but its first start fixed {state.shards}: keep that, or use another name"],
        )
    return Preparation(state.shards, state)


async def _ensure_topics(log_: Log, pipeline: BuiltPipeline) -> None:
    inputs = [topic.topic for topic in pipeline.inputs]
    outputs = list(pipeline.output_topics)
    if pipeline.missing_topics == "fail":
        await _refuse_missing(log_, pipeline, inputs, outputs)
    elif pipeline.missing_topics == "create":
        await _create_missing(log_, pipeline, inputs, "input")
        await _create_missing(log_, pipeline, outputs, "output")
    else:
        await _wait_for(log_, [*inputs, *outputs])
    if pipeline.dead_letter_topic is not None and await log_.missing_topics([pipeline.dead_letter_topic]):
        largest = max((await log_.record_bytes_max(inputs)).values())
        settings = {"max.message.bytes": str(largest + _DEAD_LETTER_HEADROOM_BYTES)}
        partitions = await _widest_input(log_, pipeline)
        await log_.create_topics([TopicPlan(pipeline.dead_letter_topic, partitions, settings)])
        _log.info("topics.created", topics=pipeline.dead_letter_topic, role="dead letters", partitions=partitions)


async def _refuse_missing(log_: Log, pipeline: BuiltPipeline, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    missing = set(await log_.missing_topics([*inputs, *outputs]))
    if missing:
        remedy = "create it, or say missing_topics='create' or 'wait'"
        raise PipelineError(
            f"pipeline {pipeline.name!r} cannot be started",
            [f"input topic {topic!r} does not exist; {remedy}" for topic in inputs if topic in missing]
            + [f"output topic {topic!r} does not exist; {remedy}" for topic in outputs if topic in missing],
        )


async def _create_missing(log_: Log, pipeline: BuiltPipeline, topics: Sequence[str], role: str) -> None:
    if missing := await log_.missing_topics(topics):
        partitions = await _widest_input(log_, pipeline)
        await log_.create_topics([TopicPlan(topic, partitions, {}) for topic in missing])
        _log.info("topics.created", topics=",".join(missing), role=role, partitions=partitions)


async def _wait_for(log_: Log, topics: Sequence[str]) -> None:
    told: set[str] = set()
    while missing := await log_.missing_topics(topics):
        if told != set(missing):
            told = set(missing)
            _log.warning("topics.awaited", topics=",".join(missing))
        await asyncio.sleep(_WAIT_FOR_TOPICS_S)


async def _widest_input(log_: Log, pipeline: BuiltPipeline) -> int:
    counts = await log_.partition_counts([topic.topic for topic in pipeline.inputs])
    return max(counts.values(), default=1)


def own_topics(names: Names, brokers: int) -> list[TopicPlan]:
    """The ledger and the beats as they are created on a cluster of so many brokers.

    Up to three copies. A record of the ledger counts when two of three have it, so that any one broker may be lost for
    good; of two, each may be away for a while.
    """
    replication = max(1, min(brokers, _REPLICATION_MAX))
    in_sync = {"min.insync.replicas": "2" if replication == _REPLICATION_MAX else "1"}
    return [
        TopicPlan(names.ledger, 1, _LEDGER_SETTINGS | in_sync, replication),
        TopicPlan(names.beats, 1, _BEATS_SETTINGS, replication),
    ]


async def _ensure_own_topics(log_: Log, names: Names) -> None:
    """Those that exist are left as they are, however they were created."""
    if missing := await log_.missing_topics([names.ledger, names.beats]):
        plans = own_topics(names, await log_.broker_count())
        await log_.create_topics([plan for plan in plans if plan.name in missing])


async def _ensure_ledger(log_: Log, pipeline: BuiltPipeline, partitions: int, workers: int) -> LedgerState:
    """Read the ledger; where it is empty, propose a number of shards. The first proposal in the log's order counts."""
    topic = Names.of(pipeline.name).ledger
    state = await read_state(log_, topic)
    proposals: list[LedgerRecord] = []
    if state.shards is None:
        proposals.append(CreatedRecord(pipeline.shards or default_shards(partitions, workers)))
    counts = await log_.partition_counts([topic.topic for topic in pipeline.inputs])
    proposals += [ReadingRecord(name, count) for name, count in counts.items() if name not in state.widths]
    if proposals:
        await log_.append_to_ledger(topic, [ledger.encode(record) for record in proposals])
        state = await read_state(log_, topic)
    return state


async def read_state(log_: Log, topic: str) -> LedgerState:
    """What the ledger says now."""
    return ledger.fold([ledger.decode(record) for record in await log_.read_ledger(topic)])
