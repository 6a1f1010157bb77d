"""The latency histogram against NumPy on the plain values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.loadgen.latency import LatencyHistogram


@given(st.lists(st.integers(0, 2**46), min_size=1, max_size=300), st.sampled_from([0.0, 50.0, 90.0, 99.0, 99.9, 100.0]))
@settings(max_examples=100, deadline=None)
def test_a_percentile_is_never_below_the_exact_one_and_at_most_one_percent_above(
    values: list[int], percent: float
) -> None:
    histogram = LatencyHistogram()
    histogram.record(np.array(values, np.int64))
    exact = float(np.percentile(values, percent, method="inverted_cdf"))
    assert exact <= histogram.percentile_us(percent) <= exact * 1.01


def test_nothing_recorded_has_no_percentiles() -> None:
    assert LatencyHistogram().percentiles() is None


def test_negative_values_count_as_zero() -> None:
    histogram = LatencyHistogram()
    histogram.record(np.array([-5, -1], np.int64))
    assert histogram.percentile_us(100) == 0
    assert histogram.count == 2


def test_two_histograms_add_up_to_one() -> None:
    one, other, both = LatencyHistogram(), LatencyHistogram(), LatencyHistogram()
    low, high = np.arange(1000, dtype=np.int64), np.arange(500_000, 501_000, dtype=np.int64)
    one.record(low)
    other.record(high)
    both.record(np.concatenate([low, high]))
    one.add(other)
    assert one.percentiles() == both.percentiles()
    percentiles = one.percentiles()
    assert percentiles is not None
    assert percentiles.max == pytest.approx(500.999)
