"""Probes are few, paid for, and of what has to be known."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.gpu_offload.guard import Guard
from millstream.gpu_offload.planner_settings import PlannerSettings
from millstream.gpu_offload.probing import Probing
from millstream.gpu_offload.service_model import KNOWN_SAMPLES, ServiceModel
from millstream.gpu_offload.steadiness import Patience, Steadiness, Trouble

SETTINGS = PlannerSettings()


@settings(deadline=None)
@given(took=st.lists(st.floats(1e-4, 0.5), min_size=5, max_size=80), records=st.integers(1, 65536))
def test_whatever_probes_take_it_is_one_percent_and_the_last_one(took: list[float], records: int) -> None:
    probing, model = Probing(SETTINGS), ServiceModel()
    probing.plan(0.0, "gpu0", records)
    spent, last, now = 0.0, 0.0, 0.0
    for seconds in took:
        while (probe := probing.next(now, "gpu0", model)) is None and probing.is_planned("gpu0"):
            now += 0.1
        if probe is None:
            break
        assert spent <= 0.01 * now + 1e-9
        probing.ran(now, "gpu0", seconds)
        spent, last = spent + seconds, seconds
        model.observed(now, probe.records, seconds)
    assert spent - last <= 0.01 * now + 1e-9


def test_a_plan_is_two_sizes_thirty_times_each_and_one_at_a_time() -> None:
    probing, model = Probing(SETTINGS), ServiceModel()
    probing.plan(0.0, "gpu0", 512)
    assert probing.next(0.0, "gpu0", model) is None, "nothing is saved up at first"
    now, sizes = 1.0, []
    while (probe := probing.next(now, "gpu0", model)) is not None:
        assert probing.next(now + 0.01, "gpu0", model) is None, "until it has answered or is taken for lost"
        probing.ran(now + 0.02, "gpu0", 1e-4)
        sizes.append(probe.records)
        now += 0.1
    assert sizes == [512] * KNOWN_SAMPLES + [64] * KNOWN_SAMPLES
    assert not probing.is_planned("gpu0")


def test_an_answer_that_never_comes_does_not_end_the_probing() -> None:
    probing, model = Probing(SETTINGS), ServiceModel()
    probing.plan(0.0, "gpu0", 8)
    assert probing.next(2.0, "gpu0", model) is not None
    assert probing.next(2.5, "gpu0", model) is None
    assert probing.next(3.1, "gpu0", model) is not None
    probing.drop("gpu0")
    assert probing.next(9.0, "gpu0", model) is None


def test_a_gain_has_to_add_up_and_the_larger_the_sooner() -> None:
    def after(gain: float) -> int | None:
        steadiness = Steadiness(SETTINGS)
        return next((at for at in range(200) if steadiness.is_enough(float(at), "gpu0", 1.0, 1.0 - gain, 0.0)), None)

    assert after(0.9) == 1
    assert after(0.15) == 2
    assert after(0.05) == 7
    assert after(0.02) is None
    assert after(-0.1) is None


def test_a_gain_that_comes_and_goes_does_not_add_up() -> None:
    steadiness = Steadiness(SETTINGS)
    assert not any(steadiness.is_enough(float(at), "gpu0", 1.0, 0.85 if at % 2 else 1.15, 0.0) for at in range(300))


def test_who_made_trouble_is_out_for_longer_each_time_and_forgiven_after_a_good_while() -> None:
    trouble = Trouble(SETTINGS)
    assert not trouble.is_out(0.0, "gpu0")
    assert trouble.trip(0.0, "gpu0") == 30.0
    assert trouble.is_out(29.9, "gpu0")
    assert not trouble.is_out(30.0, "gpu0")
    assert trouble.trip(31.0, "gpu0") == 31.0 + 60.0
    until = 0.0
    now = 100.0
    for _ in range(8):
        until = trouble.trip(now, "gpu0") - now
        now += until
    assert until == 600.0
    assert trouble.trip(now + 2401.0, "gpu0") == now + 2401.0 + 30.0


def test_patience_grows_with_loads_that_return_and_goes_again() -> None:
    patience = Patience(SETTINGS)
    assert patience.seconds(0.0) == 0.25
    patience.came_down(0.0)
    patience.went_up(10.0)
    assert patience.seconds(10.0) == 0.25, "ten seconds are no hurry"
    for now in (10.0, 20.0, 30.0, 40.0, 45.0, 50.0):
        patience.came_down(now)
        patience.went_up(now + 2.0)
    assert patience.seconds(53.0) == 10.0
    assert patience.seconds(115.0) == 5.0
    patience.came_down(200.0)
    patience.went_up(300.0)
    assert patience.seconds(300.0) < 5.0


def test_it_is_known_when_a_switch_will_be_due_and_waiting_counts() -> None:
    steadiness = Steadiness(SETTINGS)
    assert not steadiness.is_enough(1.0, "cpu", 1.0, 0.48, 0.25)
    assert steadiness.due_at == pytest.approx(1.0 + (0.2 - 0.125) / 0.5)
    assert steadiness.is_enough(steadiness.due_at, "cpu", 1.0, 0.48, 9.0)
    assert steadiness.due_at > 1e9


def test_a_guard_wants_several_late_batches_and_more_than_a_few_percent() -> None:
    guard = Guard(3)
    assert [guard.batch(0.1 * at, is_late=True) for at in range(3)] == [False, False, True]
    assert not any(guard.batch(1.0 + 0.001 * at, is_late=at % 50 == 0) for at in range(2000))
    assert any(guard.batch(5.0 + 0.001 * at, is_late=at % 10 == 0) for at in range(2000))
    assert not any(guard.batch(10.0 + at, is_late=True) for at in range(20)), "one in a second is no trouble"


def test_a_guard_gives_back_what_it_took() -> None:
    guard = Guard(3)
    assert guard.part(0.0) == 1.0
    guard.tighten(0.0)
    assert guard.part(0.0) == 0.9
    for at in range(20):
        guard.tighten(0.1 * at)
    assert 0.5 <= guard.part(2.0) < 0.6
    assert guard.part(60.0) == 1.0
