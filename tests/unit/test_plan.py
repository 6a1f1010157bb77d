"""The plan is balanced, moves as little as can be, and depends on nothing but its arguments."""

from __future__ import annotations

import random
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.processor.plan import Place, plan

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


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[int, Place], dict[int, int], int]:
    """Workers with their places, a plan for them, and the number of shards."""
    zones = draw(st.lists(st.sampled_from(["", "x", "y", "z"]), min_size=1, max_size=5))
    workers = draw(st.integers(1, 3))
    places = {
        node * 10 + worker: Place(f"node-{node}", zone) for node, zone in enumerate(zones) for worker in range(workers)
    }
    shards = draw(st.integers(0, 30))
    chosen = draw(st.lists(st.sampled_from(sorted(places)), min_size=shards, max_size=shards))
    return places, plan(dict(enumerate(chosen)), places, range(shards), places=places), shards


@given(clusters())
def test_what_a_node_had_goes_to_other_zones_as_far_as_there_is_room(
    cluster: tuple[dict[int, Place], dict[int, int], int],
) -> None:
    """The oracle counts the room: what every worker must have, and one more for some."""
    places, before, shards = cluster
    gone = [worker for worker, place in places.items() if place.node == "node-0"]
    zone = places[gone[0]].zone
    live = [worker for worker in places if worker not in gone]
    after = plan(before, live, range(shards), places=places)
    orphans = [shard for shard, owner in before.items() if owner in gone]
    assert {shard for shard in before if after.get(shard) != before[shard]} == set(orphans)
    if not live or zone == "":
        return
    share, extras = divmod(shards, len(live))
    held = {worker: sum(owner == worker for owner in before.values()) for worker in live}
    extras -= sum(count > share for count in held.values())
    elsewhere = [worker for worker in live if places[worker].zone != zone]
    room = sum(max(0, share - held[worker]) for worker in elsewhere)
    room += min(extras, sum(held[worker] <= share for worker in elsewhere))
    assert sum(places[after[shard]].zone != zone for shard in orphans) == min(len(orphans), room)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 40))
def test_at_first_nodes_of_one_size_have_numbers_of_shards_that_differ_by_one_at_most(
    nodes: int, workers: int, shards: int
) -> None:
    places = {(n, w): Place(f"node-{n}") for n in range(nodes) for w in range(workers)}
    owners = list(plan({}, places, range(shards), places=places).values())
    counts = [sum(owner[0] == node for owner in owners) for node in range(nodes)]
    assert max(counts) - min(counts) <= 1


def test_of_nodes_that_can_keep_one_more_those_with_few_shards_do() -> None:
    places = {"a0": Place("a"), "a1": Place("a"), "b0": Place("b"), "c0": Place("c")}
    before = {0: "a0", 1: "a0", 2: "a1", 3: "a1", 4: "b0", 5: "b0"}
    after = plan(before, places, range(6), places=places)
    assert [list(after.values()).count(worker) for worker in ("a0", "a1", "b0", "c0")] == [2, 1, 2, 1]


def test_zones_count_only_where_there_are_any_and_an_owner_is_gone() -> None:
    places = {"a": Place("a", "x"), "b": Place("b", "x"), "c": Place("c", "y")}
    assert plan(dict.fromkeys(range(4), "a"), "abc", range(4), places=places) == {0: "a", 1: "a", 2: "b", 3: "c"}
    assert plan(dict.fromkeys(range(2), "a"), "bc", range(2), places=places) == {0: "c", 1: "b"}
    assert plan({}, "ac", [0], places={"c": Place("c", "y")}) == {0: "a"}


def test_a_shard_that_is_still_on_its_way_is_turned_round_before_one_that_has_arrived_is_moved() -> None:
    before = {0: "b", 1: "b", 2: "a", 3: "a"}
    assert plan(before, "abc", range(4), holders={0: "b", 1: "a", 2: "a", 3: "a"})[1] == "c"
    assert plan(before, "abc", range(4), holders={0: "a", 1: "b", 2: "a", 3: "a"})[0] == "c"


def test_a_shard_whose_next_owner_is_gone_stays_with_the_one_that_still_has_it() -> None:
    before = {0: "a", 1: "c", 2: "c", 3: "b"}
    holders = {0: "a", 1: "b", 2: "a", 3: "b"}
    assert plan(before, "ab", range(4), holders=holders) == {0: "a", 1: "b", 2: "a", 3: "b"}


@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_of_places_and_holders_does_not_matter(
    cluster: tuple[dict[int, Place], dict[int, int], int], order: random.Random
) -> None:
    places, before, shards = cluster
    live = [worker for worker in places if places[worker].node != "node-0"]
    holders = {shard: order.choice(sorted(places)) for shard in before}
    upside_down = {worker: places[worker] for worker in reversed(places)}
    expected = plan(before, live, range(shards), places=places, holders=holders)
    assert (
        plan(before, live[::-1], range(shards), places=upside_down, holders=dict(reversed(holders.items()))) == expected
    )
    assert plan(expected, live, range(shards), places=places, holders=holders) == expected
