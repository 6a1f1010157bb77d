"""The planner at work: what it chooses, when it changes its mind, and what it does about a device in trouble."""

from __future__ import annotations

import math

import msgspec
import pytest
from planner_world import CPU, GPU, SHARED, Law, World

from millstream.gpu_offload.decision import Decision, DeviceSpec, DeviceState
from millstream.gpu_offload.explanation import explain
from millstream.gpu_offload.planner import Planner
from millstream.gpu_offload.planner_settings import PlannerSettings

LIGHT = Law(60e-6, 2e-6, spread=0.15)
TREE = Law(30e-6, 0.3e-6, spread=0.15)
DENSE = Law(60e-6, 50e-6, spread=0.15)
FAST_GPU = Law(250e-6, 0.3e-6, spread=0.25)
SLOW_GPU = Law(35e-3, 0.3e-6, spread=0.2)
FREE = DeviceSpec("gpu0", "gpu", 0.0, "share", feeder_cores=0.5)


def steady(rate: float):
    return lambda _now: rate


# The cases that the product is there for.


def test_50k_events_in_10_ms_stay_on_the_cpu_and_a_gpu_of_35_ms_is_never_begun_with() -> None:
    world = World(steady(50_000), {"cpu": LIGHT, "gpu0": SLOW_GPU}, calibrate=False)
    world.run(5.0)
    assert {one.option.device for one in world.decisions} == {"cpu"}
    assert world.last.reason_code == "never-win"
    assert not world.planner.wants("gpu0"), "no context is made"
    assert world.planner.probe(world.now) is None
    assert world.late == []
    text = explain(world.last)
    # 3.5 / 0.04 cores, over 50,000 events per second: 1,750 core-µs. The stage takes about 2.3.
    assert world.last.devices[1].break_even_core_us == pytest.approx(1750, rel=0.05)
    assert "core-µs per event" in text
    assert "could not win" in text


@pytest.mark.parametrize("gpu", [GPU, SHARED, FREE], ids=["leased", "share", "free"])
def test_a_gpu_that_was_measured_at_35_ms_is_never_chosen_for_10_ms_whatever_it_costs(gpu: DeviceSpec) -> None:
    world = World(steady(50_000), {"cpu": LIGHT, "gpu0": SLOW_GPU}, [CPU, gpu])
    world.run(4.0)
    assert {one.option.device for one in world.decisions} == {"cpu"}
    assert world.last.reason_code == "never-win"
    assert "limit is 8.5 ms" in explain(world.last)


def test_a_decision_tree_in_small_batches_stays_on_the_cpu() -> None:
    world = World(steady(50_000), {"cpu": TREE, "gpu0": FAST_GPU}, [CPU, SHARED])
    world.run(4.0)
    assert {one.option.device for one in world.decisions} == {"cpu"}
    assert world.late == []


def test_a_dense_model_at_a_high_rate_goes_to_the_gpu() -> None:
    world = World(steady(60_000), {"cpu": DENSE, "gpu0": FAST_GPU})
    world.run(4.0)
    assert world.last.option.device == "gpu0"
    assert world.last.reason_code == "only-feasible"
    assert max(at for at, _ in world.late) < 1.0, "late only until it was known"


def test_a_backlog_goes_to_the_gpu_and_the_load_back_to_the_cpu() -> None:
    world = World(lambda now: 5_000 + (400_000 if 3.0 <= now < 3.2 else 0), {"cpu": DENSE, "gpu0": FAST_GPU})
    world.run(10.0)
    devices = [device for _, device, _ in world.switches]
    assert devices == ["gpu0", "cpu"]
    assert 3.0 < world.switches[0][0] < 3.25
    assert world.switches[1][0] < 6.5


def test_where_a_gpu_is_paid_for_already_it_is_used() -> None:
    world = World(steady(20_000), {"cpu": DENSE, "gpu0": FAST_GPU}, [CPU, FREE], budget_s=0.02)
    world.run(8.0)
    assert world.last.option.device == "gpu0"


# What it does not know.


def test_a_device_is_unknown_until_it_was_measured_thirty_times_and_probes_see_to_that() -> None:
    world = World(steady(10_000), {"cpu": DENSE, "gpu0": FAST_GPU}, [CPU, FREE], calibrate=False)
    world.planner.device_state(0.0, "gpu0", "ready")
    world.run(0.4)
    assert world.last.option.device == "cpu"
    assert world.last.reason_code == "unknown"
    assert not world.last.devices[1].is_known
    world.run(12.0)
    assert world.probed_s["gpu0"] > 0.0
    assert world.last.option.device == "gpu0", "as soon as it is known it is chosen"


def test_until_the_cpu_is_measured_nothing_else_is_tried() -> None:
    planner = Planner("score", 0.01, [CPU, GPU])
    planner.device_state(0.0, "gpu0", "ready")
    planner.calibrated(0.0, "gpu0", [(64, 0.0003)] * 40)
    planner.arrived(0.0, 100)
    decision = planner.decide(0.5)
    assert decision.option.device == "cpu"
    assert decision.reason_code == "unknown"
    assert not planner.wants("gpu0")


