"""`make gpu-bench` without a GPU: fits, bounds, the report, and experiments with a simulated device."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from millstream.gpu_offload.availability import cuda_devices
from millstream.gpu_offload.decision import Option
from millstream.gpu_offload.rivals import Fixed
from millstream.loadgen import gpu_bench
from millstream.loadgen.gpu_bench_experiments import EXPERIMENTS, Bench, Experiment, Found, compared
from millstream.loadgen.gpu_bench_fit import Crossover, Measured, crossover, line
from millstream.loadgen.gpu_bench_live import CPU, Live, Step
from millstream.loadgen.gpu_bench_report import page
from millstream.loadgen.gpu_bench_stages import LIGHT, adversarial_rows, example_stages
from millstream.processor.errors import UnavailableError

SIMULATED = "simulated:fixed_us=200,event_us=0.3"
BENCH = Bench(device=SIMULATED, core_price=0.04, gpu_price=3.5, quick=True)
SIZES = [2**power for power in range(4, 15)]


def points(fixed_us: float, event_us: float, sizes: Sequence[int] = SIZES, spread: float = 0.0) -> list[Measured]:
    random = np.random.default_rng(1)
    times = [(fixed_us + event_us * size) * 1e-6 * np.exp(spread * random.standard_normal()) for size in sizes]
    return [Measured(size, time, 1.2 * time, 30) for size, time in zip(sizes, times, strict=True)]


@pytest.mark.skipif(bool(cuda_devices().devices), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line_and_answers_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "millstream.loadgen.gpu_bench"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    (said,) = done.stderr.splitlines()
    assert said.startswith("gpu-bench: no GPU to measure: ")
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_all_experiments_together_take_less_than_eight_minutes() -> None:
    assert [experiment.name for experiment in EXPERIMENTS] == [f"E{number}" for number in range(10)]
    assert sum(experiment.seconds_max for experiment in EXPERIMENTS) < 8 * 60


def test_a_line_is_found_through_times_that_spread() -> None:
    fitted = line(points(100.0, 0.5))
    assert (fitted.fixed_s, fitted.per_event_s) == (pytest.approx(100e-6), pytest.approx(0.5e-6))
    assert fitted.residual == pytest.approx(0.0, abs=1e-9)
    spread = line(points(100.0, 0.5, spread=0.1))
    assert spread.fixed_s == pytest.approx(100e-6, rel=0.2)
    assert spread.residual > 0.01


def test_neither_part_of_a_line_is_negative() -> None:
    shrinking = [Measured(16, 2e-3, 2e-3, 30), Measured(1024, 1e-3, 1e-3, 30)]
    assert line(shrinking).per_event_s == 0.0
    steep = [Measured(16, 1e-6, 1e-6, 30), Measured(1024, 1e-3, 1e-3, 30)]
    assert line(steep).fixed_s == 0.0


def test_a_crossover_is_predicted_and_found_where_the_lines_cross() -> None:
    found = crossover(points(10.0, 1.0), points(200.0, 0.05))
    assert found.predicted == pytest.approx(200, rel=0.01)
    assert found.measured == pytest.approx(200, rel=0.01)
    assert found.is_predicted


def test_a_device_that_is_always_or_never_quicker_has_its_crossover_at_the_ends() -> None:
    assert crossover(points(10.0, 1.0), points(5.0, 0.1)) == Crossover(16, 16.0, True)
    assert crossover(points(10.0, 0.01), points(200.0, 0.05)) == Crossover(None, None, True)


def test_a_prediction_that_is_far_off_is_no_success() -> None:
    # A knee between the sizes that the prediction is made from: each second size is slow on the device.
    gpu = [
        Measured(one.records, one.p50_s * (8 if place % 2 else 1), one.p99_s, 30)
        for place, one in enumerate(points(200.0, 0.05))
    ]
    found = crossover(points(10.0, 0.3), gpu)
    assert not found.is_predicted


def test_a_comparison_without_any_measured_device_has_no_crossover() -> None:
    assert "crossover" not in compared(points(10.0, 1.0), [])
    assert compared(points(10.0, 1.0), points(200.0, 0.05))["accepted"]


async def test_what_was_found_before_the_time_was_over_is_kept() -> None:
    async def slow(_: Bench, found: Found) -> None:
        found["first"] = 1
        await asyncio.sleep(60)

    async def broken(_: Bench, found: Found) -> None:
        found["first"] = 2
        raise UnavailableError("the device is lost")

    stopped = await gpu_bench.run(Experiment("E1", "slow", 0.05, slow), BENCH)
    assert (stopped["found"], stopped["trouble"]) == ({"first": 1}, "stopped after 0 s")
    failed = await gpu_bench.run(Experiment("E2", "broken", 5.0, broken), BENCH)
    assert (failed["found"], failed["trouble"]) == ({"first": 2}, "the device is lost")
    shown = page({"conditions": {"simulated": True}, "experiments": [stopped, failed]})
    assert "say nothing of any GPU" in shown
    assert "not finished: the device is lost" in shown


def test_the_page_has_the_crossovers_and_what_was_not_as_expected() -> None:
    found = {"tree": compared(points(10.0, 1.0), points(200.0, 0.05)), "accepted": False}
    one = {"name": "E3", "title": "a title", "seconds": 1.0, "trouble": "", "found": found}
    shown = page({"conditions": {"simulated": False, "device": "cuda:0"}, "experiments": [one]})
    assert "not as expected: all" in shown
    assert "| tree | 10 us + 1,000.0 ns/event (±0%) | 200 us + 50.0 ns/event (±0%) | 200 | 200 |" in shown
    assert "simulated one" not in shown


async def test_a_live_stage_is_paid_and_timed_event_by_event() -> None:
    live = Live(LIGHT, Fixed(Option(CPU, 256, 0.002)), BENCH.specs, 0.5, None)
    lived = await live.run([Step(2000.0, 1.0)])
    assert lived.events == 2000
    assert lived.gpu_share == 0.0
    assert 0.5 < lived.p50_ms < 400
    assert lived.cost_per_million > 0.0


@pytest.mark.parametrize("name", ["E6", "E7", "E8"])
async def test_experiments_run_with_a_simulated_device(name: str) -> None:
    (experiment,) = (one for one in EXPERIMENTS if one.name == name)
    done = await gpu_bench.run(experiment, BENCH)
    assert done["trouble"] == ""
    if name == "E6":
        assert not done["found"]["wants_device"]
        assert "cpu" in done["found"]["explanation"].lower()
    if name == "E7":
        assert done["found"]["killed"][0]["back_s"] < 20
        assert done["found"]["unanswered_ms_max"] < 2000
    if name == "E8":
        assert done["found"]["accepted"], done["found"]


async def test_what_needs_cuda_says_so_with_a_simulated_device() -> None:
    done = await gpu_bench.run(EXPERIMENTS[0], BENCH)
    assert done["trouble"] == "it needs a CUDA device"


def test_the_command_writes_what_it_has_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--json", str(tmp_path / "g.json"), "--markdown", str(tmp_path / "g.md")]
    assert gpu_bench.main(["--device", SIMULATED, "--only", "E0", "--quick", *places]) == 1
    assert json.loads((tmp_path / "g.json").read_bytes())["conditions"]["simulated"] is True
    assert "it needs a CUDA device" in (tmp_path / "g.md").read_text()
    capsys.readouterr()
    assert gpu_bench.main(["--device", SIMULATED, "--only", "E77", *places]) == 2
    assert "no experiment 'E77'" in capsys.readouterr().err


def test_adversarial_rows_have_what_devices_disagree_about() -> None:
    stages = example_stages()
    values = adversarial_rows(stages["decision_tree"], 1000, seed=1)["values"]
    assert np.isnan(values).any()
    assert np.isinf(values).any()
    assert (np.signbit(values) & (values == 0)).any()
    vector = adversarial_rows(stages["similarity_search"], 1000, seed=1)["vector"]
    assert vector.min() == -128
