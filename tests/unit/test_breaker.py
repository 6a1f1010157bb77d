"""When a device is left alone, and what it has to show before it is used again."""

from __future__ import annotations

from millstream.gpu_offload.breaker import Breaker, BreakerSettings, BreakerState
from millstream.gpu_offload.deadline import Deadline

SETTINGS = BreakerSettings(cool_down_s=30.0, cool_down_max_s=600.0, shadows=3, failures_max=3)


def tripped(at: float = 0.0) -> Breaker:
    breaker = Breaker(SETTINGS)
    breaker.trip(at, "it died")
    return breaker


def admit(breaker: Breaker, now: float) -> None:
    breaker.readmit(now)
    for _ in range(SETTINGS.shadows):
        breaker.succeeded(now)
    assert breaker.state is BreakerState.CLOSED


def test_trouble_opens_it_at_once_for_the_cool_down() -> None:
    breaker = tripped(100.0)
    assert breaker.state is BreakerState.OPEN
    assert breaker.reason == "it died"
    assert not breaker.is_cool(129.9)
    assert breaker.is_cool(130.0)


def test_it_takes_made_up_rows_after_the_cool_down_and_then_shadows() -> None:
    breaker = tripped()
    breaker.readmit(29.0)
    assert breaker.state is BreakerState.OPEN
    breaker.readmit(30.0)
    for left in (3, 2, 1):
        assert breaker.state is BreakerState.HALF_OPEN, left
        breaker.succeeded(31.0)
    assert breaker.state is BreakerState.CLOSED


def test_success_without_admission_closes_nothing() -> None:
    breaker = tripped()
    for _ in range(10):
        breaker.succeeded(100.0)
    assert breaker.state is BreakerState.OPEN


def test_the_cool_down_doubles_up_to_its_bound_and_starts_over_after_a_good_time() -> None:
    breaker = Breaker(SETTINGS)
    now, waits = 0.0, []
    for _ in range(7):
        breaker.trip(now, "again")
        waits.append(breaker.until_s - now)
        now = breaker.until_s
        admit(breaker, now)
        now += 1.0
    assert waits == [30, 60, 120, 240, 480, 600, 600]
    breaker.trip(now + 600.0, "after a long time")
    assert breaker.until_s - (now + 600.0) == 30


def test_trouble_in_the_trial_opens_it_for_twice_as_long() -> None:
    breaker = tripped()
    breaker.readmit(30.0)
    breaker.trip(31.0, "it hangs")
    assert breaker.until_s == 91.0


def test_more_trouble_while_it_is_open_does_not_prolong_it() -> None:
    breaker = tripped()
    breaker.trip(10.0, "others of its batches")
    assert breaker.until_s == 30.0


def test_a_wrong_answer_takes_the_longest_at_once_even_where_it_is_open_already() -> None:
    breaker = tripped()
    breaker.quarantine(10.0, "wrong")
    assert breaker.until_s == 610.0


def test_failures_in_a_row_open_it_and_a_success_between_them_forgets_them() -> None:
    breaker = Breaker(SETTINGS)
    breaker.failed(0.0, "a batch's fault")
    assert breaker.state is BreakerState.SUSPECT
    breaker.succeeded(0.0)
    assert breaker.state is BreakerState.CLOSED
    for _ in range(3):
        assert breaker.state is not BreakerState.OPEN
        breaker.failed(1.0, "the function raised")
    assert breaker.state is BreakerState.OPEN


def test_without_a_proof_by_made_up_rows_it_begins_with_shadows() -> None:
    breaker = Breaker(SETTINGS)
    breaker.readmit(0.0, is_proven=False)
    assert breaker.state is BreakerState.HALF_OPEN
    proven = Breaker(SETTINGS)
    proven.readmit(0.0)
    assert proven.state is BreakerState.CLOSED


def test_the_deadline_is_a_multiple_of_what_was_seen_within_its_bounds() -> None:
    for usual_s, wait_s in ((0.001, 0.1), (0.04, 0.2), (0.4, 0.5)):
        deadline = Deadline(0.5)
        assert deadline.wait_s == 0.5
        for _ in range(64):
            deadline.observed(usual_s)
        assert abs(deadline.wait_s - wait_s) < 1e-9


def test_the_deadline_forgets() -> None:
    deadline = Deadline(0.5)
    for seconds in [0.09] * 512 + [0.001] * 512:
        deadline.observed(seconds)
    assert deadline.wait_s == 0.1
