"""Predictions against a simulation that takes one event after the other."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.gpu_offload.arrivals import Arrivals
from millstream.gpu_offload.curve import straight
from millstream.gpu_offload.formula import predict
from millstream.gpu_offload.replay import draw_luck, replay
from millstream.gpu_offload.service_model import Service, ServiceModel, certain

LUCK = draw_luck(0)


def one_by_one(
    times: list[float], counts: list[int], law: Service, servers: int, records_max: int, wait_s: float
) -> tuple[list[float], float]:
    """Every event's latency, and the busy time: the same rule with no cleverness."""
    events = deque(at for at, count in zip(times, counts, strict=True) for _ in range(count))
    free = [-1.0] * servers
    latencies: list[float] = []
    busy_s = 0.0
    while events:
        closes = events[0] + wait_s
        if len(events) >= records_max:
            closes = min(closes, events[records_max - 1])
        server = free.index(min(free))
        start = max(closes, free[server])
        batch = []
        while events and events[0] <= start and len(batch) < records_max:
            batch.append(events.popleft())
        seconds = law.curve.seconds(len(batch))
        free[server] = start + seconds
        busy_s += seconds
        latencies += [free[server] - at for at in batch]
    return latencies, busy_s


@settings(deadline=None)
@given(
    gaps=st.lists(st.floats(1e-5, 5e-3), min_size=2, max_size=120),
    sizes=st.lists(st.integers(1, 40), min_size=120, max_size=120),
    fixed_us=st.floats(1, 2000),
    per_event_us=st.floats(0.1, 100),
    servers=st.integers(1, 3),
    power=st.integers(0, 8),
    wait_ms=st.sampled_from([0.0, 0.3, 2.0, 7.0]),
)
def test_a_replay_does_what_the_rule_says(
    gaps: list[float],
    sizes: list[int],
    fixed_us: float,
    per_event_us: float,
    servers: int,
    power: int,
    wait_ms: float,
) -> None:
    times = [float(at) for at in np.cumsum(gaps)]
    counts = sizes[: len(times)]
    law = certain(straight(fixed_us * 1e-6, per_event_us * 1e-6))
    latencies, busy_s = one_by_one(times, counts, law, servers, 2**power, wait_ms * 1e-3)
    found = replay(
        np.array(times), np.array(counts, dtype=np.float64), law, servers, 2**power, wait_ms * 1e-3, 0.01, LUCK
    )
    assert found.events == sum(counts)
    assert found.busy_s == pytest.approx(busy_s)
    assert found.late_share == pytest.approx(np.mean(np.array(latencies) > 0.01), abs=1e-9)
    assert found.p99_s == pytest.approx(np.quantile(latencies, 0.99, method="inverted_cdf"), rel=0.03)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("fixed_us", "per_event_us"), [(60, 20), (250, 0.3), (1500, 0.0)])
@pytest.mark.parametrize("rate", [500, 5_000, 30_000])
@pytest.mark.parametrize(("records_max", "wait_ms"), [(65536, 0.0), (256, 0.0), (64, 2.0), (1024, 5.0)])
def test_for_calm_arrivals_the_formula_is_seldom_too_low_and_right_about_the_work(
    seed: int, fixed_us: float, per_event_us: float, rate: float, records_max: int, wait_ms: float
) -> None:
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(1.0 / rate, round(4 * rate)))
    law = certain(straight(fixed_us * 1e-6, per_event_us * 1e-6))
    formula = predict(law, 1, np.array([float(records_max)]), np.array([wait_ms * 1e-3]), rate, 0.9)
    found = replay(times, np.ones(len(times)), law, 1, records_max, wait_ms * 1e-3, 0.01, LUCK)
    assert formula.load[0] < 0.71, "a case that is worth something"
    assert formula.p99_s[0] > 0.85 * found.p99_s
    assert formula.p99_s[0] < 2.2 * found.p99_s
    assert formula.busy[0] == pytest.approx(found.busy_s / found.over_s, rel=0.12)


def test_bursts_that_the_formula_cannot_see_the_replay_sees() -> None:
    random = np.random.default_rng(3)
    counts = random.poisson([160.0 if place // 200 % 2 else 40.0 for place in range(4000)]).astype(np.float64)
    times = 0.001 * np.arange(4000)
    law = certain(straight(60e-6, 9e-6))
    formula = predict(law, 1, np.array([65536.0]), np.zeros(1), 100_000.0, 0.95)
    found = replay(times, counts, law, 1, 65536, 0.0, 0.01, LUCK)
    assert formula.p99_s[0] < 0.01 < found.p99_s


def test_the_same_luck_gives_the_same_prediction_and_other_luck_nearly() -> None:
    random = np.random.default_rng(4)
    model = ServiceModel()
    for place in range(3000):
        model.observed(0.001 * place, 100, 1e-3 * float(np.exp(random.normal(0.0, 0.3))))
    service = model.service()
    assert service is not None
    times = np.cumsum(random.exponential(1e-4, 20_000))
    first, again, other = (
        replay(times, np.ones(20_000), service, 1, 100, 0.004, 0.01, draw_luck(seed)) for seed in (1, 1, 2)
    )
    assert first == again
    assert other.p99_s == pytest.approx(first.p99_s, rel=0.05)


def test_rates_of_a_load_that_steps_up_and_down() -> None:
    arrivals = Arrivals(1e-3)
    random = np.random.default_rng(5)

    def run(begin: float, end: float, rate: float) -> None:
        for at in np.arange(begin, end, 0.001):
            arrivals.add(float(at), int(random.poisson(rate * 0.001)), 0)

    run(100.0, 112.0, 5_000)
    assert arrivals.rate(112.0) == pytest.approx(5_000, rel=0.1)
    assert 5_000 < arrivals.rate_high(112.0) < 6_000
    assert arrivals.steady_s(112.0) > 8.0
    run(112.0, 112.15, 50_000)
    assert arrivals.rate_high(112.15, 1.0) > 40_000, "a tenth of a second is enough to see a step"
    run(112.15, 114.0, 50_000)
    assert arrivals.steady_s(114.0) < 2.1
    run(114.0, 117.0, 5_000)
    assert arrivals.rate(117.0) == pytest.approx(5_000, rel=0.1)
    assert arrivals.rate_high(117.0) > 40_000, "the peak is remembered for ten seconds"
    assert arrivals.rate_high(117.0, 2.0) < 6_000, "and not, where less is asked"
    times, counts = arrivals.replayable(117.0, 2.0)
    assert counts.sum() == pytest.approx(10_000, rel=0.1)
    assert times[0] >= 115.0


def test_arrivals_take_no_more_memory_however_long_they_last_and_a_pause_empties_them() -> None:
    arrivals = Arrivals(1e-5)
    for place in range(30_000):
        arrivals.add(place * 1e-4, 7, 70)
    times, _ = arrivals.replayable(3.0, 10.0)
    assert len(times) == 8192
    assert arrivals.bytes_per_event == pytest.approx(10.0)
    assert arrivals.rate(100.0) == 0.0
    assert arrivals.rate_high(100.0) == 0.0
