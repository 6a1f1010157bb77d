"""A stored batch that cannot be read: stop, or go on behind it, by the policy of the read."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.processor.counts import Counts
from millstream.processor.errors import CorruptBatchError, StageError
from millstream.processor.interfaces import Effects
from millstream.processor.partitions import TopicPartition
from millstream.processor.stages.batch import Identity
from millstream.processor.stages.dead_letters import corrupt_batch_letter
from millstream.processor.stages.sizes import too_large


def effects_of(
    error: CorruptBatchError,
    partition: TopicPartition,
    read: Identity,
    dead_letter_topic: str | None,
    record_bytes_max: Mapping[str, int],
) -> Effects:
    """What comes of leaving the batch out: a letter, or a count. Raises StageError where the pipeline must stop."""
    place = f"pipeline {read.pipeline!r}, stage {read.stage!r}: {partition}@{error.base_offset}"
    damaged = f"{place}: a stored batch is damaged and stayed so in {error.reads} reads ({error.reason})"
    if read.policy.action == "stop":
        raise StageError(
            f"{damaged}. Its records cannot be had from this broker; to go on behind them, read {partition.topic} "
            "with on_error='dead-letter' (which keeps a note of it) or 'skip'"
        ) from error
    if error.next_offset is None:
        raise StageError(
            f"{damaged}, and the damage hides where the next batch begins, so it cannot be left out by itself. Find an "
            f"offset of {partition} behind it that can be read, and commit it while the pipeline is stopped: "
            f"kafka-consumer-groups.sh --reset-offsets --group {read.pipeline} "
            f"--topic {partition.topic}:{partition.partition} --to-offset OFFSET --execute"
        ) from error
    if read.policy.action == "skip":
        return Effects([], Counts(skipped=1))
    assert dead_letter_topic is not None, "a pipeline with a policy of dead-letter has a topic for it"
    letter = corrupt_batch_letter(dead_letter_topic, partition, error, read)
    limit = record_bytes_max.get(dead_letter_topic)
    if limit is not None and len(too_large(letter.key, letter.value, letter.headers, limit)):
        raise StageError(
            f"{damaged}, and its dead letter does not fit into topic {dead_letter_topic!r}, whose max.message.bytes is "
            f"{limit}; raise that setting"
        ) from error
    return Effects([letter], Counts(dead_letters=1))
