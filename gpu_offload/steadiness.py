"""When a better choice is followed: not at once for a little money, at once when the budget is in danger.

A dearer device is left when the money lost on it adds up (the sum of the gains over time, less an allowance for noise).
So a gain of 15 % is followed after a second and a half, one of 5 % after seven, and noise never. A device that had to
be left for trouble is out for a while, longer each time.
"""

from __future__ import annotations

import math
from typing import Final

from millstream.gpu_offload.planner_settings import PlannerSettings

_NOTHING: Final = 1e-9
_CALM_S: Final = 60.0
_SOON: Final = 12.0


class Steadiness:
    """Between devices that both keep the budget, with the time as an argument."""

    def __init__(self, settings: PlannerSettings) -> None:
        self._settings = settings
        self._lost = 0.0
        self._challenger = ""
        self._weighed_at = 0.0
        self.due_at = math.inf
        """When a switch that is in the air will be due, if things stay as they are."""

    def is_enough(
        self, now: float, challenger: str, current_cost: float, challenger_cost: float, waited_s: float
    ) -> bool:
        """Whether what the current device costs more than the challenger, if it does, has added up to a switch.

        A challenger that is new and could have been one for `waited_s` gets that.
        """
        if challenger != self._challenger:
            self._challenger, self._lost, self._weighed_at = challenger, 0.0, now - waited_s
        passed = min(now - self._weighed_at, self._settings.interval_s)
        self._weighed_at = now
        gain = (1.0 - challenger_cost / current_cost if current_cost > 0.0 else 0.0) - self._settings.gain_min
        self._lost = max(0.0, self._lost + gain * passed)
        missing = self._settings.switch_gain_s - self._lost
        if missing <= _NOTHING:
            self.settle()
            return True
        self.due_at = now + missing / gain if gain > 0.0 else math.inf
        return False

    def settle(self) -> None:
        """The current choice is the best, or a new one was made: nothing is in the air."""
        self._challenger = ""
        self.due_at = math.inf


class Trouble:
    """Devices that had to be left, and for how long they are out."""

    def __init__(self, settings: PlannerSettings) -> None:
        self._settings = settings
        self._until: dict[str, float] = {}
        self._pause_s: dict[str, float] = {}

    def trip(self, now: float, device: str) -> float:
        """The device is out from now on; answers until when. Forgiven after four times as long without trouble."""
        pause_s = self._pause_s.get(device, 0.0)
        if now > self._until.get(device, -math.inf) + 4 * pause_s:
            pause_s = 0.0
        pause_s = min(self._settings.cool_down_max_s, max(self._settings.cool_down_s, 2 * pause_s))
        self._pause_s[device] = pause_s
        self._until[device] = now + pause_s
        return self._until[device]

    def is_out(self, now: float, device: str) -> bool:
        return now < self._until.get(device, -math.inf)


class Patience:
    """For how long the peak of a load is remembered after it is over.

    A moment at first. Each time the planner has to go back up soon after it came down, the load is one that returns,
    and the time doubles; a calm minute halves it. Soon is some times as long as the peak had been remembered.
    """

    def __init__(self, settings: PlannerSettings) -> None:
        self._settings = settings
        self._came_down = -math.inf
        self._changed = -math.inf
        self._seconds = settings.patience_s

    def seconds(self, now: float) -> float:
        if now - self._changed > _CALM_S and self._seconds > self._settings.patience_s:
            self._seconds = max(self._settings.patience_s, self._seconds / 2)
            self._changed = now
        return self._seconds

    def came_down(self, now: float) -> None:
        """A device was left because another is cheaper."""
        self._came_down = now

    def went_up(self, now: float) -> None:
        """A device was left because it cannot cope."""
        if now - self._came_down <= _SOON * self._seconds:
            self._seconds = min(self._settings.patience_max_s, 2 * self._seconds)
            self._changed = now
