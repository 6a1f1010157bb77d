"""One case of the regret report: the oracle, the planner and the rivals on it, and how each of them has done."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from millstream.gpu_offload.decision import Option
from millstream.gpu_offload.oracle import Follower, OraclePlan, consult
from millstream.gpu_offload.planner import Planner
from millstream.gpu_offload.rivals import Aimd, Chooser, Fixed, Saber
from millstream.gpu_offload.trial import Outcome, Site, Trial
from millstream.loadgen.regret_cases import LEAD_S, Case, steps_of

PLANNER: Final = "planner"
ORACLE: Final = "oracle"
LATE_SHARE_MAX: Final = 0.01
_PREFERRED: Final = 256
_DELAY_S: Final = 1e-3
_TASK: Final = 512
_WRONG_FROM: Final = 1.1


@dataclass(frozen=True, slots=True)
class Score:
    """How a chooser has done, in the seconds that are scored.

    `regret` is its cost over the oracle's, less 1. `bad_seconds` are those in which more than 1 % of the events were
    late, though nothing had changed in the second before. `wrong_share` is the part of the seconds on a device that
    cost over 10 % more than the other one. `probe_share` is that of the device's time that went into shadow runs.
    """

    name: str
    cost_per_million: float
    regret: float
    late_share: float
    bad_seconds: int
    p99_ms: float
    switches: int
    wrong_share: float
    probe_share: float
    held_share: float
    drained_s: float


@dataclass(frozen=True, slots=True)
class CaseResult:
    """All scores of a case; the first is the oracle's, the second the planner's. `known_limit` is the case's."""

    name: str
    site: str
    is_stationary: bool
    is_noise_free: bool
    is_cold: bool
    known_limit: str
    crossings: int
    scores: list[Score]

    @property
    def planner(self) -> Score:
        return next(score for score in self.scores if score.name == PLANNER)

    @property
    def oracle(self) -> Score:
        return next(score for score in self.scores if score.name == ORACLE)


def rivals(site: Site) -> dict[str, Callable[[], Chooser]]:
    """By name. Those that are fixed by hand know the true laws: half of the budget for a batch, 0.3 of it to wait."""
    cpu, gpu = (spec.name for spec in site.devices)
    return {
        "always CPU": lambda: Fixed(by_hand(site, cpu)),
        "always GPU": lambda: Fixed(by_hand(site, gpu)),
        "fixed delay": lambda: Fixed(Option(gpu, _PREFERRED, _DELAY_S)),
        "AIMD, CPU": lambda: Aimd(cpu, site.budget_s),
        "AIMD, GPU": lambda: Aimd(gpu, site.budget_s),
        "SABER": lambda: Saber(Option(cpu, _TASK, site.budget_s / 2), Option(gpu, _TASK, site.budget_s / 2)),
    }


def by_hand(site: Site, device: str) -> Option:
    """The largest batch that takes half of the budget."""
    law = site.laws[device]
    per_event_s = law.per_event_s + law.per_byte_s * 100
    most = (site.budget_s / 2 - law.fixed_s) / per_event_s
    return Option(device, int(min(65536, max(1.0, most))), 0.3 * site.budget_s)


def run_case(
    case: Case,
    seed: int,
    planner: Callable[[Site, int], Chooser] | None = None,
    *,
    with_rivals: bool = True,
) -> CaseResult:
    """Try all of them on one case. `planner` makes the one to be tried, millstream's own by default."""
    trace = case.make()
    plan = consult(case.site, trace, seed)
    trial = Trial(case.site, trace, seed)
    outcomes = {
        ORACLE: trial.run(Follower(plan)),
        PLANNER: trial.run((planner or own_planner)(case.site, seed)),
    }
    for name, make in rivals(case.site).items() if with_rivals else ():
        outcomes[name] = trial.run(make(), batch_by_batch=name == "SABER")
    base = float(outcomes[ORACLE].cost[LEAD_S:].sum())
    steps_s = steps_of(case, trace)
    scores = [score(case, steps_s, name, outcome, plan, base) for name, outcome in outcomes.items()]
    return CaseResult(
        case.name,
        case.site.name,
        case.is_stationary,
        case.is_noise_free,
        case.is_cold,
        case.known_limit,
        plan.crossings_from(LEAD_S - 1),
        scores,
    )