@pytest.mark.parametrize("state", ["absent", "warming", "suspect", "open", "half-open"])
def test_a_device_that_is_not_ready_is_not_chosen(state: DeviceState) -> None:
    world = World(steady(60_000), {"cpu": DENSE, "gpu0": FAST_GPU})
    world.planner.device_state(0.0, "gpu0", state, "as the test wants it")
    world.run(2.0)
    assert {one.option.device for one in world.decisions} == {"cpu"}
    assert "as the test wants it" in explain(world.last)
    assert world.planner.wants("gpu0"), "it would win, so it is worth being started"


def test_probes_take_one_percent_of_the_time_at_most() -> None:
    slow = Law(20e-3, 1e-6, spread=0.2)
    free = DeviceSpec("gpu0", "gpu", 0.0, "share")
    world = World(steady(10_000), {"cpu": DENSE, "gpu0": slow}, [CPU, free], budget_s=0.05, calibrate=False)
    world.planner.device_state(0.0, "gpu0", "ready")
    world.run(30.0)
    assert 0.0 < world.probed_s["gpu0"] <= 0.01 * 30.0 + 0.03, "one probe may be begun with the last of it"


def test_a_device_without_hope_is_not_probed() -> None:
    world = World(steady(50_000), {"cpu": LIGHT, "gpu0": FAST_GPU}, calibrate=False)
    world.planner.device_state(0.0, "gpu0", "ready")
    world.run(3.0)
    assert world.probed_s["gpu0"] == 0.0


# When it changes its mind.


def test_each_crossing_of_the_load_costs_at_most_two_switches_and_lateness_only_at_steps() -> None:
    load = lambda now: 50_000 if 6.0 <= now < 14.0 else 5_000  # noqa: E731
    world = World(load, {"cpu": DENSE, "gpu0": FAST_GPU})
    world.run(22.0)
    assert [device for _, device, _ in world.switches] == ["gpu0", "cpu"]
    assert world.switches[0][0] < 6.3
    assert 14.0 < world.switches[1][0] < 16.5
    assert world.late_share < 0.01
    assert all(6.0 <= at < 7.0 for at, _ in world.late if at > 1.0)


@pytest.mark.parametrize("seed", range(3))
def test_noise_where_both_cost_the_same_makes_it_change_at_most_once(seed: int) -> None:
    # A shared GPU priced so that it costs what the CPU does, within a percent.
    cost_cpu = 0.04 * (60e-6 / 40 + 50e-6)
    shared = DeviceSpec("gpu0", "gpu", cost_cpu / (260e-6 / 40), "share")
    laws = {"cpu": Law(60e-6, 50e-6, spread=0.3), "gpu0": Law(250e-6, 0.3e-6, spread=0.3)}
    world = World(steady(5_000), laws, [CPU, shared], seed=seed)
    world.run(40.0)
    assert len(world.switches) <= 1


def test_a_gain_of_a_tenth_is_followed_but_not_at_once() -> None:
    cost_cpu = 0.04 * (60e-6 / 40 + 50e-6)
    shared = DeviceSpec("gpu0", "gpu", 0.85 * cost_cpu / (260e-6 / 40), "share")
    laws = {"cpu": Law(60e-6, 50e-6), "gpu0": Law(250e-6, 0.3e-6)}
    world = World(steady(5_000), laws, [CPU, shared])
    world.run(20.0)
    assert [device for _, device, _ in world.switches] == ["gpu0"]
    assert world.switches[0][0] > 1.0
    assert "held" in {one.reason_code for one in world.decisions}


def test_the_same_seed_gives_the_same_decisions() -> None:
    def told() -> list[bytes]:
        world = World(lambda now: 30_000 if now % 2 > 1 else 5_000, {"cpu": DENSE, "gpu0": FAST_GPU}, seed=11)
        world.run(6.0)
        return [msgspec.json.encode(one) for one in world.decisions]

    assert told() == told()


def test_a_load_that_returns_is_not_chased() -> None:
    world = World(lambda now: 40_000 if now % 3 < 1 else 5_000, {"cpu": DENSE, "gpu0": FAST_GPU})
    world.run(30.0)
    late = [at for at, _ in world.late if at > 15.0]
    assert len({math.floor(at / 3) for at in late}) <= 1, "after a few times it stays prepared"


# Trouble.


@pytest.mark.parametrize("state", ["suspect", "open", "absent"])
def test_a_device_that_fails_is_left_at_the_next_decision_which_is_due_at_once(state: DeviceState) -> None:
    world = World(steady(12_000), {"cpu": DENSE, "gpu0": FAST_GPU}, [CPU, FREE])
    world.run(5.0)
    assert world.planner.option.device == "gpu0"
    failed_at = world.now
    world.planner.device_state(failed_at, "gpu0", state, "no answer in 100 ms")
    world.run(0.1)
    assert world.last.option.device == "cpu"
    assert world.switches[-1][2] == "error"
    assert world.switches[-1][0] - failed_at < 0.1
    assert "no answer in 100 ms" in next(one for one in world.decisions if one.at_s >= failed_at).reason


