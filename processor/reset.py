"""Moving a stopped pipeline's committed offsets, on any log.

The new offsets are committed as a shard's own are: after the fence, and by the permit that it gave. So an owner that
still runs can do no harm: it is fenced, and begins again at what is committed then. But it would take up the new
offsets at once, and whoever asked for a reset believed that it was stopped; so all shards are fenced first, and nothing
is written if one of them is taken back. An owner that works notices with its next commit, an idle one looks every few
seconds. A reset is the one thing that may move committed offsets back (design, invariant I3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millstream.processor.errors import FencedError, RefusedError, SettingsError
from millstream.processor.ledger import LedgerState
from millstream.processor.log import Log, Permit, ShardLog, Start
from millstream.processor.names import Names
from millstream.processor.partitions import TopicPartition
from millstream.processor.preparation import read_state
from millstream.processor.shard import LOOK_S

# An owner looks every LOOK_S, and needs a moment to take the shard back.
WATCH_S: Final = LOOK_S + 2.0
_WATCH_INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRequest:
    """What is asked for: `to` for all partitions of `topics` (all input topics where that is empty), or `offsets`."""

    pipeline: str
    to: Start | None = None
    topics: Sequence[str] = ()
    offsets: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The new offset of each partition, and the number of shards."""

    targets: Mapping[TopicPartition, int]
    shards: int


@dataclass(frozen=True, slots=True)
class Moved:
    """What a reset did to a partition; `before` is None where nothing was committed."""

    partition: TopicPartition
    before: int | None
    after: int


async def known_pipeline(log_: Log, pipeline: str) -> LedgerState:
    """What its ledger says. Raises SettingsError where there is no such pipeline."""
    ledger = Names.of(pipeline).ledger
    missing = await log_.missing_topics([ledger])
    state = LedgerState() if missing else await read_state(log_, ledger)
    if state.shards is None:
        raise SettingsError(
            f"there is no pipeline {pipeline!r} in this cluster",
            [f"its topic {ledger} is missing or empty: it was never started, or has another name"],
        )
    return state


async def plan_reset(log_: Log, request: ResetRequest) -> Plan:
    """Where to go. Raises SettingsError with every mistake: topics it does not read, offsets that are not there."""
    state = await known_pipeline(log_, request.pipeline)
    assert state.shards is not None
    gone = set(await log_.missing_topics(sorted(state.widths)))
    named = list(dict.fromkeys([*request.topics, *(p.topic for p in request.offsets or {})]))
    # A topic that the pipeline read once and that is gone has nothing to reset, unless somebody names it.
    topics = request.topics or sorted(state.widths.keys() - gone)
    mistakes = [
        f"pipeline {request.pipeline!r} does not read topic {topic!r}; it has read {', '.join(sorted(state.widths))}"
        for topic in named
        if topic not in state.widths
    ]
    mistakes += [f"topic {topic!r} does not exist any more" for topic in named if topic in gone]
    if mistakes:
        raise SettingsError("the offsets cannot be reset", mistakes)
    counts = await log_.partition_counts(topics)
    shard_log = log_.shard(0)
    try:
        if request.offsets is not None:
            await _check_offsets(shard_log, request.offsets, await log_.partition_counts(sorted(state.widths)))
            return Plan(request.offsets, state.shards)
        assert request.to is not None
        partitions = [TopicPartition(topic, p) for topic, count in counts.items() for p in range(count)]
        return Plan(await shard_log.starting(dict.fromkeys(partitions, request.to)), state.shards)
    finally:
        shard_log.close()


async def _check_offsets(shard_log: ShardLog, offsets: Mapping[TopicPartition, int], counts: Mapping[str, int]) -> None:
    mistakes = [
        f"{partition} does not exist; {partition.topic} has {counts[partition.topic]} partitions"
        for partition in offsets
        if partition.partition >= counts[partition.topic]
    ]
    there = [partition for partition in offsets if partition.partition < counts[partition.topic]]
    for partition, bounds in (await shard_log.bounds(there)).items():
        if not bounds.start <= offsets[partition] <= bounds.end:
            mistakes.append(f"{partition} holds offsets {bounds.start} to {bounds.end}, and not {offsets[partition]}")
    if mistakes:
        raise SettingsError("the offsets cannot be reset", mistakes)


async def carry_out(
    log_: Log, plan: Plan, *, is_forced: bool, tell: Callable[[str], None] = lambda _: None
) -> list[Moved]:
    """Move the offsets, shard by shard. Raises RefusedError, and has written nothing, where the pipeline runs.

    `is_forced` leaves out the wait that shows whether it runs. `tell` hears what is being waited for.
    """
    shards = sorted({partition.partition % plan.shards for partition in plan.targets})
    owned = {shard: _Owned(shard, log_.shard(shard), plan) for shard in shards}
    try:
        for each in owned.values():
            tell(f"fencing shard {each.shard}")
            await each.fence()
        if not is_forced:
            await _refuse_while_running(list(owned.values()), tell)
        moved: list[Moved] = []
        for each in owned.values():
            tell(f"committing the offsets of shard {each.shard}")
            moved += await each.commit(is_forced=is_forced)
        return sorted(moved, key=lambda move: move.partition)
    finally:
        for each in owned.values():
            each.close()


class _Owned:
    """A shard that the reset has fenced."""

    def __init__(self, shard: int, shard_log: ShardLog, plan: Plan) -> None:
        self.shard = shard
        self._log = shard_log
        self._targets = {p: at for p, at in plan.targets.items() if p.partition % plan.shards == shard}
        self._permit: Permit | None = None
        self._before: dict[TopicPartition, int] = {}

    async def fence(self) -> None:
        self._permit = await self._log.fence()
        self._before = await self._committed()

    async def _committed(self) -> dict[TopicPartition, int]:
        assert self._permit is not None
        return {p: found.offset for p, found in (await self._log.committed(self._permit, list(self._targets))).items()}

    async def is_taken_back(self) -> bool:
        assert self._permit is not None
        return not await self._log.holds(self._permit)

    async def has_moved(self) -> bool:
        """Whether somebody commits who asks for no fence (at least once)."""
        return await self._committed() != self._before

    async def commit(self, *, is_forced: bool) -> list[Moved]:
        assert self._permit is not None
        try:
            await self._log.commit(self._permit, self._log.outbox().seal(), self._targets)
        except FencedError as error:
            if not is_forced:
                raise _running(self.shard) from error
            # Whoever took it back has done no more than that; the last to fence is the one that commits.
            self._permit = await self._log.fence()
            await self._log.commit(self._permit, self._log.outbox().seal(), self._targets)
        return [Moved(partition, self._before.get(partition), at) for partition, at in self._targets.items()]

    def close(self) -> None:
        self._log.close()


async def _refuse_while_running(owned: Sequence[_Owned], tell: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + WATCH_S
    while (left_s := until - loop.time()) > 0:
        tell(f"waiting {left_s:.0f} s for a sign that the pipeline runs")
        for each in owned:
            if await each.is_taken_back():
                raise _running(each.shard)
        await asyncio.sleep(_WATCH_INTERVAL_S)
    for each in owned:
        if await each.has_moved():
            raise _running(each.shard)


def _running(shard: int) -> RefusedError:
    return RefusedError(
        f"the pipeline runs: its shard {shard} was taken back, or its offsets move. Stop it and try again; "
        "--force resets a running pipeline, which then goes on from the new offsets"
    )
