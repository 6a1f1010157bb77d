"""A guard around the model: what was measured late makes the planner more careful, whatever the model says."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

_WITHIN_S: Final = 1.0
# Of the batches of a second so many have to be late, as a part and in number, before it is no chance.
_LATE_PART: Final = 0.05
_TIGHTER: Final = 0.9
_TIGHTEST: Final = 0.5
_LOOSER_PER_S: Final = 0.02


class Guard:
    """Counts late batches, and answers what part of the usual limit may be planned for."""

    def __init__(self, late_max: int) -> None:
        self._late_max = late_max
        self._batches: deque[tuple[float, bool]] = deque()
        self._late = 0
        self._part = 1.0
        self._tightened_at = -math.inf

    def batch(self, now: float, *, is_late: bool) -> bool:
        """A batch has ended; whether too many were late within a second. Then it counts from the beginning."""
        self._batches.append((now, is_late))
        self._late += is_late
        while self._batches[0][0] < now - _WITHIN_S:
            self._late -= self._batches.popleft()[1]
        if self._late < max(self._late_max, _LATE_PART * len(self._batches)):
            return False
        self._batches.clear()
        self._late = 0
        return True

    def tighten(self, now: float) -> None:
        """Plan for less from now on; it is given back in steps of two percent a second."""
        self._part = max(_TIGHTEST, _TIGHTER * self.part(now))
        self._tightened_at = now

    def part(self, now: float) -> float:
        """The part of the limit that may be planned for."""
        return min(1.0, self._part + _LOOSER_PER_S * max(0.0, now - self._tightened_at))
