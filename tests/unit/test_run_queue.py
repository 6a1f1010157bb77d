"""Which batches a device computes together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.gpu_offload.queueing import Request, RunQueue

NEVER = 1e9


def queue_of(*requests: tuple[int, int, int], rows_max: int = 100) -> RunQueue[int]:
    """Requests as (client, stage, rows); the work is their place."""
    queue: RunQueue[int] = RunQueue(rows_max)
    for place, (client, stage, rows) in enumerate(requests):
        queue.add(Request(client, stage, rows, NEVER, place))
    return queue


def turns(queue: RunQueue[int], now: float = 0.0) -> list[list[int]]:
    found = []
    while queue:
        found.append([request.work for request in queue.take(now).together])
    return found


def test_batches_of_one_stage_go_together_whoevers_they_are() -> None:
    assert turns(queue_of((1, 7, 10), (2, 7, 10), (1, 7, 10))) == [[0, 1, 2]]


def test_other_stages_wait_for_their_own_turn_in_the_order_of_the_oldest() -> None:
    assert turns(queue_of((1, 7, 10), (2, 8, 10), (2, 7, 10), (1, 8, 10))) == [[0, 2], [1, 3]]


def test_a_run_has_at_most_so_many_rows_but_a_single_batch_may_have_more() -> None:
    assert turns(queue_of((1, 7, 60), (2, 7, 50), (3, 7, 40))) == [[0, 2], [1]]
    assert turns(queue_of((1, 7, 500), (2, 7, 1))) == [[0], [1]]


def test_after_a_run_that_was_too_large_others_are_smaller_for_a_while() -> None:
    requests = [(1, 7, 30), (2, 7, 30), (3, 8, 30), (4, 8, 30)]
    queue = queue_of(*requests)
    queue.cap(7, 40, until_s=10.0)
    assert turns(queue, now=9.0) == [[0], [1], [2, 3]]
    queue = queue_of(*requests)
    queue.cap(7, 40, until_s=10.0)
    assert turns(queue, now=10.0) == [[0, 1], [2, 3]]


def test_what_nobody_waits_for_any_more_is_not_computed() -> None:
    queue = queue_of((1, 7, 10))
    queue.add(Request(2, 7, 10, 5.0, 1))
    turn = queue.take(5.0)
    assert [request.work for request in turn.together] == [0]
    assert [request.work for request in turn.expired] == [1]
    assert not queue


def test_a_worker_that_is_gone_waits_for_nothing() -> None:
    queue = queue_of((1, 7, 10), (2, 7, 10))
    queue.drop(1)
    assert turns(queue) == [[1]]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 150)), max_size=30))
def test_every_batch_has_one_turn_and_nobody_is_overtaken_within_a_stage_by_a_later_run(
    requests: list[tuple[int, int, int]],
) -> None:
    found = turns(queue_of(*requests))
    assert sorted(place for turn in found for place in turn) == list(range(len(requests)))
    for turn in found:
        assert len({requests[place][1] for place in turn}) == 1
        assert len(turn) == 1 or sum(requests[place][2] for place in turn) <= 100
    # The oldest of all that wait is always in the next run.
    heads = [min(turn) for turn in found]
    for number, turn in enumerate(found):
        later = [place for others in found[number:] for place in others]
        assert min(later) in turn, heads
