"""Safeguards that can be taken away one at a time: a simulation that does not notice proves nothing.

Each mutation changes the product, not the judge. What a real mistake of this kind would look like is said where it is
not plain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from sim_feed import Batch, Fetcher, Sealed
from sim_log import GROUP, Log, ShardLog
from sim_world import Plan

from millstream.connectors.kafka.transaction_requests import EndTxnRequest
from millstream.processor.detector import Detector
from millstream.processor.errors import FencedError, OutcomeUnknownError, UnavailableError
from millstream.processor.host import Host
from millstream.processor.intake import of_shard
from millstream.processor.log import Committed
from millstream.processor.participation import Participation
from millstream.processor.partitions import TopicPartition
from millstream.processor.shard import ShardRun
from millstream.processor.shard_host import ShardReleased

_FENCE, _COMMIT = ShardLog.fence, ShardLog.commit


async def _read_then_fence(self: Any) -> Any:
    counts = {"in": len(self._cluster.kafka.topics["in"])}
    places = list(of_shard(counts, self.session.shard, self.shards))
    self.early = await self._offsets.committed(GROUP, places)
    return await _FENCE(self)


async def _as_read_before(self: Any, permit: Any, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Any]:
    return {place: Committed(found.offset, stale=False) for place, found in self.early.items() if place in partitions}


async def _unknown_is_committed(self: Any, permit: Any, outputs: Any, positions: Any) -> Any:
    try:
        return await _COMMIT(self, permit, outputs, positions)
    except OutcomeUnknownError:
        return await self.fence()


async def _unknown_is_aborted(self: Any, permit: Any, outputs: Any, positions: Any) -> Any:
    while True:
        try:
            return await _COMMIT(self, permit, outputs, positions)
        except OutcomeUnknownError:
            permit = await self.fence()


async def _outputs_then_offsets(self: Any, permit: Any, outputs: Any, positions: Any) -> Any:
    if not outputs.empty and positions:
        permit = await _COMMIT(self, permit, outputs, {})
        outputs = Sealed({}, 0)
    return await _COMMIT(self, permit, outputs, positions)


async def _ends_twice(self: Any, permit: Any, outputs: Any, positions: Any) -> Any:
    permit = await _COMMIT(self, permit, outputs, positions)
    await self._cluster.call(1, "", EndTxnRequest(self._committer._transactional_id, permit.identity))
    return permit


def _kept_buffers() -> dict[str, Any]:
    """What a run could not commit is kept, with the positions after it, for the next run of that worker."""
    kept: dict[Any, Any] = {}
    run, commit = ShardRun.run, ShardRun._commit

    async def kept_commit(self: Any, permit: Any) -> Any:
        gathered = self._gathering
        records = {place: list(found) for place, found in gathered.outbox._records.items()}
        try:
            return await commit(self, permit)
        except (FencedError, OutcomeUnknownError, UnavailableError):
            kept[self._log.session.client.process, self._log.session.shard] = records, dict(gathered.positions)
            raise

    async def kept_run(self: Any, permit: Any, positions: Any, until: Any = None) -> None:
        records, after = kept.pop((self._log.session.client.process, self._log.session.shard), ({}, {}))
        if after:
            self._gathering.outbox._records = records
            self._gathering.positions = dict(after)
        await run(self, permit, {place: max(at, after.get(place, 0)) for place, at in positions.items()}, until)

    return {"run": kept_run, "_commit": kept_commit}


_ASSIGN = Host.assign


def _says_released_at_once(self: Any, shards: frozenset[int], stalls: Any = ()) -> None:
    leaves = [shard for shard in self._keepers if shard not in shards]
    _ASSIGN(self, shards, stalls)
    for shard in leaves:
        self._report(ShardReleased(shard))


def _shard_of_a_worker(self: Any, shard: int) -> ShardLog:
    """The transactional id has the worker's name in it, so that nobody fences the one before."""
    made = _SHARD(self, shard)
    made._committer._transactional_id = f"{GROUP}.{shard}.{self.client.process.name}"
    return made


_SHARD = Log.shard


def _unnumbered(self: Any, **identity: Any) -> Any:
    return _STAMPED(self, **identity | {"base_sequence": -1})


_STAMPED = Batch.stamped


def _unstable(world: Any) -> None:
    world.kafka.require_stable = False


@dataclass(frozen=True, slots=True)
class Mutation:
    """`patches` are what is different; `noticed_as` is what the failures must speak of, as a pattern.

    It shows where certain `faults` happen, in moments that are rare otherwise; none named: in any schedule.
    """

    patches: Callable[[], Sequence[Any]]
    noticed_as: str = "^lost |^doubled |went back"
    on_world: Callable[[Any], None] | None = None
    moves_only: bool = False
    faults: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """The kind of schedule that shows it."""
        return Plan(moves_only=self.moves_only, faults=self.faults)


def _on(kind: type, **methods: Any) -> Callable[[], Sequence[Any]]:
    return lambda: [patch.multiple(kind, **methods)]


# Owners that do not know that they are none any more, and requests of which nobody learns what became of them.
_ZOMBIES = ("cut_agent", "hang_worker", "freeze")
_NO_ANSWERS = ("cut", "hold_back")

MUTATIONS: Mapping[str, Mutation] = {
    "reads offsets, then fences": Mutation(
        _on(ShardLog, fence=_read_then_fence, committed=_as_read_before), faults=_ZOMBIES
    ),
    "asks for offsets before its fence": Mutation(_on(ShardLog, fence=_read_then_fence), noticed_as="I2"),
    "reads offsets that are not stable": Mutation(list, on_world=_unstable, faults=_ZOMBIES),
    "reads what is not committed": Mutation(_on(Fetcher, is_committed_only=False)),
    "keeps what it could not commit": Mutation(
        lambda: [patch.multiple(ShardRun, **_kept_buffers())], faults=_NO_ANSWERS
    ),
    "takes an unknown outcome for a commit": Mutation(
        _on(ShardLog, commit=_unknown_is_committed), noticed_as="^lost ", faults=_NO_ANSWERS
    ),
    "takes an unknown outcome for an abort": Mutation(
        _on(ShardLog, commit=_unknown_is_aborted), noticed_as="^doubled ", faults=_NO_ANSWERS
    ),
    "commits outputs, then offsets": Mutation(
        _on(ShardLog, commit=_outputs_then_offsets), noticed_as="^doubled ", faults=_NO_ANSWERS
    ),
    "sends again without sequence numbers": Mutation(_on(Batch, stamped=_unnumbered), noticed_as="^doubled "),
    "has a transactional id for each worker": Mutation(_on(Log, shard=_shard_of_a_worker), faults=_ZOMBIES),
    "ends transactions without contents": Mutation(_on(ShardLog, commit=_ends_twice), noticed_as="I6"),
    "says released before it has committed": Mutation(
        _on(Host, assign=_says_released_at_once), noticed_as="was refused", moves_only=True
    ),
    "does not hear its own verdict": Mutation(
        _on(Participation, _begin_anew=lambda self: None),
        noticed_as="one owner that lives|another process",
        faults=("freeze", "cut"),
    ),
    "never doubts its own ears": Mutation(
        _on(Detector, doubt=lambda self, now: None), noticed_as="was well and found", faults=("deafen",)
    ),
}


@contextmanager
def mutated(name: str | None) -> Iterator[Callable[[Any], None] | None]:
    """The product without one safeguard; answers what to do to a world before it begins."""
    if name is None:
        yield None
        return
    with ExitStack() as patches:
        for each in MUTATIONS[name].patches():
            patches.enter_context(each)
        yield MUTATIONS[name].on_world
