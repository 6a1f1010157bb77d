"""Latencies as a histogram: any number of them in a few kilobytes, each kept to within one percent.

Buckets are exact below 256 µs and then 128 to each doubling, so that a microsecond and an hour have the same
relative precision. A value is reported as the upper edge of its bucket: never better than it was.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from millstream.processor.columns import Int64s

_EXACT = 256
_STEPS = 128
_DOUBLINGS = 40
_BUCKETS = _EXACT + _STEPS * _DOUBLINGS
_US_PER_MS = 1000.0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds."""

    p50: float
    p90: float
    p99: float
    p999: float
    p9999: float
    max: float

    def as_fields(self, prefix: str) -> dict[str, float]:
        """`<prefix>_p50` and so on, for one flat JSON object."""
        return {f"{prefix}_{name}": round(value, 3) for name, value in asdict(self).items()}


class LatencyHistogram:
    """Counts of latencies in microseconds."""

    def __init__(self) -> None:
        self._counts: Int64s = np.zeros(_BUCKETS, np.int64)
        self._max_us = 0

    @property
    def count(self) -> int:
        """How many values were recorded."""
        return int(self._counts.sum())

    def record(self, latency_us: Int64s) -> None:
        """Add all values. Negative ones count as zero: two clocks may disagree by a little."""
        if not len(latency_us):
            return
        clipped = np.maximum(latency_us, 0)
        self._max_us = max(self._max_us, int(clipped.max()))
        self._counts += np.bincount(_bucket_of(clipped), minlength=_BUCKETS)

    def add(self, other: LatencyHistogram) -> None:
        """Add all values of another histogram."""
        self._counts += other._counts
        self._max_us = max(self._max_us, other._max_us)

    def percentile_us(self, percent: float) -> float:
        """The value that `percent` of all values do not exceed; 0 where nothing was recorded."""
        total = self.count
        if not total:
            return 0.0
        rank = max(1, int(np.ceil(total * percent / 100)))
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank))
        return float(min(_upper_edge(bucket), self._max_us))

    def percentiles(self) -> Percentiles | None:
        """The usual ones in milliseconds; None where nothing was recorded."""
        if not self.count:
            return None
        wanted = (50, 90, 99, 99.9, 99.99)
        p50, p90, p99, p999, p9999 = (self.percentile_us(percent) / _US_PER_MS for percent in wanted)
        return Percentiles(p50, p90, p99, p999, p9999, max=self._max_us / _US_PER_MS)


def _bucket_of(latency_us: Int64s) -> npt.NDArray[np.intp]:
    _, exponent = np.frexp(latency_us.astype(np.float64))
    # 256..511 is the first doubling: exponent 9. Values in it keep their top eight bits.
    doubling = np.clip(exponent.astype(np.int64) - 9, 0, _DOUBLINGS - 1)
    step = np.minimum((latency_us >> (doubling + 1)) - _STEPS, _STEPS - 1)
    bucket = np.where(latency_us < _EXACT, latency_us, _EXACT + doubling * _STEPS + step)
    return bucket.astype(np.intp)


def _upper_edge(bucket: int) -> int:
    if bucket < _EXACT:
        return bucket
    doubling, step = divmod(bucket - _EXACT, _STEPS)
    return int(((_STEPS + step + 1) << (doubling + 1)) - 1)
