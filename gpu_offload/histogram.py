"""A histogram of ratios that forgets: equal steps of the logarithm, weights that halve with time.

Each bin keeps the mean of what fell into it, so a quantile of values that are all alike is exact.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

_STEP: Final = math.log(1.04)
_LOWEST: Final = math.log(1 / 64)
_BINS: Final = 2 * 106 + 1


class Histogram:
    """Ratios between 1/64 and 64; what lies outside counts as the nearest bound."""

    __slots__ = ("_at", "_sums", "_weights")

    def __init__(self) -> None:
        self._weights = np.zeros(_BINS)
        self._sums = np.zeros(_BINS)
        self._at = 0.0

    def add(self, now: float, ratio: float, half_life_s: float) -> None:
        """Add one ratio; everything before weighs half as much for each half-life that has passed since."""
        passed = now - self._at
        if passed > 0.0:
            kept = 0.5 ** (passed / half_life_s)
            self._weights *= kept
            self._sums *= kept
            self._at = now
        value = min(max(math.log(max(ratio, 1e-9)), _LOWEST), -_LOWEST)
        place = min(_BINS - 1, round((value - _LOWEST) / _STEP))
        self._weights[place] += 1.0
        self._sums[place] += value

    def weight(self, now: float, half_life_s: float) -> float:
        """How many fresh values all of it is worth."""
        return float(self._weights.sum()) * math.pow(0.5, max(0.0, now - self._at) / half_life_s)

    def merged(self, other: Histogram) -> Histogram:
        """Both together, each with the weight it has."""
        both = Histogram()
        both._weights = self._weights + other._weights
        both._sums = self._sums + other._sums
        both._at = max(self._at, other._at)
        return both

    def quantiles(self, parts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The ratios below which these parts of the weight lie, as float64 like `parts`; 1 where nothing was added."""
        total = float(self._weights.sum())
        if total <= 0.0:
            return np.ones(len(parts))
        filled = np.flatnonzero(self._weights > 0.0)
        means = np.exp(self._sums[filled] / self._weights[filled])
        ends = np.cumsum(self._weights[filled]) / total
        return np.asarray(means[np.minimum(np.searchsorted(ends, parts - 1e-12), len(filled) - 1)])
