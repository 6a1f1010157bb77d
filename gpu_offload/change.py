"""Noticing that a device has become slower or faster than it was: at once, and little by little.

For a jump there is Page-Hinkley's test, both ways. It sums up how far log(observed/predicted) lies from its usual
value, less an allowance for drift, and alarms when the sum passes a threshold. Allowance and threshold grow with the
usual spread, or noise would raise alarms (E. S. Page, Biometrika 1954; for normal noise a false alarm comes about once
in exp(12) values).
What drifts slowly is found by the mean of the last seconds.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

_DRIFT_MIN: Final = 0.05
_THRESHOLD_MIN: Final = 0.5
# In deviations. Allowance and threshold together fix how seldom noise alarms.
_DRIFT: Final = 0.5
_THRESHOLD: Final = 12.0
_CLIP: Final = 4.0
_LEARN: Final = 30
_FORGET: Final = 0.005
_RECENT: Final = 64
_DRIFT_MEAN_S: Final = 2.0
_DRIFT_OFF: Final = 0.05
_DRIFT_DEVIATIONS: Final = 4.0


class ChangeDetector:
    """Fed with log ratios; after an alarm it learns anew what is usual."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._restart()

    def _restart(self) -> None:
        self._seen = 0
        self._mean = 0.0
        self._variance = 0.0
        self._up = 0.0
        self._down = 0.0
        self._since_up = 0
        self._since_down = 0
        self._recent.clear()

    def add(self, log_ratio: float) -> float | None:
        """Add one value; on an alarm, by how much the logarithm has shifted since it began, otherwise None."""
        if self._seen < _LEARN:
            self._learn(log_ratio, 1.0 / (self._seen + 1))
            self._seen += 1
            return None
        spread = math.sqrt(self._variance)
        drift = max(_DRIFT_MIN, _DRIFT * spread)
        clip = max(_CLIP * spread, 4 * _DRIFT_MIN)
        away = min(max(log_ratio - self._mean, -clip), clip)
        self._recent.append(log_ratio)
        self._up = max(0.0, self._up + away - drift)
        self._since_up = self._since_up + 1 if self._up > 0.0 else 0
        self._down = max(0.0, self._down - away - drift)
        self._since_down = self._since_down + 1 if self._down > 0.0 else 0
        threshold = max(_THRESHOLD_MIN, _THRESHOLD * spread)
        if max(self._up, self._down) < threshold:
            self._learn(self._mean + away, _FORGET)
            return None
        since = self._since_up if self._up >= self._down else self._since_down
        shift = self._shift(list(self._recent)[-since:])
        self._restart()
        return shift

    def _shift(self, values: list[float]) -> float:
        """How far the values lie off since the change, which is where the sum from there on says most."""
        total, most, changed = 0.0, -1.0, 1
        for count, value in enumerate(reversed(values), start=1):
            total += value - self._mean
            if abs(total) / math.sqrt(count) >= most:
                most, changed = abs(total) / math.sqrt(count), count
        newest = sorted(values[-changed:])
        return newest[len(newest) // 2] - self._mean

    @property
    def spread(self) -> float:
        """The usual standard deviation of the log ratios."""
        return math.sqrt(self._variance)

    def _learn(self, value: float, weight: float) -> None:
        away = value - self._mean
        self._mean += weight * away
        self._variance = (1.0 - weight) * (self._variance + weight * away * away)


class DriftDetector:
    """Fed with ratios of observed to expected times, whose mean is 1 while nothing drifts."""

    def __init__(self) -> None:
        self._at = 0.0
        self._weight = 0.0
        self._sum = 0.0

    def add(self, now: float, ratio: float, spread: float) -> float | None:
        """Add one value; the mean of the last seconds where it is off by more than chance, then it begins anew.

        `spread` is the usual standard deviation of the ratios.
        """
        kept = math.exp(-max(0.0, now - self._at) / _DRIFT_MEAN_S)
        self._at = max(self._at, now)
        self._weight = self._weight * kept + 1.0
        self._sum = self._sum * kept + ratio
        mean = self._sum / self._weight
        if self._weight < _LEARN or abs(mean - 1.0) < max(
            _DRIFT_OFF, _DRIFT_DEVIATIONS * spread / math.sqrt(self._weight)
        ):
            return None
        self.begin_anew()
        return mean

    def begin_anew(self) -> None:
        """What was before does not count any more."""
        self._weight = self._sum = 0.0
