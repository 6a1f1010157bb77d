"""What `millstream explain` and `millstream profile` make of measurements: decisions, prospects, words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from millstream.gpu_offload.dry_run import SizeTime
from millstream.gpu_offload.explain_command import decided, live_text, recorded, steady
from millstream.gpu_offload.offload_settings import OffloadSettings
from millstream.gpu_offload.profile_report import Part, Profile, SizeRow, StageProfile, as_text
from millstream.gpu_offload.prospects import prospects
from millstream.gpu_offload.service_law import ServiceLaw
from millstream.gpu_offload.stage_picture import write_picture
from millstream.processor.errors import SettingsError

PRICES = OffloadSettings(devices=("simulated:",))
QUICK_GPU = ServiceLaw(fixed_s=100e-6, per_event_s=0.3e-6)


def measured(fixed_us: float, event_us: float, beside_us: float) -> Sequence[SizeTime]:
    """What a stage takes that has this line in its function, and so much an event beside it."""
    found = []
    for records in (16, 64, 256, 1024, 4096, 16384):
        function = (fixed_us + event_us * records) * 1e-6
        found.append(SizeTime(records, [function + beside_us * records * 1e-6] * 40, [function] * 40))
    return found


def test_a_light_stage_at_a_moderate_rate_stays_on_the_cpu_and_no_device_is_wanted() -> None:
    """The motivating case: 50,000 events a second, 10 ms, and a device that takes 35 ms for whatever it is given."""
    law = ServiceLaw(fixed_s=35e-3, per_event_s=0.1e-6)
    last = list(decided("score", 0.010, measured(20, 0.5, 0.5), steady(50_000), PRICES, law, 100))[-1]
    assert last.option.device == "cpu"
    gpu = next(device for device in last.devices if device.spec.name == "gpu")
    assert not gpu.wanted
    assert "35" in gpu.why or "limit" in gpu.why


def test_a_dense_stage_that_the_cpu_cannot_keep_up_with_goes_to_the_device() -> None:
    last = list(decided("score", 0.020, measured(50, 20, 0.5), steady(100_000), PRICES, QUICK_GPU, 100))[-1]
    assert last.option.device == "gpu", last.reason


def test_a_load_that_grows_brings_the_stage_to_the_device_and_is_told_of() -> None:
    arrivals = [(place / 100, 100) for place in range(1000)] + [(10 + place / 100, 1000) for place in range(1000)]
    decisions = list(decided("score", 0.020, measured(50, 20, 0.5), arrivals, PRICES, QUICK_GPU, 100))
    assert decisions[0].option.device == "cpu"
    assert decisions[-1].option.device == "gpu"
    assert any(one.switched and 10 <= one.at_s < 12 for one in decisions)


def test_without_a_device_only_its_chances_are_judged() -> None:
    last = list(decided("score", 0.020, measured(50, 20, 0.5), steady(100_000), PRICES, None, 100))[-1]
    assert last.option.device == "cpu"
    assert next(device for device in last.devices if device.spec.name == "gpu").wanted


def test_prospects_follow_from_the_lines() -> None:
    found = prospects("score", 0.010, measured(10, 2.0, 1.0), PRICES)
    assert found.per_event_s == pytest.approx(3e-6, rel=0.01)
    assert found.function_per_event_s == pytest.approx(2e-6, rel=0.01)
    assert found.rate_max_cpu == pytest.approx(0.7 / 3e-6, rel=0.01)
    assert found.rate_max_device == pytest.approx(0.7 / 1e-6, rel=0.02)
    assert found.quicker_from == pytest.approx((60 - 10) / 2, rel=0.05)
    # 3.5 an hour against 0.04 for a core that does 500,000 events a second.
    assert found.cheaper_from == pytest.approx(3.5 / 0.04 * 500_000, rel=0.01)


def test_a_budget_below_the_floor_is_a_plain_no() -> None:
    assert prospects("score", 50e-6, measured(10, 2.0, 1.0), PRICES).verdict.startswith("No: a batch takes")


def test_a_stage_that_mostly_reads_and_writes_is_told_so() -> None:
    assert "The function is 9% of the stage" in prospects("s", 0.010, measured(1, 0.1, 1.0), PRICES).verdict


def profile() -> Profile:
    found = measured(10, 2.0, 1.0)
    rows = [SizeRow(one.records, one.quantile(0.5), one.quantile(0.99), one.compute_p50_s) for one in found]
    parts = [
        Part("record batches to columns", "input", 0.1e-6),
        Part("score: values to columns and back", "decode", 1e-6),
        Part("score", "compute", 2e-6),
        Part("outputs to record batches", "output", 0.2e-6),
        Part("reading from the brokers, by another client", "broker", 1e-6),
    ]
    return Profile("fraud", "4 values", 5000, parts, [StageProfile(prospects("score", 0.010, found, PRICES), rows)])


def test_a_profile_says_what_bounds_the_pipeline() -> None:
    assert profile().bound() == ("compute", 2e-6)
    text = as_text(profile())
    assert "It is bound by compute: 2 µs an event." in text
    assert "303K events/s" in text
    assert "Could a GPU pay?" in text


def test_the_picture_has_both_devices_and_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "p.svg"
    write_picture(path, profile(), PRICES, QUICK_GPU, 50_000)
    text = path.read_text()
    assert text.count("<polyline") == 5
    assert "budget 10 ms" in text
    assert "not measured" in text


def test_recorded_arrivals_are_seconds_and_records(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("# by hand\n0.0 100\n0.01, 20\n\n")
    assert recorded(path) == [(0.0, 100), (0.01, 20)]


@pytest.mark.parametrize("text", ["", "1.0 5\n0.5 5\n", "often many\n"])
def test_what_is_no_trace_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(SettingsError, match="trace"):
        recorded(path)


def test_a_running_nodes_stage_in_words() -> None:
    counts = {"records": {"cpu": 100, "gpu": 300}, "switches": {"cpu>gpu": 1}, "fallbacks": {}, "probes": {}}
    worker = {"worker": 0, "device": "gpu0", "device_state": "ready", "why": "", "explanation": "Stage 'score' runs"}
    text = live_text({"stage": "score", "counts": counts, "device_share": 0.75, "workers": [worker]})
    assert "100 on cpu, 300 on gpu; 75% on devices" in text
    assert "switches: cpu>gpu 1" in text
    assert "Worker 0: gpu0, ready" in text
