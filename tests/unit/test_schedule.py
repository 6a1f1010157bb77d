"""The open schedule: events are due at the asked rate, in order, each exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.loadgen.schedule import Arrivals, Burst, FullSpeed, Schedule, arrivals_at
from millstream.processor.errors import SettingsError


def test_constant_arrivals_do_not_drift() -> None:
    schedule = Schedule(arrivals_at(Arrivals.CONSTANT, 30_000, seed=0), 300_001)
    times = schedule.take(300_001, 0)
    assert times[0] == 0
    assert times[300_000] == 10_000_000
    assert set(np.diff(times)) == {33, 34}


def test_poisson_arrivals_have_the_asked_rate_and_exponential_gaps() -> None:
    times = Schedule(arrivals_at(Arrivals.POISSON, 10_000, seed=5), 200_000).take(200_000, 0)
    gaps = np.diff(times)
    assert (gaps >= 0).all()
    # The mean of 200,000 exponential gaps lies within 2 % with overwhelming probability; its deviation equals it.
    assert gaps.mean() == pytest.approx(100, rel=0.02)
    assert gaps.std() == pytest.approx(100, rel=0.03)


def test_bursty_arrivals_have_the_asked_rate_and_are_silent_between_bursts() -> None:
    burst = Burst(factor=5, period_s=0.5)
    times = Schedule(arrivals_at(Arrivals.BURSTY, 10_000, 5, burst), 200_000).take(200_000, 0)
    assert times[-1] / 200_000 == pytest.approx(100, rel=0.03)
    within = times % 500_000
    assert within.max() <= 100_000
    # Within a burst, arrivals are spread evenly.
    assert within.mean() == pytest.approx(50_000, rel=0.02)
    assert np.diff(np.unique(times // 500_000)).tolist() == [1] * (len(np.unique(times // 500_000)) - 1)


@pytest.mark.parametrize("kind", [Arrivals.POISSON, Arrivals.BURSTY])
def test_drawn_arrivals_follow_the_seed(kind: Arrivals) -> None:
    def times(seed: int) -> list[int]:
        return Schedule(arrivals_at(kind, 1000, seed), 50).take(50, 0).tolist()

    assert times(1) == times(1)
    assert times(1) != times(2)


@given(
    kind=st.sampled_from(Arrivals),
    rate=st.floats(1, 5_000_000),
    events=st.integers(0, 200_000),
    steps_us=st.lists(st.integers(0, 2_000_000), max_size=10),
)
@settings(max_examples=40, deadline=None)
def test_each_event_is_due_from_its_intended_time_on_and_taken_once(
    kind: Arrivals, rate: float, events: int, steps_us: list[int]
) -> None:
    expected = Schedule(arrivals_at(kind, rate, seed=3), events).take(events, 0)
    assert len(expected) == events
    schedule, now_us, taken = Schedule(arrivals_at(kind, rate, seed=3), events), 0, 0
    for step_us in steps_us:
        now_us += step_us
        due = schedule.due(now_us)
        assert due == np.searchsorted(expected, now_us, side="right") - taken
        batch = schedule.take(due // 2, now_us)
        assert batch.tolist() == expected[taken : taken + due // 2].tolist()
        taken += due // 2
        assert schedule.next_us == (expected[taken] if taken < events else None)


def test_at_full_speed_everything_is_due_and_intended_now() -> None:
    pace = FullSpeed(10)
    assert pace.due(0) == 10
    assert pace.take(7, 123).tolist() == [123] * 7
    assert pace.take(7, 456).tolist() == [456] * 3
    assert pace.next_us is None


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_no_clock_can_follow_is_refused(rate: float) -> None:
    with pytest.raises(SettingsError, match="rate is"):
        arrivals_at(Arrivals.CONSTANT, rate, seed=0)
