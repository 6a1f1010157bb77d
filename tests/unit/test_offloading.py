"""What counts as the same answer from two devices."""

from __future__ import annotations

import numpy as np

from millstream.processor.offloading import Equality


def test_exact_equality_is_bit_for_bit_and_takes_nan_for_nan() -> None:
    values = np.array([1.0, np.nan, -0.0])
    assert Equality().holds(values, values.copy())
    assert not Equality().holds(values, np.array([1.0, np.nan, 0.0]))


def test_a_tolerance_forgives_what_it_says_and_no_more() -> None:
    values = np.array([100.0, np.nan])
    assert Equality(relative=1e-3).holds(values, np.array([100.05, np.nan]))
    assert not Equality(relative=1e-3).holds(values, np.array([100.5, np.nan]))


def test_other_types_and_shapes_are_never_equal() -> None:
    values = np.array([1, 2], np.int64)
    assert not Equality(absolute=10).holds(values, values.astype(np.int32))
    assert not Equality(absolute=10).holds(values, values[:1])
