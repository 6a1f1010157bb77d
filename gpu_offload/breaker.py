"""When a device is not to be used after trouble, and what it has to show before it is used again: pure.

    closed ── trip ──► open ── cool-down, then made-up rows ──► half-open ── so many shadow batches ──► closed

Each trip that is not followed by a long good time doubles the cool-down. A wrong answer takes the longest at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """`shadows` batches have to be computed in time and rightly before real ones are; `failures_max` of the user's
    function in a row are trouble of the device."""

    cool_down_s: float = 30.0
    cool_down_max_s: float = 600.0
    shadows: int = 30
    failures_max: int = 3


class BreakerState(Enum):
    """`SUSPECT` is closed as well, after failures that were not enough."""

    CLOSED = "closed"
    SUSPECT = "suspect"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """The breaker of one stage on one device. Times are seconds on any one clock."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._shadows_left = 0
        self._cool_down_s = 0.0
        self._closed_at = float("-inf")
        self.until_s = float("-inf")
        self.reason = ""

    @property
    def state(self) -> BreakerState:
        """How it is now."""
        return self._state

    def is_cool(self, now: float) -> bool:
        """Whether it is open and the cool-down is over: made-up rows are to be tried."""
        return self._state is BreakerState.OPEN and now >= self.until_s

    def trip(self, now: float, reason: str) -> None:
        """Trouble that is the device's: dead, late, lost. While it is open nothing is added."""
        if self._state is not BreakerState.OPEN:
            self._open(now, self._next_cool_down_s(now), reason)

    def quarantine(self, now: float, reason: str) -> None:
        """A wrong answer, or a stage that cannot be loaded there."""
        self._open(now, self._settings.cool_down_max_s, reason)

    def failed(self, now: float, reason: str) -> None:
        """The user's function failed there, which can be the batch's fault."""
        self._failures += 1
        if self._failures >= self._settings.failures_max or self._state is BreakerState.HALF_OPEN:
            self.trip(now, reason)
        elif self._state is BreakerState.CLOSED:
            self._state, self.reason = BreakerState.SUSPECT, reason

    def succeeded(self, now: float) -> None:
        """A batch was computed in time."""
        self._failures = 0
        if self._state is BreakerState.SUSPECT:
            self._state = BreakerState.CLOSED
        elif self._state is BreakerState.HALF_OPEN:
            self._shadows_left -= 1
            if self._shadows_left <= 0:
                self._state, self._closed_at, self.reason = BreakerState.CLOSED, now, ""

    def readmit(self, now: float, *, is_proven: bool = True) -> None:
        """The stage is ready in the device's process. One that has no proof of made-up rows shows it with shadows."""
        if self.is_cool(now) or (self._state is BreakerState.CLOSED and not is_proven):
            self._state = BreakerState.HALF_OPEN
            self._shadows_left = self._settings.shadows
            self._failures = 0

    def _open(self, now: float, cool_down_s: float, reason: str) -> None:
        self._state = BreakerState.OPEN
        self._cool_down_s = cool_down_s
        self._failures = 0
        self.until_s = now + cool_down_s
        self.reason = reason

    def _next_cool_down_s(self, now: float) -> float:
        settings = self._settings
        is_long_ago = self._state is not BreakerState.HALF_OPEN and now - self._closed_at >= settings.cool_down_max_s
        if self._cool_down_s == 0.0 or is_long_ago:
            return settings.cool_down_s
        return min(settings.cool_down_max_s, self._cool_down_s * 2)
