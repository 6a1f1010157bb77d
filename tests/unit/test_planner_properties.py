"""What holds of every choice, whatever the devices cost and take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from millstream.gpu_offload.cost import Usage, break_even_core_us, cost_per_million
from millstream.gpu_offload.decision import Charge, DeviceSpec
from millstream.gpu_offload.planner import Planner

BUDGET_S = 0.01
Costs = tuple[float, float]
"""Fixed cost and cost per event, in seconds."""

costs = st.tuples(st.floats(1e-5, 2e-2), st.floats(1e-8, 2e-4))
cpu_costs = st.tuples(st.floats(1e-5, 1e-3), st.floats(1e-7, 2e-4))
prices = st.floats(1e-3, 100.0)
rates = st.floats(100.0, 200_000.0)
charges: st.SearchStrategy[Charge] = st.sampled_from(["leased", "share", "used"])
backlogs = st.sampled_from([0, 0, 0, 200_000])
POISSON = np.random.default_rng(0).poisson(1.0, 2000)


def choice(
    cpu: Costs, gpu: Costs, rate: float, backlog: int, charge: Charge, gpu_price: float, cpu_price: float = 0.04
) -> str:
    """The device that a planner takes that has known both for long, has no choice yet, and sees a steady load."""
    devices = [
        DeviceSpec("cpu", "cpu", cpu_price, "used"),
        DeviceSpec("gpu0", "gpu", gpu_price, charge, feeder_cores=1.0),
    ]
    planner = Planner("score", BUDGET_S, devices)
    for name, (fixed_s, per_event_s) in (("cpu", cpu), ("gpu0", gpu)):
        planner.calibrated(
            0.0, name, [(2**place, fixed_s + per_event_s * 2**place) for place in range(17) for _ in range(30)]
        )
    planner.device_state(0.0, "gpu0", "ready")
    for step, luck in enumerate(POISSON):
        records = round(rate * 0.001 * luck) or (1 if step % 20 == 0 else 0)
        if records:
            planner.arrived(0.001 * step, records)
    device = ""
    # Long enough for every gain that counts to add up.
    for step in range(30):
        now = 2.0 + 0.001 * step if step == 0 else 2.0 + 0.01 * step
        planner.backlog(now, backlog)
        device = planner.decide(now).option.device
    return device


@settings(max_examples=150, deadline=None)
@given(
    cpu=cpu_costs,
    gpu=costs,
    rate=rates,
    backlog=backlogs,
    charge=charges,
    price=prices,
    dearer=st.tuples(st.floats(1.0, 5.0), st.floats(1.0, 5.0), st.floats(1.0, 5.0)),
)
@example((1e-5, 6.485661573815625e-5), (1e-5, 6.485661573815625e-5), 26_981.0, 0, "leased", 1.0, (3.0, 1.0, 1.0))
@example(
    (0.0008912177608293619, 3.517885919237003e-05),
    (0.0008912177608293619, 3.517885919237003e-05),
    161_835.0,
    0,
    "leased",
    1.0,
    (2.0, 1.0, 1.0),
)
@example((6e-5, 5e-5), (2.5e-4, 3e-7), 15_000.0, 0, "share", 1.0, (1.0, 1.0, 1.2))
def test_a_gpu_made_dearer_or_slower_is_never_chosen_where_it_was_not_before(
    cpu: Costs,
    gpu: Costs,
    rate: float,
    backlog: int,
    charge: Charge,
    price: float,
    dearer: tuple[float, float, float],
) -> None:
    before = choice(cpu, gpu, rate, backlog, charge, price)
    assume(before == "cpu")
    fixed, per_event, money = dearer
    assert choice(cpu, (gpu[0] * fixed, gpu[1] * per_event), rate, backlog, charge, price * money) == "cpu"


@settings(max_examples=80, deadline=None)
@given(
    cpu=cpu_costs,
    gpu=costs,
    rate=rates,
    backlog=backlogs,
    charge=charges,
    price=prices,
    factor=st.sampled_from([0.001, 0.3, 0.5, 7.0, 1000.0]),
)
def test_scaling_all_prices_changes_nothing(
    cpu: Costs, gpu: Costs, rate: float, backlog: int, charge: Charge, price: float, factor: float
) -> None:
    plain = choice(cpu, gpu, rate, backlog, charge, price)
    assert choice(cpu, gpu, rate, backlog, charge, price * factor, 0.04 * factor) == plain


@settings(max_examples=80, deadline=None)
@given(
    cpu=cpu_costs,
    fixed_s=st.floats(1.01 * BUDGET_S, 100 * BUDGET_S),
    rate=rates,
    backlog=backlogs,
    charge=charges,
    price=st.sampled_from([0.0, 1e-6, 1.0]),
)
def test_a_device_whose_fixed_cost_is_over_the_budget_is_never_chosen(
    cpu: Costs, fixed_s: float, rate: float, backlog: int, charge: Charge, price: float
) -> None:
    assert choice(cpu, (fixed_s, 1e-9), rate, backlog, charge, price) == "cpu"


def test_the_properties_are_not_empty_both_devices_are_chosen_by_some() -> None:
    assert choice((6e-5, 5e-5), (2.5e-4, 3e-7), 60_000.0, 0, "leased", 3.5) == "gpu0"
    assert choice((6e-5, 5e-5), (2.5e-4, 3e-7), 5_000.0, 0, "leased", 3.5) == "cpu"
    assert choice((6e-5, 5e-5), (2.5e-4, 3e-7), 5_000.0, 400_000, "leased", 3.5) == "gpu0"


def test_the_break_even_of_the_figures_that_everybody_quotes() -> None:
    gpu = DeviceSpec("gpu0", "gpu", 3.5, "leased")
    assert break_even_core_us(gpu, 0.04, 200_000) == pytest.approx(437.5)
    assert break_even_core_us(gpu, 0.04, 50_000) == pytest.approx(1750.0)
    assert break_even_core_us(replace(gpu, kind="cpu"), 0.04, 50_000) is None
    assert break_even_core_us(replace(gpu, charge="share"), 0.04, 50_000) is None
    assert break_even_core_us(gpu, 0.0, 50_000) is None


@settings(deadline=None)
@given(busy=st.floats(0, 4), rate=st.floats(1, 1e6), price=prices)
def test_what_each_way_of_charging_costs(busy: float, rate: float, price: float) -> None:
    spec = DeviceSpec("gpu0", "gpu", price, "leased", servers=4)
    leased, share, used = (
        cost_per_million(replace(spec, charge=charge), 0.04, busy, rate) for charge in ("leased", "share", "used")
    )
    assert leased == pytest.approx(price / 3600 / rate * 1e6)
    assert share == pytest.approx(leased * busy / 4)
    assert used == pytest.approx(leased * busy)


def test_idle_time_is_what_was_held_and_not_used() -> None:
    usage = Usage()
    assert usage.idle_share(5.0, 1) == 0.0
    usage.hold(10.0)
    usage.hold(15.0)
    usage.worked(2.5)
    assert usage.idle_share(20.0, 1) == pytest.approx(0.75)
    usage.let_go(20.0)
    assert usage.idle_share(100.0, 1) == pytest.approx(0.75)
    usage.hold(100.0)
    assert usage.idle_share(110.0, 1) == pytest.approx(1.0 - 2.5 / 20.0)
