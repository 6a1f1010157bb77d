"""Loads over time for trials of a planner: when each event arrives, and how large events are.

Arrivals follow a rate given by the hundredth of a second: evenly where there is to be no noise, as a Poisson process,
or in clumps of a heavy-tailed size, as record batches come. The same seed gives the same trace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Arriving = Literal["evenly", "poisson", "clumps"]

GRID_S: Final = 0.01
_PER_SECOND: Final = round(1 / GRID_S)
# Sizes of clumps are Pareto distributed with this exponent, so that their variance has no bound but this one.
_CLUMP_EXPONENT: Final = 1.5
_CLUMP_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Trace:
    """`arrivals` is float64[events] in seconds, ascending.

    `rates` and `bytes_per_event` are float64[100 * duration_s], by the hundredth of a second. `steps_s` are the times
    at which the load changes at once. At `lag_at_s` there are `lag` events more, which have waited elsewhere: they are
    late already. What comes before `scored_from_s` is there to be learned from.
    """

    name: str
    duration_s: int
    arrivals: Floats
    rates: Floats
    bytes_per_event: Floats
    steps_s: tuple[float, ...] = ()
    lag: int = 0
    lag_at_s: float = 0.0
    scored_from_s: int = 0

    def events_by_second(self) -> npt.NDArray[np.int64]:
        """How many events arrive in each second, int64[duration_s]."""
        edges = np.searchsorted(self.arrivals, np.arange(self.duration_s + 1))
        return np.diff(edges).astype(np.int64)


def make_trace(
    name: str,
    rates: Floats,
    seed: int,
    *,
    arriving: Arriving = "poisson",
    lag: int = 0,
    lag_at_s: float = 0.0,
    bytes_per_event: Floats | float = 100.0,
    steps_s: Sequence[float] = (),
    scored_from_s: int = 0,
) -> Trace:
    """A trace with these `rates`, float64[100 * seconds]."""
    seconds = len(rates) // _PER_SECOND
    arrivals = _arrivals(rates, np.random.default_rng(seed), arriving)
    if lag:
        arrivals = np.insert(arrivals, np.searchsorted(arrivals, lag_at_s), np.full(lag, lag_at_s))
    sizes = np.broadcast_to(np.asarray(bytes_per_event, dtype=np.float64), rates.shape)
    return Trace(name, seconds, arrivals, rates, sizes, tuple(steps_s), lag, lag_at_s, scored_from_s)


def _arrivals(rates: Floats, random: np.random.Generator, arriving: Arriving) -> Floats:
    """The times at which the integral of the rate reaches the marks: whole numbers, or those of a unit process."""
    edges = np.arange(len(rates) + 1) * GRID_S
    integral = np.concatenate([[0.0], np.cumsum(rates) * GRID_S])
    at_s: Floats = np.interp(_marks(float(integral[-1]), random, arriving), integral, edges)
    return at_s


def _marks(total: float, random: np.random.Generator, arriving: Arriving) -> Floats:
    match arriving:
        case "evenly":
            return np.arange(0.5, total)
        case "poisson":
            marks = np.cumsum(random.exponential(1.0, int(total + 10 * math.sqrt(total) + 10)))
            return marks[marks < total]
        case "clumps":
            sizes = np.minimum(1.0 + random.pareto(_CLUMP_EXPONENT, int(total)), _CLUMP_MAX).astype(np.int64)
            # A clump comes after a gap that keeps the rate: exponential, with its size as the mean.
            starts = np.cumsum(sizes * random.exponential(1.0, len(sizes)))
            kept = starts < total
            return np.repeat(starts[kept], sizes[kept])


def steady(rate: float, seconds: int) -> Floats:
    """The same rate throughout, float64[100 * seconds] as all of these."""
    return np.full(seconds * _PER_SECOND, float(rate))


def ramp(low: float, high: float, seconds: int) -> Floats:
    """Straight from one rate to the other."""
    return np.linspace(low, high, seconds * _PER_SECOND)


def diurnal(low: float, high: float, seconds: int, period_s: float) -> Floats:
    """A sine from `low` up to `high` and back in each period, beginning at the low."""
    at = np.arange(seconds * _PER_SECOND) * GRID_S
    rates: Floats = low + (high - low) * (1.0 - np.cos(2 * math.pi * at / period_s)) / 2
    return rates


def bursts(low: float, high: float, calm_s: int, burst_s: int, times: int) -> Floats:
    """Calm, burst, calm, burst, ..., ending with calm."""
    one = np.concatenate([steady(low, calm_s), steady(high, burst_s)])
    return np.concatenate([np.tile(one, times), steady(low, calm_s)])


def jumps(rates: Floats, factor: float = 1.3) -> tuple[float, ...]:
    """When a rate is `factor` times what it was a hundredth of a second before, or that part of it."""
    changes = np.abs(np.log(rates[1:] / rates[:-1])) > math.log(factor)
    return tuple(float(place + 1) * GRID_S for place in np.flatnonzero(changes))
