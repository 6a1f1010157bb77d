"""Who gets which shard: a pure function of who had what and who is alive.

Everyone who knows the same facts computes the same answer, so nobody has to be asked. The wishes, in this order:

1. the workers' numbers of shards differ by one at most;
2. as few shards as possible change hands, because each move costs a fence and a pause;
3. a shard whose owner is gone goes to another zone than that one's: what took it may be about to take its neighbours;
4. it goes to the node that has the fewest shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar


class _Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...
    def __hash__(self) -> int: ...


Worker = TypeVar("Worker", bound=_Ordered)


class Place(NamedTuple):
    """Where a worker is. An empty zone is none."""

    node: str = ""
    zone: str = ""


_NOWHERE: Final = Place()
_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


def plan(
    previous: Mapping[int, Worker],
    workers: Collection[Worker],
    shards: Iterable[int],
    *,
    places: Mapping[Worker, Place] = _NOTHING,
    holders: Mapping[int, Worker] = _NOTHING,
) -> dict[int, Worker]:
    """An owner for each of `shards`, in ascending order of shard; empty when there are no workers.

    `previous` is the plan so far. Owners in it that are not among `workers` own nothing any more; shards that are not
    among `shards` count for nothing. `places` may know the `workers` and the previous owners. `holders` are those that
    have the shards now: where one of several must be moved it is one that is still on its way. The order in which
    anything is given does not matter.
    """
    if not workers:
        return {}
    wanted = sorted(set(shards))
    planning = _Planning(sorted(workers), len(wanted), places)
    homeless = planning.keep(previous, wanted, holders)
    homeless = [shard for shard in homeless if not planning.take(shard, holders.get(shard))]
    for shard in homeless:
        last = previous.get(shard)
        planning.place(shard, _NOWHERE if last is None or last in planning.held else places.get(last, _NOWHERE))
    return dict(sorted(planning.owners.items()))


class _Planning(Generic[Worker]):
    """A plan in the making. Each worker gets `share` shards, and `extras` of them get one more."""

    def __init__(self, workers: list[Worker], shards: int, places: Mapping[Worker, Place]) -> None:
        self._share, self._extras = divmod(shards, len(workers))
        self._places = {worker: places.get(worker, _NOWHERE) for worker in workers}
        self._node_loads: Counter[str] = Counter()
        self.held = dict.fromkeys(workers, 0)
        self.owners: dict[int, Worker] = {}

    def keep(self, previous: Mapping[int, Worker], wanted: list[int], holders: Mapping[int, Worker]) -> list[int]:
        """Leave with each worker what it may keep; answers the shards that need another owner."""
        theirs: dict[Worker, list[int]] = {worker: [] for worker in self.held}
        for shard in wanted:
            if previous.get(shard) in theirs:
                theirs[previous[shard]].append(shard)
        for worker, shards in theirs.items():
            shards.sort(key=lambda shard, worker=worker: holders.get(shard) != worker)  # type: ignore[misc]
            for shard in shards[: self._share]:
                self._give(shard, worker)
        # Where the shards do not divide evenly, who has one too many keeps it: any other choice would move it for
        # nothing. Where there are more of those than that, nodes with few shards come first.
        rivals = [worker for worker, shards in theirs.items() if len(shards) > self._share]
        for worker in self._by_node_load(rivals)[: self._extras]:
            self._give(theirs[worker][self._share], worker)
        return [shard for shard in wanted if shard not in self.owners]

    def _by_node_load(self, workers: list[Worker]) -> list[Worker]:
        loads = self._node_loads.copy()
        ranks = {}
        for worker in workers:
            node = self._places[worker].node
            ranks[worker] = loads[node]
            loads[node] += 1
        return sorted(workers, key=ranks.__getitem__)

    def take(self, shard: int, holder: Worker | None) -> bool:
        """Leave the shard where it is, if its holder has room."""
        if holder is None or holder not in self.held or not self._has_room(holder):
            return False
        self._give(shard, holder)
        return True

    def place(self, shard: int, last: Place) -> None:
        """Find the best place for a shard that nobody keeps; `last` is where it was when that is to be avoided."""
        places, loads = self._places, self._node_loads

        def badness(worker: Worker) -> tuple[bool, int]:
            node, zone = places[worker]
            return (zone != "" and zone == last.zone, loads[node])

        self._give(shard, min(filter(self._has_room, self.held), key=badness))

    def _has_room(self, worker: Worker) -> bool:
        return self.held[worker] < self._share + (self._extras > 0)

    def _give(self, shard: int, worker: Worker) -> None:
        if self.held[worker] >= self._share:
            self._extras -= 1
        self.held[worker] += 1
        self.owners[shard] = worker
        self._node_loads[self._places[worker].node] += 1
