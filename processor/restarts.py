"""When a worker that died is started again, and when to give up: pure, with the time as an argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Patience with workers that die.

    The delay doubles from `delay_first_s` to `delay_max_s` and starts over after a life of `good_life_s`. More than
    `crashes_max` deaths within `crash_window_s` of workers that had not processed a record stop the node.
    """

    delay_first_s: float = 0.1
    delay_max_s: float = 10.0
    good_life_s: float = 60.0
    crashes_max: int = 10
    crash_window_s: float = 300.0


def deaths_in_row(before: int, lived_s: float, policy: RestartPolicy) -> int:
    """The deaths without a good life in between, after one more death."""
    return 1 if lived_s >= policy.good_life_s else before + 1


def delay_s(in_row: int, policy: RestartPolicy) -> float:
    """How long to wait after the `in_row`-th death in a row (from 1)."""
    # The exponent is bounded, because a float overflows after about a thousand doublings.
    return min(policy.delay_max_s, policy.delay_first_s * 2.0 ** min(in_row - 1, 64))


def is_crash_loop(crashes: Sequence[float], now: float, policy: RestartPolicy) -> bool:
    """Whether the times of fruitless deaths show that more restarts would not help."""
    return sum(now - crash <= policy.crash_window_s for crash in crashes) > policy.crashes_max
