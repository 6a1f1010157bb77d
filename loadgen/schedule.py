"""When each event should leave: an open schedule, which never waits for the system under load.

A schedule is a sequence of intended times, in microseconds from its start, that never go back. The generator
asks how many are due and takes them; what it hands over late is late by its own schedule, and is reported.
Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Protocol

import numpy as np

from millstream.processor.columns import Int64s
from millstream.processor.errors import SettingsError

RATE_MAX = 100_000_000.0
BURST_FACTOR_MAX = 1000.0
BURST_PERIOD_S_MIN, BURST_PERIOD_S_MAX = 0.01, 3600.0
_BLOCK_EVENTS = 65_536
_US_PER_S = 1_000_000


class Arrivals(Enum):
    """How events are spread over time at a given mean rate."""

    CONSTANT = "constant"
    POISSON = "poisson"
    BURSTY = "bursty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """How bursty arrivals are: each period begins with all of its events, at `factor` times the mean rate, and the
    rest of it is silent. Raises SettingsError with every mistake at once."""

    factor: float = 4.0
    period_s: float = 1.0

    def __post_init__(self) -> None:
        mistakes = []
        if not 1 < self.factor <= BURST_FACTOR_MAX:
            mistakes.append(f"the burst factor is {self.factor}; give more than 1, at most {BURST_FACTOR_MAX:g}")
        if not BURST_PERIOD_S_MIN <= self.period_s <= BURST_PERIOD_S_MAX:
            mistakes.append(
                f"the burst period is {self.period_s} s; give {BURST_PERIOD_S_MIN:g} to {BURST_PERIOD_S_MAX:g}"
            )
        if mistakes:
            raise SettingsError("the schedule cannot be made", mistakes)


def constant_arrivals(rate: float) -> Iterator[Int64s]:
    """Intended times, block by block, one event every 1/rate seconds. Event i is due at i/rate, without drift."""
    for block in count():
        index = np.arange(block * _BLOCK_EVENTS, (block + 1) * _BLOCK_EVENTS, dtype=np.float64)
        yield (index * (_US_PER_S / rate)).astype(np.int64)


def poisson_arrivals(rate: float, seed: int) -> Iterator[Int64s]:
    """Intended times, block by block, with independent exponential gaps of mean 1/rate seconds."""
    chance = np.random.default_rng(seed)
    elapsed_us = 0.0
    while True:
        times = elapsed_us + np.cumsum(chance.exponential(_US_PER_S / rate, _BLOCK_EVENTS))
        elapsed_us = float(times[-1])
        yield times.astype(np.int64)


def bursty_arrivals(rate: float, seed: int, burst: Burst) -> Iterator[Int64s]:
    """Intended times, block by block: Poisson at `burst.factor` times the rate during bursts, nothing between them."""
    period_us = burst.period_s * _US_PER_S
    on_us = period_us / burst.factor
    for times in poisson_arrivals(rate * burst.factor, seed):
        # Time goes on during bursts only, and each burst that has passed is followed by its silence.
        yield (times + np.floor_divide(times, on_us) * (period_us - on_us)).astype(np.int64)


def arrivals_at(kind: Arrivals, rate: float, seed: int, burst: Burst | None = None) -> Iterator[Int64s]:
    """The arrivals of that kind. Raises SettingsError for a rate that no clock could follow."""
    if not 0 < rate <= RATE_MAX:
        raise SettingsError(
            "the schedule cannot be made", [f"rate is {rate}; give more than 0, at most {RATE_MAX:.0f}"]
        )
    if kind is Arrivals.POISSON:
        return poisson_arrivals(rate, seed)
    if kind is Arrivals.BURSTY:
        return bursty_arrivals(rate, seed, burst or Burst())
    return constant_arrivals(rate)


class Pace(Protocol):
    """Tells a sender what to send when. `elapsed_us` is the time since the start.

    Only with an open schedule, which does not follow the sender, does lateness mean anything.
    """

    is_open: bool

    @property
    def next_us(self) -> int | None:
        """The intended time of the next event; None after the last one."""

    @property
    def left(self) -> int:
        """How many events were not taken yet."""

    def due(self, elapsed_us: int) -> int:
        """How many events should have left by now and were not taken yet."""

    def take(self, events: int, elapsed_us: int) -> Int64s:
        """The intended times of the next events, which are then taken. Fewer where the schedule ends."""


class FullSpeed:
    """Everything is due at once, and each event is intended when it is taken: nothing is ever late."""

    is_open = False

    def __init__(self, events: int) -> None:
        self._left = events

    @property
    def left(self) -> int:
        """How many events were not taken yet."""
        return self._left

    @property
    def next_us(self) -> int | None:
        """Always now, until the last event is taken."""
        return 0 if self._left else None

    def due(self, elapsed_us: int) -> int:  # noqa: ARG002 - a pace is asked with the time; this one does not care
        """All that is left."""
        return self._left

    def take(self, events: int, elapsed_us: int) -> Int64s:
        """Events that are intended for this very moment."""
        taken = min(events, self._left)
        self._left -= taken
        return np.full(taken, elapsed_us, np.int64)


class Schedule:
    """A cursor over intended times: how many are due, and which is next."""

    is_open = True

    def __init__(self, arrivals: Iterator[Int64s], events: int) -> None:
        self._arrivals = arrivals
        self._left = events
        self._pending: Int64s = np.empty(0, np.int64)

    @property
    def left(self) -> int:
        """How many events were not taken yet."""
        return self._left

    @property
    def next_us(self) -> int | None:
        """The intended time of the next event; None after the last one."""
        if not self._left:
            return None
        self._fill(1)
        return int(self._pending[0])

    def due(self, elapsed_us: int) -> int:
        """How many events should have left by now and were not taken yet."""
        while self._left > len(self._pending) and (not len(self._pending) or self._pending[-1] <= elapsed_us):
            self._fill(len(self._pending) + 1)
        return min(self._left, int(np.searchsorted(self._pending, elapsed_us, side="right")))

    def take(self, events: int, elapsed_us: int) -> Int64s:  # noqa: ARG002 - intended times do not follow the clock
        """The intended times of the next events, which are then taken. Fewer where the schedule ends."""
        events = min(events, self._left)
        self._fill(events)
        taken, self._pending = self._pending[:events], self._pending[events:]
        self._left -= events
        return taken

    def _fill(self, events: int) -> None:
        while len(self._pending) < events:
            self._pending = np.concatenate([self._pending, next(self._arrivals)])
