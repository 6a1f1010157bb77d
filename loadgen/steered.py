"""A load whose rate somebody else sets while it is sent: the generator's schedule for a show that follows what it sees.

It stays open: what it sends follows the rate that was set, and never how well the system copes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from millstream.processor.columns import Int64s

_US_PER_S: Final = 1e6


class SteeredPace:
    """Evenly spaced events at `rate()` a second, which is asked again and again; 0 ends the load. A `schedule.Pace`."""

    is_open = True

    def __init__(self, rate: Callable[[], float]) -> None:
        self._rate = rate
        self._next_us = 0.0
        self._gap_us = _US_PER_S

    @property
    def left(self) -> int:
        """None that is known: how many will come is not decided yet."""
        return 0

    @property
    def next_us(self) -> int | None:
        """The intended time of the next event; None once the rate is 0."""
        return int(self._next_us) if self._rate() > 0 else None

    def due(self, elapsed_us: int) -> int:
        """How many events should have left by now, at the rate of now since the last one."""
        rate = self._rate()
        if rate <= 0:
            return 0
        self._gap_us = _US_PER_S / rate
        # A much higher rate does not wait for what was the next event of a lower one.
        self._next_us = min(self._next_us, elapsed_us + self._gap_us)
        return max(0, int((elapsed_us - self._next_us) // self._gap_us) + 1)

    def take(self, events: int, elapsed_us: int) -> Int64s:  # noqa: ARG002  # intended times do not follow the clock
        """The intended times of the next events."""
        times = self._next_us + np.arange(events) * self._gap_us
        self._next_us += events * self._gap_us
        return times.astype(np.int64)
