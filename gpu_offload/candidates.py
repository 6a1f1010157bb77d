"""What can be chosen on a device and what each choice would come to: by the formula, and by replay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from millstream.gpu_offload.cost import cost_per_million
from millstream.gpu_offload.curve import BUCKETS, SIZES, Floats
from millstream.gpu_offload.decision import UNBOUNDED_S, DeviceSpec
from millstream.gpu_offload.formula import predict
from millstream.gpu_offload.outlook import Outlook
from millstream.gpu_offload.question import Question
from millstream.gpu_offload.replay import replay
from millstream.gpu_offload.service_model import Service

WAITS: Final = (0.0, 1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)
"""Waits that are tried, as parts of the budget."""

# So many of a device's candidates are replayed in search of the cheapest good one, and so many of the quickest.
_REPLAYED_MAX: Final = 6
_QUICKEST: Final = 2
# The formula is an upper bound for calm arrivals: a replay may find good what it finds this much too slow.
_FORMULA_SLACK: Final = 1.4


@dataclass(frozen=True, slots=True)
class Recorded:
    """Arrivals to be replayed, and the numbers that stand for chance. `is_as_paid`: they came at the rate of costs."""

    times: Floats
    counts: Floats
    luck: npt.NDArray[np.int64]
    is_as_paid: bool


def sizes_up_to(service: Service, records_cap: int, question: Question) -> int:
    """How many of `SIZES` are tried: up to some times the largest that was measured, at most `records_cap`.

    A full batch has to be done within the limit, also where there is a backlog: a larger one that has been begun when
    the load steps up could not be left.
    """
    most = max(1.0, min(service.records_high * question.settings.stretch, records_cap))
    sizes = min(BUCKETS, int(math.log2(most)) + 1)
    while sizes > 1 and service.p99_s(SIZES[sizes - 1]) > question.limit_s:
        sizes -= 1
    return sizes


@lru_cache(maxsize=64)
def grid(sizes: int, budget_s: float) -> tuple[Floats, Floats]:
    """All options: batch sizes and waits, float64[n] each. A batch of one has nothing to wait for."""
    pairs = [(size, part * budget_s) for size in SIZES[:sizes] for part in WAITS if part == 0.0 or size > 1.0]
    records_max, wait_s = (np.array(column) for column in zip(*pairs, strict=True))
    return records_max, wait_s


def by_formula(spec: DeviceSpec, service: Service, options: tuple[Floats, Floats], question: Question) -> Outlook:
    """Every option of a device as the formula sees it."""
    records_max, wait_s = options
    stable = question.settings.stable_load
    planned = predict(service, spec.servers, records_max, wait_s, question.rate_planned, stable)
    many = len(records_max)
    never = np.zeros(many, dtype=np.bool_)
    if question.backlog:
        # Every batch is full and nothing waits: what counts is how fast it goes and what that costs.
        capacity = question.rate_planned / np.maximum(planned.load, 1e-12)
        surplus = np.maximum(capacity - question.rate_planned, question.backlog / UNBOUNDED_S)
        cleared_s = question.backlog / surplus
        full = np.full(many, float(spec.servers))
        cost = _costs(spec, question, full, capacity)
        return Outlook(
            spec,
            question,
            records_max,
            wait_s,
            cleared_s / 2,
            cleared_s,
            full,
            planned.load,
            cost,
            np.ones(many),
            never,
        )
    paid = predict(service, spec.servers, records_max, wait_s, question.rate_cost, stable)
    cost = _costs(spec, question, paid.busy, np.full(many, question.rate_cost))
    late = (planned.p99_s > question.limit_s).astype(np.float64)
    return Outlook(
        spec, question, records_max, wait_s, planned.p50_s, planned.p99_s, paid.busy, planned.load, cost, late, never
    )


def _costs(spec: DeviceSpec, question: Question, busy: Floats, rate: Floats) -> Floats:
    """What a million events cost; it is linear in how busy the servers are."""
    idle = cost_per_million(spec, question.core_price_per_hour, 0.0, 1.0)
    per_busy = cost_per_million(spec, question.core_price_per_hour, 1.0, 1.0) - idle
    return (idle + per_busy * busy) / rate


def replay_best(outlook: Outlook, service: Service, recorded: Recorded) -> None:
    """Replay those options that are worth it, and put into `outlook` what was found.

    The formula says where to look; how far it is off at one option says where to look next. When an option is found
    that keeps the budget, cheaper ones are tried that should do so too, and then, of those that cost hardly more than
    the cheapest, the ones with the lowest p99. Where none was found, the one with the lowest p99: it is good if any is.
    """
    limit_s = outlook.question.limit_s
    order, cost, p99_s = _hopeful(outlook)
    if not len(order):
        return
    allowed_s = limit_s
    good: int | None = None
    for _ in range(_REPLAYED_MAX):
        there = np.flatnonzero(p99_s <= allowed_s)
        if not len(there) or (good is not None and there[0] >= good):
            break
        place = int(there[0])
        is_good = _replay(outlook, service, int(order[place]), recorded)
        should_be_s = limit_s * float(p99_s[place]) / max(float(outlook.p99_s[order[place]]), 1e-9)
        if is_good:
            good, allowed_s = place, max(allowed_s, should_be_s)
        else:
            allowed_s = min(0.95 * float(p99_s[place]), should_be_s)
    near = order if good is None else order[cost <= outlook.question.settings.near_cheapest * cost[good]]
    for place in near[np.argsort(outlook.p99_s[near], kind="stable")][:_QUICKEST]:
        if not outlook.by_replay[place]:
            _replay(outlook, service, int(place), recorded)


def _hopeful(outlook: Outlook) -> tuple[npt.NDArray[np.intp], Floats, Floats]:
    """The options that the formula does not rule out, cheapest first, with what it says of their costs and p99."""
    question = outlook.question
    hopeful = np.flatnonzero(
        (outlook.load <= question.settings.load_max) & (outlook.p99_s <= _FORMULA_SLACK * question.limit_s)
    )
    if not len(hopeful):
        return hopeful, np.zeros(0), np.zeros(0)
    cost = outlook.cost_per_million[hopeful]
    # Rounded, so that options that are the same but for a bound that is never reached are tried once.
    relative = np.round(cost / max(cost.min(), 1e-300), 9)
    _, firsts = np.unique(relative + 1j * np.round(outlook.p99_s[hopeful] / question.limit_s, 9), return_index=True)
    order = hopeful[firsts]
    return order, outlook.cost_per_million[order].copy(), outlook.p99_s[order].copy()


def _replay(outlook: Outlook, service: Service, place: int, recorded: Recorded) -> bool:
    """Replay one option; whether it keeps the budget."""
    limit_s = outlook.question.limit_s
    found = replay(
        recorded.times,
        recorded.counts,
        service,
        outlook.spec.servers,
        int(outlook.records_max[place]),
        float(outlook.wait_s[place]),
        limit_s,
        recorded.luck,
    )
    outlook.p50_s[place] = min(UNBOUNDED_S, found.p50_s)
    outlook.p99_s[place] = min(UNBOUNDED_S, found.p99_s)
    outlook.late_share[place] = found.late_share
    outlook.by_replay[place] = True
    if recorded.is_as_paid:
        outlook.busy[place] = min(outlook.spec.servers, found.busy_s / found.events * outlook.question.rate_cost)
        outlook.cost_per_million[place] = cost_per_million(
            outlook.spec, outlook.question.core_price_per_hour, outlook.busy[place], outlook.question.rate_cost
        )
    return bool(outlook.p99_s[place] <= limit_s)
