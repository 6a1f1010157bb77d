"""What can be chosen on a device, what each choice would come to, and which is the best.

The rule has two steps. First each device names its cheapest feasible candidate, and the cheaper device is taken, the
CPU where they cost the same. Then, of that device's candidates that cost hardly more, the one with the lowest p99 is
taken: nobody should wait for nothing. Across devices the second step would break a promise: a device made dearer
could win.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from millstream.gpu_offload.cost import cost_per_million
from millstream.gpu_offload.curve import SIZES, Floats
from millstream.gpu_offload.decision import UNBOUNDED_S, Candidate, DeviceSpec, Option
from millstream.gpu_offload.formula import Prediction, predict
from millstream.gpu_offload.planner_settings import PlannerSettings
from millstream.gpu_offload.replay import replay
from millstream.gpu_offload.service_model import Service

WAITS: Final = (0.0, 1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)
"""Waits that are tried, as parts of the budget."""

RATE_MIN: Final = 1.0
# So many of a device's candidates are replayed at first, and so many more while none of them is good.
_REPLAYED: Final = 3
_REPLAYED_MAX: Final = 9
# The formula is an upper bound for calm arrivals: a replay may find good what it finds this much too slow.
_FORMULA_SLACK: Final = 1.4


@dataclass(frozen=True, slots=True)
class Question:
    """What candidates are judged by. `rate_planned` is what must be coped with, `rate_cost` what will be paid for.

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


@dataclass(frozen=True, slots=True)
class Recorded:
    """Arrivals to be replayed, and the numbers that stand for chance."""

    times: Floats
    counts: Floats
    luck: npt.NDArray[np.int64]


def options(spec: DeviceSpec, service: Service, budget_s: float, stretch: float, records_cap: int) -> list[Option]:
    """All options of a device: sizes up to `stretch` times the largest that was measured, at most `records_cap`."""
    most = min(service.records_high * stretch, records_cap)
    sizes = [int(size) for size in SIZES if size <= most] or [1]
    return [Option(spec.name, size, part * budget_s) for size in sizes for part in WAITS if part == 0.0 or size > 1]


def by_formula(spec: DeviceSpec, service: Service, choices: Sequence[Option], question: Question) -> list[Candidate]:
    """Every option as a candidate, by the formula alone."""
    sizes = np.array([float(option.records_max) for option in choices])
    waits = np.array([option.wait_s for option in choices])
    stable = question.settings.stable_load
    planned = predict(service, spec.servers, sizes, waits, max(question.rate_planned, RATE_MIN), stable)
    rate = max(question.rate_cost, RATE_MIN)
    paid = predict(service, spec.servers, sizes, waits, rate, stable)
    return [_candidate(spec, option, place, planned, paid, question) for place, option in enumerate(choices)]


def _candidate(
    spec: DeviceSpec, option: Option, place: int, planned: Prediction, paid: Prediction, question: Question
) -> Candidate:
    load = float(planned.load[place])
    p99_s = float(planned.p99_s[place])
    if question.backlog:
        return _draining(spec, option, load, question)
    return Candidate(
        option,
        float(planned.p50_s[place]),
        p99_s,
        float(paid.busy[place]) / spec.servers,
        load,
        cost_per_million(
            spec, question.core_price_per_hour, float(paid.busy[place]), max(question.rate_cost, RATE_MIN)
        ),
        0.0 if p99_s <= question.limit_s else 1.0,
        _verdict(load, p99_s, question),
        "formula",
    )


def _draining(spec: DeviceSpec, option: Option, load: float, question: Question) -> Candidate:
    """With a backlog every batch is full and nothing waits: what counts is how fast it goes and what that costs."""
    capacity = max(question.rate_planned, RATE_MIN) / max(load, 1e-9)
    surplus = capacity - question.rate_planned
    cleared_s = min(UNBOUNDED_S, question.backlog / surplus) if surplus > 0.0 else UNBOUNDED_S
    return Candidate(
        option,
        cleared_s / 2,
        cleared_s,
        1.0,
        load,
        cost_per_million(spec, question.core_price_per_hour, float(spec.servers), capacity),
        1.0,
        "ok" if capacity >= question.drain_rate else "too slow",
        "formula",
    )


def _verdict(load: float, p99_s: float, question: Question) -> str:
    if load >= question.settings.stable_load:
        return "does not keep up"
    if load > question.settings.load_max:
        return "too busy"
    if p99_s > question.limit_s:
        return "too slow"
    return "ok"


def replayed(
    spec: DeviceSpec, service: Service, guesses: Sequence[Candidate], recorded: Recorded, question: Question
) -> list[Candidate]:
    """Those guesses that are worth it, replayed, and the others as they are.

    These are the cheapest that the formula does not rule out, more of them while none turns out to be good, and the one
    with the lowest p99, as it is good if any is.
    """
    hopeful = sorted(
        (guess for guess in guesses if _is_hopeful(guess, question)),
        key=lambda guess: (guess.cost_per_million, guess.p99_s),
    )
    done: dict[Option, Candidate] = {}
    for place, guess in enumerate(hopeful):
        if place >= _REPLAYED_MAX or (place >= _REPLAYED and any(one.is_feasible for one in done.values())):
            break
        done[guess.option] = _replayed(spec, service, guess, recorded, question)
    if hopeful and not any(one.is_feasible for one in done.values()):
        quickest = min(hopeful, key=lambda guess: guess.p99_s)
        if quickest.option not in done:
            done[quickest.option] = _replayed(spec, service, quickest, recorded, question)
    return [done.get(guess.option, guess) for guess in guesses]


def _is_hopeful(guess: Candidate, question: Question) -> bool:
    return guess.load <= question.settings.load_max and guess.p99_s <= _FORMULA_SLACK * question.limit_s


def _replayed(
    spec: DeviceSpec, service: Service, guess: Candidate, recorded: Recorded, question: Question
) -> Candidate:
    option = guess.option
    found = replay(
        recorded.times,
        recorded.counts,
        service,
        spec.servers,
        option.records_max,
        option.wait_s,
        question.limit_s,
        recorded.luck,
    )
    if not found.events or found.over_s <= 0.0:
        return guess
    p99_s = min(UNBOUNDED_S, found.p99_s)
    return Candidate(
        option,
        min(UNBOUNDED_S, found.p50_s),
        p99_s,
        guess.utilisation,
        guess.load,
        guess.cost_per_million,
        found.late_share,
        _verdict(guess.load, p99_s, question),
        "replay",
    )


def best(candidates: Sequence[Candidate], near_cheapest: float, is_backlog: bool) -> Candidate | None:
    """The best of one device's candidates: feasible before not, then as this module's rule says. None of none."""
    if not candidates:
        return None
    good = [one for one in candidates if one.is_feasible and (one.by == "replay" or not _any_replayed(candidates))]
    if not good:
        return min(candidates, key=lambda one: (one.p99_s, one.load, one.cost_per_million, one.option.wait_s))
    cheapest = min(one.cost_per_million for one in good)
    near = [one for one in good if one.cost_per_million <= near_cheapest * cheapest]
    if is_backlog:
        return min(near, key=lambda one: (one.load, one.option.wait_s))
    return min(near, key=lambda one: (one.p99_s, one.cost_per_million, one.option.wait_s, one.option.records_max))


def _any_replayed(candidates: Sequence[Candidate]) -> bool:
    return any(one.by == "replay" for one in candidates)


def cheapest_cost(candidates: Sequence[Candidate]) -> float | None:
    """What the cheapest feasible one costs, None where there is none."""
    return min((one.cost_per_million for one in candidates if one.is_feasible), default=None)
