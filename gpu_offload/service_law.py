"""How long a device takes for a batch: the law that simulated devices follow, and that planners have to find out.

The median is a fixed part, a part for each event and a part for each byte. Around it lies a lognormal spread, and a
share of all batches takes a multiple (a garbage collection, a page that was away). Over time a device may become
slower, or be gone. Times are seconds since the beginning, on whatever clock the caller has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slowness:
    """Everything takes `factor` times as long from `from_s` until `until_s`."""

    from_s: float
    until_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class Outage:
    """The device answers nothing from `from_s` until `until_s`."""

    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLaw:
    """`spread` is the standard deviation of the logarithm; `tail_share` of the batches take `tail_factor` as long."""

    fixed_s: float
    per_event_s: float
    per_byte_s: float = 0.0
    spread: float = 0.0
    tail_share: float = 0.0
    tail_factor: float = 1.0
    slowness: Sequence[Slowness] = ()
    outages: Sequence[Outage] = ()

    def median_s(self, records: int, byte_count: int = 0, at_s: float = 0.0) -> float:
        """The median for a batch, tail left out. Without noise, the time itself."""
        usual = self.fixed_s + self.per_event_s * records + self.per_byte_s * byte_count
        return usual * self.slowness_at(at_s)

    def draw_s(self, random: np.random.Generator, records: int, byte_count: int = 0, at_s: float = 0.0) -> float:
        """How long one batch takes."""
        return self.median_s(records, byte_count, at_s) * float(self.noise(random, 1)[0])

    def noise(self, random: np.random.Generator, count: int) -> Floats:
        """Factors around the median, float64[count]; all of them 1 for a law without noise."""
        factors = np.exp(self.spread * random.standard_normal(count))
        factors[random.random(count) < self.tail_share] *= self.tail_factor
        return factors

    def slowness_at(self, at_s: float) -> float:
        """By how much everything is slower at that time."""
        return math.prod(slow.factor for slow in self.slowness if slow.from_s <= at_s < slow.until_s)

    def is_down(self, at_s: float) -> bool:
        """Whether the device answers nothing at that time."""
        return any(outage.from_s <= at_s < outage.until_s for outage in self.outages)

    @property
    def changes_s(self) -> tuple[float, ...]:
        """The times at which the device is not as it was, in order."""
        spans: list[Slowness | Outage] = [*self.slowness, *self.outages]
        return tuple(sorted({at for span in spans for at in (span.from_s, span.until_s) if math.isfinite(at)}))
