"""The best that can be done on a trace by one who knows everything: what planners are measured against.

For each second every option of every device is served from an empty queue by the true law; what keeps the promise and
costs least is taken, and a dynamic programme over the seconds weighs changes of device against what they cost. The
promise is the planner's own: a p99 below a margin of the budget and full batches that leave a part of the device idle.
The answer is a plan, to be played in a trial like any other chooser.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from millstream.gpu_offload.breaker import BreakerSettings
from millstream.gpu_offload.candidates import WAITS
from millstream.gpu_offload.decision import DeviceSpec, Option
from millstream.gpu_offload.rivals import Fixed
from millstream.gpu_offload.service_law import ServiceLaw
from millstream.gpu_offload.traces import Floats, Trace
from millstream.gpu_offload.trial import Site
from millstream.gpu_offload.virtual_stage import Conditions, conditions
from millstream.processor.kernels import kernel

SIZES: Final = tuple(2**power for power in range(17))
LATE_SHARE: Final = 0.01
# What a late event costs, and a second without the promise: more than all computing, so that these come first.
_LATE_PRICE: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a choice has to keep: p99 within `margin` of the budget, at most `load_max` of the device with full batches.

    A lag is to be gone within `drain_s`.
    """

    margin: float = 0.85
    load_max: float = 0.7
    drain_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Rating:
    """The best option of a device in one second. `cost` is what the second costs, `late` how many events are late."""

    option: Option
    cost: float
    late: float
    is_kept: bool


@dataclass(frozen=True, slots=True)
class OraclePlan:
    """An option for each second, and how many changes of device that takes."""

    options: list[Option]
    ratings: list[dict[str, Rating]]

    def crossings_from(self, second: int) -> int:
        """How often the device changes from then on."""
        names = [option.device for option in self.options[second:]]
        return sum(one != other for one, other in pairwise(names))


class Follower(Fixed):
    """A chooser that does what a plan says."""

    def __init__(self, plan: OraclePlan) -> None:
        super().__init__(plan.options[0])
        self._plan = plan
        self._second = 0
        self._devices = {option.device for option in plan.options}

    def wants(self, device: str) -> bool:
        return device in self._devices

    def is_due(self, now: float) -> bool:
        return int(now + 1e-6) != self._second

    def decide(self, now: float) -> object:
        self._second = int(now + 1e-6)
        self._option = self._plan.options[min(self._second, len(self._plan.options) - 1)]
        return None


def consult(site: Site, trace: Trace, seed: int, promise: Promise | None = None) -> OraclePlan:
    """The plan for a site and a trace; `seed` is that of the trial."""
    promise = promise or Promise()
    laws = {spec.name: conditions(site.laws[spec.name], trace, seed) for spec in site.devices}
    # What keeps the promise is judged without the lag, for which it is broken already.
    arrivals = _without_lag(trace)
    there = {spec.name: available(site.laws[spec.name], trace.duration_s) for spec in site.devices}
    ratings = [
        {
            spec.name: _rate(site, spec, laws[spec.name], arrivals, second, promise)
            for spec in site.devices
            if there[spec.name][second]
        }
        for second in range(trace.duration_s)
    ]
    if trace.lag:
        _drain(site, laws, trace, promise, ratings)
    return OraclePlan(_cheapest_way(site, ratings), ratings)


def available(law: ServiceLaw, duration_s: int) -> list[bool]:
    """The seconds in which a device can be used at all: not while it is down, nor while the breaker keeps it out."""
    settings = BreakerSettings()
    there = [True] * duration_s
    back_at, pause_s = 0.0, settings.cool_down_s
    for outage in sorted(law.outages, key=lambda one: one.from_s):
        if outage.from_s < back_at:
            # It was not in use; but it cannot come back as long as it is down.
            back_at = max(back_at, outage.until_s) if outage.until_s > back_at else back_at
        else:
            back_at = max(outage.from_s + pause_s, outage.until_s)
            pause_s = min(settings.cool_down_max_s, 2 * pause_s)
        for second in range(int(outage.from_s), min(duration_s, math.ceil(min(back_at, 1e9)))):
            there[second] = False
    return there


def _without_lag(trace: Trace) -> Floats:
    first = int(np.searchsorted(trace.arrivals, trace.lag_at_s))
    return np.delete(trace.arrivals, slice(first, first + trace.lag))


def _rate(site: Site, spec: DeviceSpec, law: Conditions, arrivals: Floats, second: int, promise: Promise) -> Rating:
    """The best option of one device: that keeps the promise at the least cost, or else has the fewest late events."""
    first, last = np.searchsorted(arrivals, [second, second + 1])
    events = int(last - first)
    place = min(second * 100 + 50, len(law.fixed_s) - 1)
    held = site.held_price(spec)
    best = Rating(Option(spec.name, 1, 0.0), held, float(events), is_kept=False)
    limit_s = promise.margin * site.budget_s
    for size in SIZES:
        load = events * (law.fixed_s[place] + law.per_event_s[place] * size) / size
        if load > 1.0 and size < SIZES[-1]:
            continue
        for part in WAITS:
            if size == 1 and part > 0.0:
                continue
            busy_s, missed, late = _serve(
                arrivals, first, last, second + 1 + 2 * site.budget_s, law.fixed_s, law.per_event_s, law.noise,
                size, part * site.budget_s, limit_s, site.budget_s,
            )  # fmt: skip
            is_kept = load <= promise.load_max and missed <= LATE_SHARE * events
            one = Rating(
                Option(spec.name, size, part * site.budget_s), held + busy_s * site.busy_price(spec), late, is_kept
            )
            if _order(one) < _order(best):
                best = one
    return best


