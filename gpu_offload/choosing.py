"""Which device is taken: the rule between devices, and the reason that goes with it.

The rule has two steps. First each device names its cheapest feasible candidate, and the cheaper device is taken, the
CPU where they cost the same. Then, of that device's candidates that cost hardly more, the one with the lowest p99 is
taken (`Outlook.best`): nobody should wait for nothing. Across devices the second step would break a promise: a device
made dearer could win.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millstream.gpu_offload.decision import Candidate, ReasonCode
from millstream.gpu_offload.outlook import Outlook
from millstream.gpu_offload.steadiness import Steadiness

# Where no device keeps the budget, another one must be this much quicker to be worth a switch.
_QUICKER = 0.8


@dataclass(frozen=True, slots=True)
class Standing:
    """A device's best candidate, and what its cheapest feasible one costs (its best one's where none is feasible).

    `load_lowest` is what the load would be with the batches that suit the device best: how it compares where nothing
    keeps up, and the batches of two candidates may be of any two sizes. `keeps_up` tells whether the candidate does.
    """

    candidate: Candidate
    cost_per_million: float
    load_lowest: float
    keeps_up: bool


def standing_of(outlook: Outlook) -> Standing:
    """How a device stands."""
    candidate = outlook.candidate(outlook.best())
    cost = outlook.cheapest_cost()
    return Standing(
        candidate,
        candidate.cost_per_million if cost is None else cost,
        float(outlook.load.min()),
        candidate.load < outlook.question.settings.stable_load,
    )


def winner(standing: Mapping[str, Standing], cpu: str) -> str:
    """The device to be taken if nothing had been chosen yet; `standing` has one at least.

    The cheapest of those that keep the budget; where none does, the quickest. The CPU where they are alike.
    """
    good = {name: one for name, one in standing.items() if one.candidate.is_feasible}
    if good:
        return min(good, key=lambda name: (good[name].cost_per_million, name != cpu))
    are_alike = _are_alike(standing.values())
    return min(standing, key=lambda name: (*_slowness(standing[name], are_alike=are_alike), name != cpu))


def _are_alike(standing: Iterable[Standing]) -> bool:
    """Whether the p99s can be compared: the formula may promise a fraction of what a replay has seen."""
    return len({one.candidate.by for one in standing}) == 1


def _slowness(one: Standing, *, are_alike: bool) -> tuple[float, float]:
    # Of what does not keep up, a replay of a few seconds knows how late it was by then, and that is all.
    p99_s = one.candidate.p99_s if one.keeps_up else math.inf
    return p99_s if are_alike else math.inf, one.load_lowest


def follow(
    now: float,
    current: str,
    wanted: str,
    standing: Mapping[str, Standing],
    steadiness: Steadiness,
    *,
    is_dwelling: bool,
    is_backlog: bool,
    waited_s: float,
) -> tuple[str, ReasonCode]:
    """The device that is taken, given that `current` has been until now; both are in `standing`.

    `waited_s` is for how long the load has been one for `wanted`, if it came to be that only by waiting.
    """
    own, other = standing[current], standing[wanted]
    if wanted == current:
        steadiness.settle()
        return current, _code(current, standing, is_backlog=is_backlog)
    if not own.candidate.is_feasible:
        steadiness.settle()
        if other.candidate.is_feasible:
            return wanted, _code(wanted, standing, is_backlog=is_backlog)
        are_alike = _are_alike((own, other))
        pairs = zip(_slowness(other, are_alike=are_alike), _slowness(own, are_alike=are_alike), strict=True)
        is_quicker = any(theirs < _QUICKER * ours for theirs, ours in pairs)
        return (wanted if is_quicker else current), "backlog" if is_backlog else "slo-infeasible"
    if is_dwelling:
        return current, "dwell"
    costs = standing[current].cost_per_million, standing[wanted].cost_per_million
    if steadiness.is_enough(now, wanted, *costs, waited_s):
        return wanted, _code(wanted, standing, is_backlog=is_backlog)
    return current, "held"


def _code(name: str, standing: Mapping[str, Standing], *, is_backlog: bool) -> ReasonCode:
    if is_backlog:
        return "backlog"
    if not standing[name].candidate.is_feasible:
        return "slo-infeasible"
    others = [one for other, one in standing.items() if other != name]
    return "only-feasible" if others and not any(one.candidate.is_feasible for one in others) else "cheapest"
