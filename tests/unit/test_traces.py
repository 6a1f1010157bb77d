"""Traces have the rates, the noise and the lag that they were asked for."""

from __future__ import annotations

import numpy as np
import pytest

from millstream.gpu_offload.traces import bursts, diurnal, jumps, make_trace, ramp, steady

SEED = 11


def test_even_arrivals_follow_a_changing_rate_exactly() -> None:
    trace = make_trace("ramp", ramp(1000, 3000, 10), SEED, arriving="evenly")
    found = trace.events_by_second()
    assert found.sum() == pytest.approx(20_000, abs=1)
    assert np.abs(found - np.linspace(1100, 2900, 10)).max() <= 2
    assert np.all(np.diff(trace.arrivals) > 0)


@pytest.mark.parametrize("arriving", ["poisson", "clumps"])
def test_random_arrivals_keep_the_rate_and_clumps_spread_it_more(arriving: str) -> None:
    trace = make_trace("steady", steady(5000, 60), SEED, arriving=arriving)  # type: ignore[arg-type]
    found = np.histogram(trace.arrivals, np.arange(0, 60.001, 0.1))[0]
    assert len(trace.arrivals) == pytest.approx(300_000, rel=0.1)
    spread = found.var() / found.mean()
    assert (0.8 < spread < 1.25) if arriving == "poisson" else spread > 5
    assert np.all(np.diff(trace.arrivals) >= 0)


def test_the_same_seed_gives_the_same_trace_and_another_does_not() -> None:
    one, same, other = (make_trace("one", steady(1000, 2), seed).arrivals for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one[:100], other[:100])


def test_bursts_and_steps_are_found_where_they_are() -> None:
    rates = bursts(10, 40, calm_s=3, burst_s=2, times=2)
    assert jumps(rates) == (3, 5, 8, 10)
    assert jumps(diurnal(10, 100, 60, 30)) == ()
    assert len(rates) == 1300


def test_a_lag_is_there_at_once_and_is_counted_apart() -> None:
    trace = make_trace("lag", steady(100, 10), SEED, lag=500, lag_at_s=4.0)
    assert np.sum(trace.arrivals == 4.0) >= 500
    assert trace.events_by_second()[4] > 550
    assert np.all(np.diff(trace.arrivals) >= 0)
