"""What candidates are judged by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millstream.gpu_offload.planner_settings import PlannerSettings

RATE_MIN: Final = 1.0
"""Slower loads are taken for this one, in events per second: nothing depends on it, and it can be divided by."""


@dataclass(frozen=True, slots=True)
class Question:
    """`rate_planned` is what must be coped with, `rate_cost` what will be paid for, both at least `RATE_MIN`.

    `backlog` is 0 where the budget can be kept. `limit_s` is what a p99 may reach, the margin taken off.
    """

    rate_planned: float
    rate_cost: float
    backlog: int
    budget_s: float
    limit_s: float
    core_price_per_hour: float
    settings: PlannerSettings

    @property
    def drain_rate(self) -> float:
        """Events per second that would clear the backlog in time."""
        return self.rate_planned + self.backlog / self.settings.drain_s
