"""How shards change hands among the workers of a node: one owner at a time, and nothing is forgotten.

    free ──► owned by w ──► released by w (asked to) ──► free
                 └────────────── w is dead ───────────────►┘

The plan says who should own a shard. What is free goes to its planned owner at once; what another owns is asked for
first, and stays with that one until it says that it has let go, or is dead. Kafka's fence would keep two owners from
doing harm; one at a time keeps them from stealing the shard from each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millstream.processor.plan import plan


class Handover:
    """Who owns which of a fixed number of shards, as far as the agent knows."""

    def __init__(self, shards: int) -> None:
        self._shards = range(shards)
        self._open = set(self._shards)
        self._planned: dict[int, int] = {}
        self._owners: dict[int, int] = {}
        self._releasing: dict[int, tuple[int, float]] = {}

    @property
    def is_complete(self) -> bool:
        """Whether every shard has reached the end of the run."""
        return not self._open

    def owned(self, worker: int) -> frozenset[int]:
        """What the worker was told to own; not what it was asked to release."""
        return frozenset(shard for shard, owner in self._owners.items() if owner == worker)

    def held(self, worker: int) -> frozenset[int]:
        """What nobody else may run yet: what the worker owns and what it has still to release."""
        return self.owned(worker) | {shard for shard, (owner, _) in self._releasing.items() if owner == worker}

    def settle(self, live: Collection[int], release_by: float) -> dict[int, frozenset[int]]:
        """Bring ownership as near to the plan for the `live` workers as can be now.

        Answers the workers whose set has changed, each with its new set. Releases that begin now are overdue after
        `release_by`.
        """
        # A shard under way to a worker counts as that worker's: asking back what was asked for already saves nothing.
        # Shards that have finished are planned too: their end alone is no reason to move others.
        self._planned = plan(self._planned, live, self._shards) or self._planned
        changed = self._ask_back(live, release_by) | self._hand_out(live)
        return {worker: self.owned(worker) for worker in sorted(changed)}

    def _ask_back(self, live: Collection[int], release_by: float) -> set[int]:
        moving = {
            shard: owner for shard, owner in self._owners.items() if owner in live and self._planned[shard] != owner
        }
        self._begin_release(moving, release_by)
        return set(moving.values())

    def _hand_out(self, live: Collection[int]) -> set[int]:
        free = self._open - self._owners.keys() - self._releasing.keys()
        granted = {shard: self._planned[shard] for shard in free if self._planned.get(shard) in live}
        self._owners |= granted
        return set(granted.values())

    def leaving(self, worker: int, release_by: float) -> None:
        """The worker lets go of all that it has, without having been asked."""
        self._begin_release(dict.fromkeys(self.owned(worker), worker), release_by)

    def _begin_release(self, moving: Mapping[int, int], release_by: float) -> None:
        for shard, owner in moving.items():
            del self._owners[shard]
            self._releasing[shard] = (owner, release_by)

    def released(self, worker: int, shard: int) -> bool:
        """The worker has let go of the shard; answers whether that was asked of it."""
        if self._owners.get(shard) == worker:
            del self._owners[shard]
            return False
        if self._releasing.get(shard, (None, 0.0))[0] == worker:
            del self._releasing[shard]
        return True

    def lost(self, worker: int) -> frozenset[int]:
        """The worker is dead: all that it held is free, and is answered."""
        held = self.held(worker)
        for shard in held:
            self._owners.pop(shard, None)
            self._releasing.pop(shard, None)
        # Whoever takes over shall keep what it got; the dead one's next life starts with nothing of its own.
        self._planned = {shard: owner for shard, owner in self._planned.items() if owner != worker}
        return held

    def finished(self, shard: int) -> None:
        """The shard has reached the end of the run and needs no owner any more."""
        self._open.discard(shard)
        self._owners.pop(shard, None)
        self._releasing.pop(shard, None)

    def overdue(self, now: float) -> frozenset[int]:
        """The workers that should have released something by now."""
        return frozenset(owner for owner, by in self._releasing.values() if by <= now)

    def next_deadline(self) -> float | None:
        """When `overdue` can change next."""
        return min((by for _, by in self._releasing.values()), default=None)
