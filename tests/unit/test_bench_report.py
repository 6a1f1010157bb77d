"""The benchmark's arithmetic, and that both sides of a row do the same work."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.loadgen.baseline import changed
from millstream.loadgen.bench import BenchSettings
from millstream.loadgen.bench_load import slope_mb_per_minute
from millstream.loadgen.bench_orders import Passage
from millstream.loadgen.bench_report import SPECS, Better, Row, RowSpec, table
from millstream.loadgen.bench_stage import with_even_transactions
from millstream.loadgen.bench_workloads import BASELINE_WORK, Work, pipeline_for
from millstream.loadgen.workload import Workload, WorkloadSettings
from millstream.processor.errors import SettingsError

FAST = RowSpec("fast", "events/s", Better.HIGHER, 250)
LEAN = RowSpec("lean", "us/event", Better.LOWER, 2)


def test_a_rate_is_best_at_its_highest_and_reached_when_its_median_is_not_below_the_target() -> None:
    row = Row(FAST, [300, 100, 250], [50, 100, 60], {})
    assert (row.median, row.best, row.baseline_median, row.baseline_best) == (250, 300, 60, 100)
    assert row.is_reached


def test_a_cost_is_best_at_its_lowest_and_reached_when_its_median_is_not_above_the_target() -> None:
    row = Row(LEAN, [3.0, 1.0, 2.5, 2.75], [5.0, 4.0], {})
    assert (row.median, row.best, row.baseline_median, row.baseline_best) == (2.625, 1.0, 4.5, 4.0)
    assert not row.is_reached
    assert row.as_json()["reached_by_best"] is True


def test_ratios_are_ours_divided_by_the_baselines_by_medians_and_by_the_best() -> None:
    found = Row(FAST, [300, 100, 200], [50, 100, 60], {"events": 7}).as_json()
    assert found["ratio"] == round(200 / 60, 3)
    assert found["ratio_best"] == 3.0
    assert (found["value"], found["baseline"], found["target"], found["runs"]) == (200, 60, 250, 3)
    assert (found["name"], found["unit"], found["reached"]) == ("fast", "events/s", False)
    assert found["conditions"] == {"events": 7}


def test_a_baseline_of_nothing_has_no_ratio() -> None:
    assert Row(FAST, [1], [0], {}).as_json()["ratio"] is None


def test_the_table_has_a_line_for_each_row() -> None:
    assert table([Row(spec, [1.0], [2.0], {}) for spec in SPECS.values()]).row_count == len(SPECS)


@given(st.integers(1, 10_000_000))
def test_the_loops_transactions_are_so_even_that_the_last_one_is_nearly_full(events: int) -> None:
    size = with_even_transactions(Passage(name="n", source="s", target="t", events=events)).transaction_records_max
    transactions = math.ceil(events / size)
    assert size <= 450_000
    assert transactions * size - events < transactions


def test_memory_that_settles_has_no_slope_and_memory_that_leaks_has_its_rate() -> None:
    seconds = np.arange(0, 400, 0.5)
    settling = list(zip(seconds, np.minimum(200, 100 + 2 * seconds), strict=True))
    assert slope_mb_per_minute(settling) == pytest.approx(0, abs=1e-6)
    assert slope_mb_per_minute(list(zip(seconds, 200 + seconds / 60 * 3, strict=True))) == pytest.approx(3)
    assert slope_mb_per_minute(settling[:60]) is None


class _Message:
    """As much of a consumed message as the loop looks at."""

    def __init__(self, key: bytes, value: bytes) -> None:
        self._key, self._value = key, value

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes:
        return self._value


@pytest.mark.parametrize("work", Work)
def test_the_baseline_writes_what_the_pipeline_writes(work: Work) -> None:
    events = Workload(WorkloadSettings()).next_events(np.arange(50) + 1_730_000_000_000_000)
    ours = pipeline_for(work, "p", "in", "out").test(events.values)
    theirs = [
        changed(BASELINE_WORK[work], _Message(key, value))["value"]
        for key, value in zip(events.keys, events.values, strict=True)
    ]
    written = [output.raw for output in ours.outputs["out"]]
    assert [msgspec.json.decode(value or b"") for value in written] == [
        msgspec.json.decode(value or b"") for value in theirs
    ]
    assert (written == list(events.values)) is (work is Work.RAW_COPY)


def test_settings_report_every_mistake_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        BenchSettings(events=0, runs=0, partitions=0, seed=-1, only=("no_such_row",))
    assert len(caught.value.mistakes) == 5
