"""Who gets which shard: a pure function of who had what and who is alive.

Everyone who knows the same two facts computes the same answer, so nobody has to be asked. Two wishes decide, in this
order: the workers' numbers of shards differ by one at most, and as few shards as possible change hands, because each
move costs a fence and a pause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol, TypeVar


class _Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...
    def __hash__(self) -> int: ...


Worker = TypeVar("Worker", bound=_Ordered)


def plan(previous: Mapping[int, Worker], workers: Collection[Worker], shards: Iterable[int]) -> dict[int, Worker]:
    """An owner for each of `shards`, in ascending order of shard; empty when there are no workers.

    Owners in `previous` that are not among `workers` and shards that are not among `shards` count for nothing. The
    order in which `workers` and `shards` are given does not matter.
    """
    if not workers:
        return {}
    wanted = sorted(set(shards))
    held = _held(previous, workers, wanted)
    quotas = _quotas(held, len(wanted))
    kept = {shard: worker for worker, theirs in held.items() for shard in theirs[: quotas[worker]]}
    vacancies = (worker for worker in held for _ in range(quotas[worker] - len(held[worker])))
    moved = {shard: next(vacancies) for shard in wanted if shard not in kept}
    return dict(sorted((kept | moved).items()))


def _held(
    previous: Mapping[int, Worker], workers: Collection[Worker], wanted: Iterable[int]
) -> dict[Worker, list[int]]:
    held: dict[Worker, list[int]] = {worker: [] for worker in sorted(workers)}
    for shard in wanted:
        if shard in previous and previous[shard] in held:
            held[previous[shard]].append(shard)
    return held


def _quotas(held: Mapping[Worker, list[int]], shards: int) -> dict[Worker, int]:
    """How many shards each worker may have.

    Where they do not divide evenly, the workers that already hold most get one more: any other choice would take a
    shard away from one of them and move it for nothing.
    """
    share, extra = divmod(shards, len(held))
    by_load = sorted(held, key=lambda worker: -len(held[worker]))
    return {worker: share + (1 if place < extra else 0) for place, worker in enumerate(by_load)}
