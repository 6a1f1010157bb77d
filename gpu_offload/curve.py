"""The time that a batch takes as a function of its size: a line where one fits, a table where none does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BUCKETS: Final = 17
"""Batch sizes 1, 2, 4, ... 65536."""
SIZES: Final[Floats] = np.array([2.0**place for place in range(BUCKETS)])

# Where more than a fifth of the points are further from the line than this, a table is used: caches make knees.
_RESIDUAL_MAX: Final = 0.15
_ROUNDS: Final = 4
# A point further off than this weighs less, as its distance says (Huber's weights).
_OUTLYING: Final = 0.05


@dataclass(frozen=True, slots=True)
class Point:
    """A batch size and the mean time at it, with the weight of what it is the mean of."""

    records: float
    seconds: float
    weight: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean seconds of a batch. `fixed_s` and `per_event_s` describe it also where `is_line` is False, roughly."""

    fixed_s: float
    per_event_s: float
    is_line: bool
    table: Floats
    """At each of `SIZES`, float64[BUCKETS]."""

    def seconds(self, records: float) -> float:
        """The mean time of a batch of so many records."""
        if self.is_line:
            return self.fixed_s + self.per_event_s * records
        return float(np.interp(records, SIZES, self.table))


def straight(fixed_s: float, per_event_s: float) -> Curve:
    """A curve that is a line."""
    return Curve(fixed_s, per_event_s, True, fixed_s + per_event_s * SIZES)


def fit(points: Sequence[Point]) -> Curve:
    """The curve through these points, at least one, in ascending order of `records`.

    With one point alone nothing says what is fixed; half is taken to be, so that it looks worth trying other sizes.
    """
    fixed_s, per_event_s = _line(points)
    misses = sorted(abs(fixed_s + per_event_s * point.records - point.seconds) / point.seconds for point in points)
    if len(points) == 1:
        return Curve(fixed_s, per_event_s, False, fixed_s + per_event_s * SIZES)
    if len(points) < 4 or misses[int(0.8 * (len(misses) - 1))] <= _RESIDUAL_MAX:
        return straight(fixed_s, per_event_s)
    return Curve(fixed_s, per_event_s, False, _table(points))


def _line(points: Sequence[Point]) -> tuple[float, float]:
    """Fixed and per-event cost, neither below 0: least squares of relative errors, outlying points weighing less."""
    if len(points) == 1:
        return points[0].seconds / 2, points[0].seconds / 2 / points[0].records
    records = np.array([point.records for point in points])
    seconds = np.array([point.seconds for point in points])
    certain = np.array([point.weight for point in points])
    weights = certain
    fixed_s = per_event_s = 0.0
    for _ in range(_ROUNDS):
        fixed_s, per_event_s = _weighted(records, seconds, weights / seconds**2)
        misses = np.abs(fixed_s + per_event_s * records - seconds) / seconds
        weights = certain * np.minimum(1.0, _OUTLYING / np.maximum(misses, 1e-12))
    return fixed_s, per_event_s


def _weighted(records: Floats, seconds: Floats, weights: Floats) -> tuple[float, float]:
    total = weights.sum()
    mean_records = float((weights * records).sum() / total)
    mean_seconds = float((weights * seconds).sum() / total)
    spread = float((weights * (records - mean_records) ** 2).sum())
    slope = float((weights * (records - mean_records) * (seconds - mean_seconds)).sum()) / spread if spread else 0.0
    if slope <= 0.0:
        return mean_seconds, 0.0
    fixed_s = mean_seconds - slope * mean_records
    if fixed_s < 0.0:
        return 0.0, float((weights * records * seconds).sum() / (weights * records**2).sum())
    return fixed_s, slope


def _table(points: Sequence[Point]) -> Floats:
    """Through the points, never falling; before the first one constant, after the last one with the last slope."""
    records = np.array([point.records for point in points])
    seconds = np.maximum.accumulate(np.array([point.seconds for point in points]))
    table = np.interp(SIZES, records, seconds)
    slope = max((seconds[-1] - seconds[-2]) / (records[-1] - records[-2]), 0.5 * seconds[-1] / records[-1])
    beyond = records[-1] < SIZES
    table[beyond] = seconds[-1] + slope * (SIZES[beyond] - records[-1])
    return table
