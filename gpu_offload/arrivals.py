"""When how many events came, for the last ten seconds: rates, and the arrivals themselves for a replay."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import numpy as np

from millstream.gpu_offload.curve import Floats

_WINDOW_S: Final = 10.0
SLOT_S: Final = 0.01
_SLOTS: Final = round(_WINDOW_S / SLOT_S)
_TENTH: Final = 10
_NOW_SLOTS: Final = 25
_PIECES_MAX: Final = 8192
# Rates that differ by more than this, and by more deviations than this, are two loads and not one.
_SAME_TENTH: Final = 2.0
_SAME_HALF: Final = 1.2
_CHANCE: Final = 4.0
_HALF: Final = 50


class Arrivals:
    """Counts per slot of 10 ms for the rates, and pieces of at most `resolution_s` for replays, bounded in number."""

    def __init__(self, resolution_s: float) -> None:
        self._resolution_s = resolution_s
        self._slots = np.zeros(_SLOTS)
        self._slot = 0
        self._began: float | None = None
        self._times: deque[float] = deque(maxlen=_PIECES_MAX)
        self._counts: deque[int] = deque(maxlen=_PIECES_MAX)
        self._events = 0.0
        self._bytes = 0.0

    def add(self, now: float, records: int, byte_count: int) -> None:
        """So many records came in now."""
        if self._began is None:
            self._began = now
            self._slot = math.floor(now / SLOT_S)
        self._advance(now)
        self._slots[self._slot % _SLOTS] += records
        self._events = 0.999 * self._events + records
        self._bytes = 0.999 * self._bytes + byte_count
        if self._times and now - self._times[-1] < self._resolution_s:
            self._counts[-1] += records
        else:
            self._times.append(now)
            self._counts.append(records)

    def _advance(self, now: float) -> None:
        slot = math.floor(now / SLOT_S)
        if slot - self._slot >= _SLOTS:
            self._slots[:] = 0.0
            self._slot = slot
        while self._slot < slot:
            self._slot += 1
            self._slots[self._slot % _SLOTS] = 0.0

    @property
    def bytes_per_event(self) -> float:
        return self._bytes / self._events if self._events > 0.0 else 0.0

    def _latest(self, now: float, slots: int = _SLOTS) -> Floats:
        """Counts of the last complete slots, newest last; fewer at the beginning."""
        if self._began is None:
            return np.zeros(0)
        self._advance(now)
        complete = min(slots, _SLOTS - 1, self._slot - math.floor(self._began / SLOT_S))
        places = (self._slot - complete + np.arange(complete)) % _SLOTS
        return self._slots[places]

    def rate(self, now: float, slots: int = _NOW_SLOTS) -> float:
        """Events per second over the last slots; what has come so far where there is not that much."""
        latest = self._latest(now, slots)
        return float(latest.sum()) / (len(latest) * SLOT_S) if len(latest) else 0.0

    def rate_high(self, now: float, window_s: float = _WINDOW_S) -> float:
        """The 95th percentile of the rates in tenths of a second."""
        latest = self._latest(now, round(window_s / SLOT_S))
        tenths = len(latest) // _TENTH
        if tenths == 0:
            return self.rate(now)
        sums = latest[len(latest) - tenths * _TENTH :].reshape(tenths, _TENTH).sum(axis=1)
        return float(np.sort(sums)[min(tenths - 1, math.ceil(0.95 * tenths) - 1)]) / (_TENTH * SLOT_S)

    def steady_s(self, now: float) -> float:
        """For how long, up to now, the load has been the same: by tenths of the last half second, then by halves."""
        latest = self._latest(now)[::-1]
        newest = _alike(latest[:_HALF], _TENTH, _SAME_TENTH)
        if newest < _HALF // _TENTH:
            return newest * _TENTH * SLOT_S
        return max(1, _alike(latest, _HALF, _SAME_HALF)) * _HALF * SLOT_S

    def dispersion(self, now: float, window_s: float) -> float:
        """How much more counts vary than those of independent arrivals would, at least 1: their variance over mean.

        The last half second is left out: it may be the beginning of another load.
        """
        latest = self._latest(now, round(window_s / SLOT_S))[:-_HALF]
        mean = float(latest.mean()) if len(latest) else 0.0
        return max(1.0, float(latest.var()) / mean) if mean > 0.0 else 1.0

    def replayable(self, now: float, window_s: float) -> tuple[Floats, Floats]:
        """Times and counts of the pieces of that window, float64[n] each, as far as they are still kept."""
        times = np.fromiter(self._times, np.float64, len(self._times))
        counts = np.fromiter(self._counts, np.float64, len(self._counts))
        first = int(np.searchsorted(times, now - window_s))
        return times[first:], counts[first:]


def _alike(counts: Floats, width: int, factor: float) -> int:
    """How many groups of `width` counts, from the first on, are about the mean of those before."""
    groups = len(counts) // width
    if groups == 0:
        return 0
    sums = counts[: groups * width].reshape(groups, width).sum(axis=1)
    means = np.cumsum(sums)[:-1] / np.arange(1, groups)
    high = np.maximum(sums[1:], means)
    others = high > factor * np.minimum(sums[1:], means) + _CHANCE * np.sqrt(high)
    return int(np.argmax(others)) + 1 if others.any() else groups