def _order(rating: Rating) -> tuple[bool, float, float, float]:
    late = 0.0 if rating.is_kept else rating.late
    return (not rating.is_kept, late, rating.cost, rating.option.wait_s)


def _cheapest_way(site: Site, ratings: list[dict[str, Rating]]) -> list[Option]:
    """The dynamic programme: for each device the least that it costs to be on it after so many seconds."""
    names = [spec.name for spec in site.devices]
    totals = dict.fromkeys(names, 0.0)
    came_from: list[dict[str, str]] = []
    for rated in ratings:
        came_from.append({})
        reached = dict.fromkeys(names, math.inf)
        for name, rating in rated.items():
            cost = rating.cost + (0.0 if rating.is_kept else (1.0 + rating.late) * _LATE_PRICE)
            best = min(names, key=lambda before: totals[before] + (before != name) * site.switch_cost)
            came_from[-1][name] = best
            reached[name] = totals[best] + (best != name) * site.switch_cost + cost
        totals = reached
    name = min(names, key=lambda one: totals[one])
    options = []
    for rated, before in zip(reversed(ratings), reversed(came_from), strict=True):
        options.append(rated[name].option)
        name = before[name]
    return options[::-1]


def _drain(
    site: Site, laws: dict[str, Conditions], trace: Trace, promise: Promise, ratings: list[dict[str, Rating]]
) -> None:
    """Put into the seconds of a lag what clears it in time at the least cost per event, or else the fastest."""
    begin = int(trace.lag_at_s)
    rate = float(trace.rates[min(begin * 100, len(trace.rates) - 1)])
    needed = rate + trace.lag / promise.drain_s
    drains: list[tuple[bool, float, float, Option]] = []
    for spec in site.devices:
        law = laws[spec.name]
        mean = float(np.mean(law.noise))
        price = site.held_price(spec) + site.busy_price(spec)
        for size in SIZES:
            capacity = size / ((law.fixed_s[begin * 100] + law.per_event_s[begin * 100] * size) * mean)
            if capacity <= rate:
                continue
            order = price / capacity if capacity >= needed else 1.0 / capacity
            drains.append((capacity < needed, order, capacity, Option(spec.name, size, 0.0)))
    _, _, capacity, option = min(drains, key=lambda one: one[:2])
    end = min(trace.duration_s, begin + math.ceil(trace.lag / (capacity - rate)))
    spec = next(spec for spec in site.devices if spec.name == option.device)
    price = site.held_price(spec) + site.busy_price(spec)
    usual = ratings[begin][option.device].option
    # Old events wait for nothing; the wait is for those that come when the lag is gone.
    option = Option(option.device, max(option.records_max, usual.records_max), usual.wait_s)
    for second in range(begin, end):
        ratings[second] = {option.device: Rating(option, price, 0.0, is_kept=True)}


@kernel
def _serve(
    arrivals: Floats,
    first: int,
    last: int,
    until_s: float,
    fixed_s: Floats,
    per_event_s: Floats,
    noise: Floats,
    records_max: int,
    wait_s: float,
    limit_s: float,
    budget_s: float,
) -> tuple[float, float, float]:
    """Serve the events from `first` up to `last`, what comes after them filling up the last batch.

    Answers busy time for these events alone, and how many took longer than the limit, and than the budget.
    """
    total = len(arrivals)
    grid = len(fixed_s)
    head = first
    free_s = arrivals[first] if first < total else 0.0
    busy_s = 0.0
    missed = 0.0
    late = 0.0
    number = first
    while head < last:
        closed = arrivals[head] + wait_s
        if head + records_max <= total:
            closed = min(closed, arrivals[head + records_max - 1])
        start = max(closed, free_s)
        if start > until_s:
            break
        end_of_batch = min(total, head + records_max)
        taken = max(1, np.searchsorted(arrivals[head:end_of_batch], start, side="right"))
        place = min(max(int(start * 100.0), 0), grid - 1)
        seconds = (fixed_s[place] + per_event_s[place] * taken) * noise[number % len(noise)]
        number += 1
        free_s = start + seconds
        counted = min(taken, last - head)
        busy_s += seconds * counted / taken
        batch = arrivals[head : head + counted]
        missed += np.searchsorted(batch, free_s - limit_s)
        late += np.searchsorted(batch, free_s - budget_s)
        head += taken
    left = max(0, last - head)
    return busy_s, missed + left, late + left
