"""What is measured of a device is what it takes: lines, knees, spreads, changes, and what is not known yet."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.gpu_offload.change import ChangeDetector, DriftDetector
from millstream.gpu_offload.curve import Point, fit
from millstream.gpu_offload.histogram import Histogram
from millstream.gpu_offload.service_model import KNOWN_SAMPLES, ServiceModel

SIZES = (1, 3, 10, 40, 150, 700, 3000)


def measured(law: object, sizes: tuple[int, ...] = SIZES, rounds: int = KNOWN_SAMPLES) -> ServiceModel:
    assert callable(law)
    model = ServiceModel()
    for step in range(rounds):
        for place, size in enumerate(sizes):
            model.observed(0.01 * step + 0.001 * place, size, law(size))
    return model


@settings(deadline=None)
@given(fixed_us=st.floats(1, 50_000), per_event_us=st.floats(0.01, 500))
def test_a_line_without_noise_is_found_exactly(fixed_us: float, per_event_us: float) -> None:
    service = measured(lambda n: (fixed_us + per_event_us * n) * 1e-6).service()
    assert service is not None
    assert service.curve.is_line
    for size in (1, 20, 5000):
        expected = (fixed_us + per_event_us * size) * 1e-6
        assert service.p50_s(size) == pytest.approx(expected, rel=1e-3)
        assert service.p99_s(size) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_a_line_under_noise_is_found_nearly_and_its_tail_with_it(seed: int) -> None:
    random = np.random.default_rng(seed)
    sigma = 0.25
    law = lambda n: (250e-6 + 0.3e-6 * n) * math.exp(random.normal(0.0, sigma))  # noqa: E731
    service = measured(law, rounds=400).service()
    assert service is not None
    for size in (1, 150, 3000):
        median = 250e-6 + 0.3e-6 * size
        assert service.p50_s(size) == pytest.approx(median, rel=0.06)
        assert service.p99_s(size) == pytest.approx(median * math.exp(2.326 * sigma), rel=0.2)


def test_less_than_thirty_measurements_are_no_knowledge() -> None:
    model = ServiceModel()
    for place in range(KNOWN_SAMPLES - 1):
        assert not model.observed(0.1 * place, 64, 0.001) or place == 9, "a size has become known"
        assert not model.known
        assert model.service() is None
    assert model.observed(3.0, 64, 0.001)
    assert model.known
    assert model.is_thin, "what is fixed cannot be told by one size"
    for place in range(10):
        model.observed(4.0 + place, 512, 0.002)
    assert not model.is_thin


def test_thirty_measurements_of_as_many_sizes_are_no_knowledge_either() -> None:
    model = ServiceModel()
    for place in range(34):
        model.observed(0.1 * place, 2 ** (place % 17), 0.001)
    assert not model.known


def test_the_spread_of_each_size_is_its_own() -> None:
    random = np.random.default_rng(5)
    law = lambda n: (1e-3 + 1e-6 * n) * math.exp(random.normal(0.0, 0.02 if n < 100 else 0.4))  # noqa: E731
    service = measured(law, rounds=600).service()
    assert service is not None
    assert service.p99_s(3) / service.p50_s(3) < 1.15
    assert service.p99_s(700) / service.p50_s(700) > 2.0


def test_the_tail_never_falls_with_the_size() -> None:
    random = np.random.default_rng(6)
    law = lambda n: (1e-3 + 1e-6 * n) * math.exp(random.normal(0.0, 0.8 if n < 100 else 0.02))  # noqa: E731
    service = measured(law, rounds=300).service()
    assert service is not None
    tails = [service.p99_s(2**place) for place in range(17)]
    assert tails == sorted(tails)


def test_a_knee_is_told_by_a_table_where_a_line_would_lie() -> None:
    knee = lambda n: 100e-6 + 1e-6 * n + 20e-6 * max(0, n - 500)  # noqa: E731
    service = measured(knee, sizes=(1, 4, 16, 64, 256, 512, 1024, 2048, 4096)).service()
    assert service is not None
    assert not service.curve.is_line
    for size in (4, 64, 512, 1024, 4096):
        assert service.p50_s(size) == pytest.approx(knee(size), rel=0.05)


def test_a_bucket_holds_sizes_that_differ_without_blurring_the_line() -> None:
    random = np.random.default_rng(7)
    model = ServiceModel()
    for step in range(2000):
        size = int(random.integers(90, 180))
        model.observed(0.01 * step, size, 10e-6 * size)
        model.observed(0.01 * step, 10 * size, 100e-6 * size)
    service = model.service()
    assert service is not None
    assert service.p99_s(128) == pytest.approx(10e-6 * 128, rel=0.03)


def test_a_device_that_becomes_three_times_slower_is_noticed_within_a_dozen_batches() -> None:
    random = np.random.default_rng(8)
    model = measured(lambda n: (250e-6 + 0.3e-6 * n) * math.exp(random.normal(0.0, 0.2)), rounds=100)
    noticed = [
        model.observed(2.0 + 0.002 * place, 150, 3 * (250e-6 + 45e-6) * math.exp(random.normal(0.0, 0.2)))
        for place in range(60)
    ]
    assert True in noticed[:12]
    service = model.service()
    assert service is not None
    assert service.p50_s(150) == pytest.approx(3 * 295e-6, rel=0.15)
    assert service.p50_s(3000) == pytest.approx(3 * 1150e-6, rel=0.25), "sizes that were not seen again follow"


def test_a_device_that_becomes_slower_little_by_little_is_followed() -> None:
    random = np.random.default_rng(10)
    model = measured(lambda n: (60e-6 + 10e-6 * n) * math.exp(random.normal(0.0, 0.15)), rounds=100)
    off = []
    for step in range(8000):
        now = 2.0 + 0.005 * step
        per_event_s = 10e-6 + 35e-6 * step / 8000
        model.observed(now, 100, (60e-6 + per_event_s * 100) * math.exp(random.normal(0.0, 0.15)))
        service = model.service() if step % 200 == 0 else None
        if service is not None:
            off.append(service.p50_s(100) / (60e-6 + per_event_s * 100))
    assert min(off) > 0.88
    assert max(off) < 1.1


@pytest.mark.parametrize("spread", [0.05, 0.25, 0.5])
def test_noise_seldom_looks_like_a_drift(spread: float) -> None:
    random = np.random.default_rng(11)
    detector = DriftDetector()
    ratios = np.exp(random.normal(-(spread**2) / 2, spread, 20_000))
    assert sum(detector.add(0.005 * at, float(ratio), spread) is not None for at, ratio in enumerate(ratios)) <= 2


def test_one_stall_changes_nothing_much() -> None:
    model = measured(lambda n: 1e-3 + 1e-6 * n, rounds=100)
    assert not model.observed(2.0, 150, 2.0)
    service = model.service()
    assert service is not None
    assert service.p50_s(150) == pytest.approx(1.15e-3, rel=0.06)


@pytest.mark.parametrize(("records", "seconds"), [(0, 0.1), (-1, 0.1), (5, 0.0), (5, -0.1), (5, math.nan)])
def test_what_cannot_be_is_refused(records: int, seconds: float) -> None:
    with pytest.raises(ValueError, match=f"batch of {records} records"):
        ServiceModel().observed(0.0, records, seconds)


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.25, 0.6])
def test_noise_seldom_raises_an_alarm_and_a_shift_does(spread: float) -> None:
    random = np.random.default_rng(9)
    detector = ChangeDetector()
    alarms = sum(detector.add(float(value)) is not None for value in random.normal(0.0, spread, 20_000))
    assert alarms <= 1
    found = [detector.add(float(value)) for value in random.normal(1.1, spread, 60)]
    shifts = [shift for shift in found if shift is not None]
    assert shifts, "a shift to three times as much is noticed"
    assert shifts[0] == pytest.approx(1.1, abs=0.05 + 1.5 * spread)


@settings(deadline=None)
@given(values=st.lists(st.floats(0.02, 50), min_size=1, max_size=200))
def test_quantiles_of_a_histogram_are_within_its_steps(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(0.0, value, 60.0)
    parts = np.array([0.1, 0.5, 0.9, 0.99])
    exact = np.quantile(values, parts, method="inverted_cdf")
    assert histogram.quantiles(parts) == pytest.approx(exact, rel=0.041)


def test_a_histogram_forgets_by_half_lives() -> None:
    histogram = Histogram()
    for _ in range(1000):
        histogram.add(0.0, 1.0, 5.0)
    for _ in range(30):
        histogram.add(50.0, 3.0, 5.0)
    assert histogram.quantiles(np.array([0.5]))[0] == pytest.approx(3.0)
    assert histogram.weight(55.0, 5.0) == pytest.approx(15.5, rel=0.05)


def test_points_that_lie_far_off_bend_a_line_little() -> None:
    points = [Point(2.0**place, 1e-4 + 1e-6 * 2.0**place, 100.0) for place in range(10)]
    points[4] = Point(16.0, 9e-4, 100.0)
    curve = fit(points)
    assert curve.fixed_s == pytest.approx(1e-4, rel=0.1)
    assert curve.per_event_s == pytest.approx(1e-6, rel=0.1)


def test_a_size_that_is_measured_no_more_is_not_carried_away_by_the_noise_of_another() -> None:
    for seed in range(4):
        random, model, now = np.random.default_rng(seed), ServiceModel(), 0.0
        for _ in range(50):
            now += 0.01
            model.observed(now, 1, 400e-6)
        for spell in range(40):
            for _ in range(50):
                now += 0.05
                model.observed(now, 1000, 0.1 * (1 if spell % 2 else 4) * math.exp(0.5 * random.standard_normal()))
        service = model.service()
        assert service is not None
        assert 400e-6 / 10 < service.p50_s(1) < 400e-6 * 80, f"seed {seed}"
