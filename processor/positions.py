"""Where a shard goes on: its committed offsets, and what to do where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.processor import ledger
from millstream.processor.intake import InputPolicy, after_lost
from millstream.processor.ledger import LedgerState, StartedRecord
from millstream.processor.log import Log, Permit, ShardLog, Start
from millstream.processor.partitions import TopicPartition


@dataclass(frozen=True, slots=True)
class Begun:
    """The committed positions of a shard, and the permit for its next commit."""

    permit: Permit
    positions: Mapping[TopicPartition, int]


async def begin(
    log_: Log,
    shard_log: ShardLog,
    permit: Permit,
    partitions: Sequence[TopicPartition],
    policies: Mapping[str, InputPolicy],
    ledger_topic: str,
    known: LedgerState,
) -> Begun:
    """Find the position of every partition, and commit those that had none.

    A partition that the ledger names as started and that has no committed offset has lost it: it is not "earliest"
    (design, invariant I3). Raises OffsetLostError where the policy is to stop.
    """
    committed = await shard_log.committed(permit, partitions)
    positions = {p: found.offset for p, found in committed.items() if not found.stale}
    fresh: dict[TopicPartition, int] = {}
    new = []
    for partition in partitions:
        if partition in positions:
            continue
        policy = policies[partition.topic]
        if partition in committed:
            why = "the topic was deleted and created again since its offset was committed"
            fresh[partition] = (await after_lost(shard_log, partition, policy, why)).offset
        elif partition in known.started:
            why = (
                "it had a committed offset once and has none now: the topic was deleted and created again, or the "
                "offset expired (offsets.retention.minutes after its last commit)"
            )
            fresh[partition] = (await after_lost(shard_log, partition, policy, why)).offset
        else:
            new.append(partition)
    fresh |= await shard_log.starting({p: _start(p, known, policies[p.topic]) for p in new})
    if fresh:
        permit = await shard_log.commit(permit, shard_log.outbox().seal(), fresh)
    unrecorded = [partition for partition in partitions if partition not in known.started]
    if unrecorded:
        await log_.append_to_ledger(
            ledger_topic, [ledger.encode(StartedRecord(p.topic, p.partition)) for p in unrecorded]
        )
    return Begun(permit, positions | fresh)


def _start(partition: TopicPartition, known: LedgerState, policy: InputPolicy) -> Start:
    # A partition added to a topic that is being read is new from its first record on, whatever the topic's start:
    # "latest" there would lose what was written before it was noticed.
    added = partition.partition >= known.widths.get(partition.topic, partition.partition + 1)
    return "earliest" if added else policy.start
