"""The plan is balanced, moves as little as can be, and depends on nothing but its arguments."""

from __future__ import annotations

import random
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.processor.plan import plan

shard_counts = st.integers(0, 40)
worker_sets = st.frozensets(st.integers(0, 9), max_size=8)


def loads(assignment: dict[int, int], workers: frozenset[int]) -> list[int]:
    owners = list(assignment.values())
    return [owners.count(worker) for worker in workers]


@st.composite
def previous_assignments(draw: st.DrawFn) -> dict[int, int]:
    """Any mapping at all, also unbalanced ones and ones that name strangers."""
    return draw(st.dictionaries(st.integers(0, 45), st.integers(0, 11), max_size=45))


@given(previous_assignments(), worker_sets, shard_counts)
def test_every_shard_has_one_live_owner_and_loads_differ_by_one_at_most(
    previous: dict[int, int], workers: frozenset[int], shards: int
) -> None:
    result = plan(previous, workers, range(shards))
    if not workers:
        assert result == {}
        return
    assert list(result) == list(range(shards))
    assert set(result.values()) <= workers
    assert max(loads(result, workers)) - min(loads(result, workers)) <= 1


@settings(max_examples=60)
@given(previous_assignments(), st.frozensets(st.integers(0, 6), min_size=1, max_size=6), st.integers(0, 20))
def test_no_other_balanced_assignment_keeps_more_shards_in_place(
    previous: dict[int, int], workers: frozenset[int], shards: int
) -> None:
    """The oracle tries every way to give the extra shards away and counts what each could keep at best."""
    held = {worker: sum(previous.get(shard) == worker for shard in range(shards)) for worker in workers}
    share, extra = divmod(shards, len(workers))
    best = max(
        sum(min(held[worker], share + (worker in favoured)) for worker in workers)
        for favoured in combinations(workers, extra)
    )
    result = plan(previous, workers, range(shards))
    assert sum(previous.get(shard) == worker for shard, worker in result.items()) == best


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=12), st.integers(1, 30))
def test_through_joins_and_leaves_only_what_must_move_moves(changes: list[tuple[bool, int]], shards: int) -> None:
    workers: frozenset[int] = frozenset()
    assignment: dict[int, int] = {}
    for joins, worker in changes:
        after = workers | {worker} if joins else workers - {worker}
        moved_to = plan(assignment, after, range(shards))
        if after and workers:
            moved = {shard for shard, owner in moved_to.items() if assignment.get(shard) != owner}
            orphans = {shard for shard, owner in assignment.items() if owner not in after}
            newcomers = after - workers
            assert moved <= orphans | {shard for shard, owner in moved_to.items() if owner in newcomers}
            assert len(moved) <= max(len(orphans), -(-shards // len(after)))
        workers, assignment = after, moved_to or assignment


@given(previous_assignments(), worker_sets, shard_counts, st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(
    previous: dict[int, int], workers: frozenset[int], shards: int, order: random.Random
) -> None:
    shuffled = sorted(workers)
    order.shuffle(shuffled)
    upside_down = dict(reversed(previous.items()))
    assert plan(previous, workers, range(shards)) == plan(upside_down, shuffled, reversed(range(shards)))


@given(previous_assignments(), worker_sets, shard_counts)
def test_planning_twice_changes_nothing(previous: dict[int, int], workers: frozenset[int], shards: int) -> None:
    once = plan(previous, workers, range(shards))
    assert plan(once, workers, range(shards)) == once


def test_workers_may_be_named_by_anything_that_sorts() -> None:
    assert plan({}, [("b", 1), ("a", 2)], range(3)) == {0: ("a", 2), 1: ("a", 2), 2: ("b", 1)}
