"""The load of a stage: what arrives, what waits elsewhere, and whether it is still what was planned for."""

from __future__ import annotations

import math
from typing import Final

from millstream.gpu_offload.arrivals import SLOT_S, Arrivals
from millstream.gpu_offload.decision import DeviceState, Inputs
from millstream.gpu_offload.question import RATE_MIN

_BACKLOG_VALID_S: Final = 1.0
_REMEMBERED_MAX_S: Final = 10.0
# In slots of arrivals.
_TENTH: Final = 10
_NOW: Final = 25
_SECOND: Final = 100
_PAID_MAX: Final = 200
_MOMENTS: Final = (2, 5, 10)
# A decision in the middle of a change is looked over soon.
_SETTLED_S: Final = 0.5
_SETTLING_S: Final = 0.25
# A rate must leave what was planned by this factor, and by this many deviations of chance, to be another load.
_MORE: Final = 1.2
_LESS: Final = 0.6
_CHANCE: Final = 4.0
# Pieces of arrivals that a replay can tell apart, as parts of the budget, within bounds.
_RESOLUTION: Final = 1 / 64
_RESOLUTION_MIN_S: Final = 20e-6
_RESOLUTION_MAX_S: Final = 1e-3


class Load:
    """Arrivals, backlog, and the rate that the last decision was made for."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self.arrivals = Arrivals(min(_RESOLUTION_MAX_S, max(_RESOLUTION_MIN_S, budget_s * _RESOLUTION)))
        self.is_backlog = False
        self.rate_paid = 0.0
        """The rate by which costs are counted: over two seconds, or less where the load was another one before."""
        self._planned = 0.0
        self._dispersion = 1.0
        self._wait_s = 0.0
        self._less_since = math.inf
        self._look_again_at = math.inf
        self._settles_at = math.inf
        self.waited_s = 0.0
        """For how long the load had been less, but the peak before it counted still, when inputs were asked for."""
        self._backlog = 0
        self._backlog_at = -math.inf

    def backlog(self, now: float, records: int) -> None:
        """So many records wait elsewhere."""
        self._backlog = records
        self._backlog_at = now

    def inputs(self, now: float, remembered_s: float, wait_s: float, states: dict[str, DeviceState]) -> Inputs:
        """What a decision is made from; from now on it is what was planned for.

        Peaks count for `remembered_s`, and for longer while the load is steady. `wait_s` is for how long batches are
        being gathered: what waits for that is no backlog.
        """
        self._wait_s = wait_s
        self.is_backlog = self._has_backlog(now)
        rate_now = self.arrivals.rate(now)
        steady_s = self.arrivals.steady_s(now)
        if steady_s > 1.0:
            self._dispersion = self.arrivals.dispersion(now, steady_s)
        window_s = min(_REMEMBERED_MAX_S, max(remembered_s, steady_s))
        self._planned = max(rate_now, self.arrivals.rate_high(now, window_s), self._surely(now))
        self.waited_s = max(0.0, now - self._less_since)
        if not self._is_less(now):
            self._less_since = self._look_again_at = math.inf
        else:
            self._less_since = min(self._less_since, now)
            if self._look_again_at == math.inf or now >= self._look_again_at:
                self._look_again_at = now + remembered_s
        self._settles_at = now + _SETTLING_S if steady_s < _SETTLED_S else math.inf
        self.rate_paid = self.arrivals.rate(now, max(_NOW, min(_PAID_MAX, round(steady_s / SLOT_S))))
        return Inputs(
            rate_now,
            self.arrivals.rate_high(now),
            self._planned,
            self._backlog if now - self._backlog_at <= _BACKLOG_VALID_S else 0,
            self.arrivals.bytes_per_event,
            self._budget_s,
            states,
        )

    def is_overrun(self, now: float) -> bool:
        """Whether more arrives than was planned for, beyond chance."""
        return self._surely(now) > _MORE * self._planned

    def _surely(self, now: float) -> float:
        """The rate that the last moments show at least; the shorter the moment, the more is left to chance."""
        return max(
            rate - self._by_chance(rate, slots) for slots in _MOMENTS for rate in [self.arrivals.rate(now, slots)]
        )

    def _by_chance(self, rate: float, slots: int) -> float:
        """By how much a rate over so many slots may be off, as arrivals have varied up to now."""
        return _CHANCE * math.sqrt(self._dispersion * max(rate, 1.0) / (slots * SLOT_S))

    def has_left(self, now: float, *, is_dear: bool) -> bool:
        """Whether the load is another one than was planned for; of less of it only a dear device need be told.

        So it is, too, a moment after a decision that was made while the load was changing. Of less it is told twice: at
        once, and when the peak before it does not count any more.
        """
        if self._has_backlog(now) != self.is_backlog or self.is_overrun(now) or now >= self._settles_at:
            return True
        if not is_dear:
            return False
        return now >= self._look_again_at or (self._look_again_at == math.inf and self._is_less(now))

    def _is_less(self, now: float) -> bool:
        return self.arrivals.rate(now, _TENTH) < _LESS * self._planned - self._by_chance(self._planned, _TENTH)

    def _has_backlog(self, now: float) -> bool:
        """More waits elsewhere than arrives within budget and wait; half of it once there is a backlog."""
        if now - self._backlog_at > _BACKLOG_VALID_S:
            return False
        rate = max(self.arrivals.rate(now), self.arrivals.rate(now, _SECOND), RATE_MIN)
        bound = (self._budget_s + self._wait_s) * rate
        return self._backlog > (bound / 2 if self.is_backlog else bound)
