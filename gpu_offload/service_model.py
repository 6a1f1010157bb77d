"""What a batch takes on one device, as measured: the mean as a curve of its size, and the spread around it.

Sizes fall into buckets 1, 2, 4, ... 65536. A bucket has the mean of its sizes and of its times, and a histogram of
observed over expected time, all of which forget with a half-life. The spread is not taken to be the same for all
sizes: each bucket has its own quantiles, and p99 never falls with the size. With fewer than 30 measurements the device
is not known, with fewer than 10 a bucket says nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from millstream.gpu_offload.change import ChangeDetector, DriftDetector
from millstream.gpu_offload.curve import BUCKETS, SIZES, Curve, Floats, Point, fit
from millstream.gpu_offload.histogram import Histogram

KNOWN_SAMPLES: Final = 30
"""So many measurements make a device known."""

_BUCKET_SAMPLES: Final = 10
DRAWS: Final = 128
"""Quantiles of a spread from which a replay draws."""

_PARTS: Final[Floats] = (np.arange(DRAWS) + 0.5) / DRAWS
_P50_P99: Final[Floats] = np.array([0.5, 0.99])
_HALF_LIFE_S: Final = 60.0
_HALF_LIFE_CHANGED_S: Final = 5.0
_CHANGED_FOR_S: Final = 30.0
# One stall must not count as the usual cost: a time beyond this many expected ones counts as that in the mean.
_MEAN_CLIP: Final = 5.0
# What older measurements are still worth after a change, when their times have been corrected by the shift.
_CORRECTED_WEIGHT: Final = 0.2
# A size that is measured no more follows the others' changes this far, and no further: noise would carry it anywhere.
# To be slow by mistake costs a chance; to be quick by mistake costs all others theirs.
_UNSEEN_SLOWER_MAX: Final = 64.0
_UNSEEN_FASTER_MAX: Final = 8.0
# With less than this behind it a bucket's spread is looked at together with all others'.
_SPREAD_OWN: Final = 200.0


@dataclass(frozen=True)
class Service:
    """A model at one moment. `p50_ratios` and `p99_ratios` are over the mean, at `SIZES`.

    `records_low` and `records_high` bound what was measured. `spreads[place]` is the spread at each of `SIZES`.
    """

    curve: Curve
    p50_ratios: Floats
    p99_ratios: Floats
    spreads: tuple[Histogram, ...]
    records_low: float
    records_high: float
    samples: int

    @cached_property
    def draws(self) -> Floats:
        """Ratios over the mean that are all equally likely, float64[BUCKETS, DRAWS], ascending in each row."""
        rows = {id(spread): spread.quantiles(_PARTS) for spread in self.spreads}
        return np.array([rows[id(spread)] for spread in self.spreads])

    def p50_s(self, records: float) -> float:
        """The median time of a batch."""
        return self.curve.seconds(records) * float(np.interp(records, SIZES, self.p50_ratios))

    def p99_s(self, records: float) -> float:
        """The 99th percentile of a batch's time."""
        return self.curve.seconds(records) * float(np.interp(records, SIZES, self.p99_ratios))


def certain(curve: Curve, records_high: float = float(SIZES[-1])) -> Service:
    """The model of a device without spread: a prior, or a law that is known."""
    ones = np.ones(BUCKETS)
    return Service(curve, ones, ones, (Histogram(),) * BUCKETS, 1.0, records_high, 0)


class _Bucket:
    """Measurements of batches of about one size."""

    __slots__ = ("at", "count", "early", "records", "seconds", "spread", "unseen", "weight")

    def __init__(self) -> None:
        self.count = 0
        self.at = 0.0
        self.weight = 0.0
        self.records = 0.0
        self.seconds = 0.0
        self.spread = Histogram()
        # The product of all corrections since it was measured itself.
        self.unseen = 1.0
        # Until there is something to compare with, the first ones are kept as they are.
        self.early: list[tuple[int, float]] = []

    def add(self, now: float, records: int, seconds: float, half_life_s: float) -> None:
        kept = 0.5 ** (max(0.0, now - self.at) / half_life_s)
        self.at = max(self.at, now)
        self.count += 1
        self.unseen = 1.0
        self.weight = self.weight * kept + 1.0
        self.records = self.records * kept + records
        self.seconds = self.seconds * kept + seconds

    def corrected(self, factor: float) -> None:
        """After a change: as if all had been measured now, but with little weight."""
        before = self.unseen
        self.unseen = min(_UNSEEN_SLOWER_MAX, max(1.0 / _UNSEEN_FASTER_MAX, before * factor))
        self.seconds *= self.unseen / before * _CORRECTED_WEIGHT
        self.records *= _CORRECTED_WEIGHT
        self.weight *= _CORRECTED_WEIGHT

    @property
    def is_known(self) -> bool:
        return self.count >= _BUCKET_SAMPLES