def test_a_device_that_becomes_too_slow_is_left_within_a_second_and_stays_out_until_it_is_better() -> None:
    gpu = Law(250e-6, 0.3e-6, spread=0.25)
    world = World(steady(10_000), {"cpu": DENSE, "gpu0": gpu}, [CPU, FREE])
    world.run(5.0)
    assert world.planner.option.device == "gpu0"
    gpu.factor = 60.0
    world.run(1.0)
    assert world.planner.option.device == "cpu"
    assert world.switches[-1][2] == "breach"
    assert world.switches[-1][0] < 5.3
    world.run(9.0)
    assert world.planner.option.device == "cpu"
    assert len(world.switches) == 2
    assert sum(part for at, part in world.late if at > 1.0 and not 4.9 <= at < 6.0) < 0.002 * world.events


def test_late_batches_that_no_model_explains_send_it_back_to_the_cpu_and_each_time_for_longer() -> None:
    planner = Planner("score", 0.01, [CPU, FREE])
    planner.device_state(0.0, "gpu0", "ready")
    planner.calibrated(0.0, "gpu0", [(size, 250e-6) for size in (1, 8, 64, 512, 4096) for _ in range(40)])
    planner.calibrated(0.0, "cpu", [(size, 60e-6 + 50e-6 * size) for size in (1, 8, 64) for _ in range(40)])
    now, switches = 0.0, []
    while now < 200.0:
        now += 0.01
        planner.arrived(now, 50)
        planner.latency(now, 0.05 if planner.option.device == "gpu0" and now > 4.0 else 0.002)
        if planner.is_due(now):
            decision = planner.decide(now)
            if decision.switched:
                switches.append((now, decision.option.device, decision.reason_code))
    left = [at for at, device, _ in switches if device == "cpu"]
    back = [at for at, device, _ in switches if device == "gpu0"]
    assert {code for _, device, code in switches if device == "cpu"} == {"breach"}
    outs = [again - out for out, again in zip(left, back[1:], strict=False)]
    assert outs[0] > 29.0
    assert outs[1] > 59.0


def test_wrong_answers_are_the_end_of_a_device_until_it_begins_anew() -> None:
    world = World(steady(12_000), {"cpu": DENSE, "gpu0": FAST_GPU}, [CPU, FREE])
    world.run(4.0)
    assert world.planner.option.device == "gpu0"
    world.planner.probed(world.now, "gpu0", 64, 0.0003, False)
    world.run(10.0)
    assert world.planner.option.device == "cpu"
    assert "wrong answers" in explain(world.last)
    world.planner.device_state(world.now, "gpu0", "absent")
    world.planner.device_state(world.now, "gpu0", "ready")
    world.run(15.0)
    assert world.planner.option.device == "gpu0"


def test_after_running_out_of_memory_batches_are_smaller_for_a_while() -> None:
    world = World(steady(60_000), {"cpu": DENSE, "gpu0": FAST_GPU})
    world.run(3.0)
    world.planner.cap(world.now, "gpu0", 100, 5.0)
    world.run(2.0)
    assert world.planner.option.device == "gpu0"
    assert world.planner.option.records_max <= 100
    world.run(5.0)
    assert any(one.option.records_max > 100 for one in world.decisions if one.at_s > world.now - 2.0) or all(
        candidate.option.records_max <= 65536 for candidate in world.last.candidates
    )


def test_when_nothing_keeps_the_budget_it_says_so_and_takes_the_quickest() -> None:
    world = World(steady(100_000), {"cpu": DENSE, "gpu0": Law(2e-3, 15e-6)}, budget_s=0.01)
    world.run(3.0)
    assert world.last.reason_code in ("slo-infeasible", "backlog")
    assert world.last.option.device == "gpu0"


# Its record.


def test_a_decision_can_be_written_and_read_again() -> None:
    world = World(steady(60_000), {"cpu": DENSE, "gpu0": FAST_GPU})
    world.run(2.0)
    for decision in world.decisions:
        assert msgspec.json.decode(msgspec.json.encode(decision), type=Decision) == decision
        assert not any(math.isinf(one.p99_s) for one in decision.candidates)


def test_an_explanation_fits_a_screen_and_has_the_numbers() -> None:
    world = World(steady(60_000), {"cpu": DENSE, "gpu0": FAST_GPU})
    world.run(3.0)
    text = explain(world.last)
    lines = text.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 118
    for part in (
        "10 ms",
        "8.5 ms",
        "K events/s now",
        "ns per event",
        "gpu0",
        "core-µs",
        "does not keep up",
        "only-feasible",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("budget_s", "devices", "message"),
    [
        (0.0, [CPU], "must be more than 0"),
        (-1.0, [CPU], "must be more than 0"),
        (0.01, [GPU], "has no CPU"),
        (0.01, [CPU, GPU, GPU], "same name"),
    ],
)
def test_what_makes_no_sense_is_refused(budget_s: float, devices: list[DeviceSpec], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Planner("score", budget_s, devices, PlannerSettings())