def own_planner(site: Site, seed: int) -> Planner:
    """The planner as a stage has it."""
    return Planner("trial", site.budget_s, site.devices, seed=seed)


def score(case: Case, steps_s: Sequence[float], name: str, outcome: Outcome, plan: OraclePlan, base: float) -> Score:
    """Score one outcome; `base` is the oracle's cost, `steps_s` when something changed at once."""
    events = outcome.events[LEAD_S:]
    late = outcome.late[LEAD_S:]
    cost = float(outcome.cost[LEAD_S:].sum())
    seconds = len(outcome.events)
    return Score(
        name,
        cost / float(events.sum()) * 1e6,
        cost / base - 1.0,
        float(late.sum()) / float(events.sum()),
        _bad_seconds(case, steps_s, outcome),
        outcome.p99_s * 1e3,
        sum(at >= LEAD_S for at in outcome.switches_s),
        _wrong_share(outcome, plan),
        max(outcome.probe_s.values()) / seconds,
        max(outcome.held_s.values()) / seconds,
        outcome.drained_s,
    )


def _bad_seconds(case: Case, steps_s: Sequence[float], outcome: Outcome) -> int:
    shares = outcome.late[LEAD_S:] / np.maximum(outcome.events[LEAD_S:], 1)
    seconds = (int(place) + LEAD_S for place in np.flatnonzero(shares > LATE_SHARE_MAX))
    return sum(not _is_excused(case, steps_s, second) for second in seconds)


def _is_excused(case: Case, steps_s: Sequence[float], second: int) -> bool:
    """Whether something changed in this second or the one before; a cold device has the time of its start as well."""
    patience_s = 1.0 + (case.site.start_s if case.is_cold else 0.0)
    return any(math.floor(step) <= second <= step + patience_s for step in steps_s)


def _wrong_share(outcome: Outcome, plan: OraclePlan) -> float:
    wrong = 0
    for second in range(LEAD_S, len(outcome.devices)):
        kept = {name: one.cost for name, one in plan.ratings[second].items() if one.is_kept}
        chosen = outcome.devices[second]
        if len(kept) > 1 and kept.get(chosen, 0.0) > _WRONG_FROM * min(kept.values()):
            wrong += 1
    return wrong / (len(outcome.devices) - LEAD_S)


def misses(result: CaseResult) -> list[str]:
    """What the planner was to reach in this case and has not, in words."""
    own, best = result.planner, result.oracle
    allowed = 0.02 if result.is_stationary else 0.05
    found = []
    if own.regret > allowed + 0.0005:
        found.append(f"cost {1 + own.regret:.3f}x the oracle's, not {1 + allowed:.2f}x")
    if result.is_noise_free and own.wrong_share > 0.0:
        found.append("not the oracle's device throughout")
    if own.late_share > LATE_SHARE_MAX and not result.is_cold:
        found.append(f"{own.late_share:.2%} late, not 1 %")
    if own.bad_seconds:
        found.append(f"{own.bad_seconds} seconds with over 1 % late that no change explains")
    if own.switches > 2 * result.crossings:
        found.append(f"{own.switches} switches for {result.crossings} crossings")
    if own.probe_share > 0.01:
        found.append(f"{own.probe_share:.2%} of the time for probes, not 1 %")
    if own.drained_s > 1.25 * best.drained_s + 1.0:
        found.append(f"the lag lasted {own.drained_s:.1f} s, the oracle's {best.drained_s:.1f} s")
    return found