class ServiceModel:
    """One device and one stage."""

    def __init__(self) -> None:
        self._buckets = [_Bucket() for _ in range(BUCKETS)]
        self._changes = ChangeDetector()
        self._drift = DriftDetector()
        self._changed_until = -math.inf
        self._curve: Curve | None = None
        self._service: Service | None = None
        self._now = 0.0
        self._fitted_at = 0
        self.samples = 0

    @property
    def known(self) -> bool:
        """Whether there are measurements enough."""
        return self.samples >= KNOWN_SAMPLES and any(bucket.is_known for bucket in self._buckets)

    @property
    def is_thin(self) -> bool:
        """Whether what is fixed and what is per event cannot be told apart: fewer than two sizes are known."""
        return sum(bucket.is_known for bucket in self._buckets) < 2

    def observed(self, now: float, records: int, seconds: float) -> bool:
        """A batch of so many records took so long; whether more than a figure has changed by that.

        It has when the device or another size has become known, or when it turns out to be slower or faster.

        Raises ValueError where there was no record or no time.
        """
        if records < 1 or not seconds > 0.0:
            raise ValueError(f"a batch of {records} records in {seconds} s: both must be more than 0")
        self._now = max(self._now, now)
        self.samples += 1
        is_enough = self.samples == KNOWN_SAMPLES
        self._service = None
        half_life_s = _HALF_LIFE_CHANGED_S if now < self._changed_until else _HALF_LIFE_S
        bucket = self._buckets[bucket_of(records)]
        expected = self._expected(records)
        if expected is None or not bucket.is_known:
            bucket.early.append((records, seconds))
            bucket.add(now, records, seconds, half_life_s)
            if bucket.is_known:
                self._settle(bucket, now, half_life_s)
            return bucket.is_known or is_enough
        ratio = seconds / expected
        bucket.add(now, records, min(seconds, _MEAN_CLIP * expected), half_life_s)
        bucket.spread.add(now, ratio, half_life_s)
        shift = self._changes.add(math.log(ratio))
        drift = self._drift.add(now, min(ratio, _MEAN_CLIP), self._changes.spread)
        if shift is None and drift is None:
            return is_enough
        self._change(now, math.exp(shift) if shift is not None else drift or 1.0)
        return True

    def _expected(self, records: int) -> float | None:
        """What the curve says; it is fitted anew when an eighth more has been measured."""
        if self._curve is None or self.samples > self._fitted_at * 1.125 or self.samples - self._fitted_at > 256:
            self._refit()
        return self._curve.seconds(records) if self._curve is not None else None

    def _refit(self) -> None:
        self._fitted_at = self.samples
        points = [
            Point(
                bucket.records / bucket.weight,
                bucket.seconds / bucket.weight,
                min(bucket.weight, 1000.0) * 0.5 ** ((self._now - bucket.at) / (4 * _HALF_LIFE_S)),
            )
            for bucket in self._buckets
            if bucket.is_known and bucket.weight > 0.0
        ]
        self._curve = fit(points) if points else None

    def _settle(self, bucket: _Bucket, now: float, half_life_s: float) -> None:
        """A bucket has become known: its first measurements can be compared with what is expected."""
        median = sorted(seconds / records for records, seconds in bucket.early)[len(bucket.early) // 2]
        bucket.seconds = bucket.weight and sum(
            min(seconds, _MEAN_CLIP * median * records) for records, seconds in bucket.early
        )
        bucket.records = float(sum(records for records, _ in bucket.early))
        bucket.weight = float(len(bucket.early))
        self._refit()
        for records, seconds in bucket.early:
            expected = self._expected(records)
            assert expected is not None  # this bucket is known
            bucket.spread.add(now, seconds / expected, half_life_s)
        bucket.early.clear()

    def _change(self, now: float, factor: float) -> None:
        """The device takes `factor` times as long as it did: correct what is known, and forget faster for a while."""
        self._changed_until = now + _CHANGED_FOR_S
        self._drift.begin_anew()
        for bucket in self._buckets:
            bucket.corrected(factor)
        self._refit()

    def service(self) -> Service | None:
        """The model as it is now; None while nothing is known."""
        if self._service is None and self.known:
            self._refit()
            self._service = self._snapshot()
        return self._service

    def _snapshot(self) -> Service:
        assert self._curve is not None  # a bucket is known
        known = [place for place, bucket in enumerate(self._buckets) if bucket.is_known]
        everything = Histogram()
        for place in known:
            everything = everything.merged(self._buckets[place].spread)
        spreads = []
        for place in known:
            own = self._buckets[place].spread
            is_enough = own.weight(self._now, _HALF_LIFE_S) >= _SPREAD_OWN
            spreads.append(own if is_enough else own.merged(everything))
        nearest = [min(range(len(known)), key=lambda one: abs(known[one] - place)) for place in range(BUCKETS)]
        quantiles = [spread.quantiles(_P50_P99) for spread in spreads]
        p50 = np.array([quantiles[one][0] for one in nearest])
        p99_s = np.maximum.accumulate(np.array([quantiles[one][1] for one in nearest]) * self._curve.table)
        highest = self._buckets[known[-1]]
        lowest = self._buckets[known[0]]
        return Service(
            self._curve,
            p50,
            np.maximum(p99_s / self._curve.table, p50),
            tuple(spreads[one] for one in nearest),
            lowest.records / lowest.weight,
            highest.records / highest.weight,
            self.samples,
        )

    def has_changed(self, now: float) -> bool:
        """Whether the device became slower or faster a short while ago."""
        return now < self._changed_until

    def age_s(self, now: float) -> float:
        """How long ago something was measured last."""
        return now - max(bucket.at for bucket in self._buckets)


def bucket_of(records: int) -> int:
    """The bucket of a batch size: the nearest power of two in ratio."""
    return min(BUCKETS - 1, max(0, round(math.log2(records))))
