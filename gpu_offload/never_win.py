"""Whether a device could win at all, asked before anything is started on it.

The device gets the benefit of every doubt: while it has not been measured, a batch of any size takes its floor. If it
cannot win even so, no context is made, no memory taken, nothing leased.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.gpu_offload.choosing import Standing
from millstream.gpu_offload.cost import break_even_core_us, cost_per_million
from millstream.gpu_offload.decision import UNBOUNDED_S, Candidate, DeviceSpec
from millstream.gpu_offload.question import Question
from millstream.gpu_offload.words import money, quantity, seconds


@dataclass(frozen=True, slots=True)
class Chance:
    """Whether a device could win, and the numbers that say so."""

    is_there: bool
    why: str


def chance(
    spec: DeviceSpec, own_standing: Standing | None, cpu_standing: Standing | None, question: Question
) -> Chance:
    """The chance of a device; its own standing is None while it was not measured, and so is the CPU's."""
    if cpu_standing is None:
        return Chance(False, "the CPU has to be measured first")
    own, cpu = own_standing.candidate if own_standing is not None else None, cpu_standing.candidate
    least_s = spec.fixed_floor_s if own is None else own.p99_s
    if not question.backlog and least_s > question.limit_s:
        what = "a batch takes at least" if own is None else "its best p99 is"
        return Chance(False, f"{what} {seconds(least_s)}, the limit is {seconds(question.limit_s)}")
    if spec.fixed_floor_s > question.budget_s:
        return Chance(False, f"a batch takes at least {seconds(spec.fixed_floor_s)}, more than the whole budget")
    if own is not None and not own.is_feasible:
        return Chance(False, f"its best candidate, {own.option.records_max} records, {own.verdict}")
    if not cpu.is_feasible:
        return _against_a_cpu_that_fails(cpu, question)
    least_cost = own_standing.cost_per_million if own_standing is not None else _least_cost(spec, question)
    if least_cost < cpu_standing.cost_per_million:
        costs = f"a million events might cost {money(least_cost)}, on the CPU {money(cpu_standing.cost_per_million)}"
        return Chance(True, costs)
    return Chance(False, _too_dear(spec, least_cost, cpu_standing.cost_per_million, question))


def _against_a_cpu_that_fails(cpu: Candidate, question: Question) -> Chance:
    if question.backlog:
        surplus = question.rate_planned * (1.0 / max(cpu.load, 1e-9) - 1.0)
        if surplus * question.settings.start_s >= question.backlog:
            return Chance(False, "the CPU will have cleared the backlog before a device is ready")
        return Chance(True, f"the CPU needs too long for a backlog of {quantity(question.backlog)} events")
    if cpu.load >= question.settings.stable_load or cpu.p99_s >= UNBOUNDED_S:
        return Chance(True, f"the CPU does not keep up: load {cpu.load:.0%} with full batches")
    return Chance(True, f"the CPU {cpu.verdict}: p99 {seconds(cpu.p99_s)}, load {cpu.load:.0%}")


def _least_cost(spec: DeviceSpec, question: Question) -> float:
    """The cost per million events of a device whose largest batch within half of the budget takes its floor."""
    rate = question.drain_rate if question.backlog else question.rate_cost
    records = max(1.0, rate * question.budget_s / 2)
    busy = min(spec.servers, rate * spec.fixed_floor_s / records)
    return cost_per_million(spec, question.core_price_per_hour, busy, rate)


def _too_dear(spec: DeviceSpec, least_cost: float, cpu_cost: float, question: Question) -> str:
    costs = f"a million events cost {money(least_cost)} at least, on the CPU {money(cpu_cost)}"
    needed = break_even_core_us(spec, question.core_price_per_hour, question.rate_cost)
    if needed is None:
        return costs
    used = cpu_cost / 1e6 / (question.core_price_per_hour / 3600.0) * 1e6
    return f"{costs}; it pays from {quantity(needed)} core-µs per event on, this stage takes {quantity(used)}"
