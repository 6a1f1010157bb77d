"""What `make chaos` makes of arrivals: when output was back, how long it stood still, and the report of it."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from millstream.loadgen.chaos import ChaosSettings
from millstream.loadgen.chaos_case import CaseResult
from millstream.loadgen.chaos_cases import CASES, ROWS
from millstream.loadgen.chaos_load import UntilFile
from millstream.loadgen.chaos_offsets import OffsetsWatch
from millstream.loadgen.chaos_report import page_of, write_report
from millstream.loadgen.chaos_stage import CURVE_AFTER_S, CURVE_BEFORE_S, CURVE_STEP_S, Level, Round
from millstream.loadgen.chaos_timing import Chunk, Quantiles, curve, first_arrivals, longest_gaps
from millstream.loadgen.schedule import Schedule, constant_arrivals
from millstream.processor.errors import SettingsError
from millstream.processor.partitions import TopicPartition


def chunk(at: float, *records: tuple[int, int]) -> Chunk:
    """Records that arrived together, as (partition, sent_us)."""
    partitions, sent = zip(*records, strict=True)
    return Chunk(at, np.array(partitions), np.array(sent))


def test_a_partition_is_back_with_the_first_event_that_was_sent_after_the_fault() -> None:
    chunks = [chunk(1.0, (0, 50), (1, 101)), chunk(2.0, (0, 100)), chunk(3.0, (0, 101), (1, 102)), chunk(4.0, (0, 103))]
    assert first_arrivals(chunks, {0, 1, 2}, 100) == {0: 3.0, 1: 1.0}
    assert first_arrivals(chunks, {0}, 103) == {}


def test_a_pause_counts_where_part_of_it_is_in_the_time_that_is_looked_at() -> None:
    chunks = [chunk(at, (0, 0)) for at in (0.0, 1.0, 1.5, 2.75, 8.0)] + [chunk(9.0, (1, 0))]
    assert longest_gaps(chunks, {0, 1, 2}, since=1.25, until=2.0) == {0: 1.25, 1: 0.0, 2: 0.0}
    assert longest_gaps(chunks, {0}, since=1.25, until=3.0) == {0: 5.25}


def test_the_curve_counts_what_came_in_each_step_and_leaves_the_rest_out() -> None:
    chunks = [chunk(0.5, (0, 0)), chunk(1.0, (0, 0), (1, 0)), chunk(1.3, (1, 0), (1, 0)), chunk(2.0, (0, 0))]
    assert curve(chunks, {0}, start=1.0, end=2.0, step_s=0.25) == ([1, 0, 0, 0], [1, 2, 0, 0])


def test_a_percentile_of_few_is_one_of_them_and_never_a_smaller_one() -> None:
    assert Quantiles.of([]) is None
    found = Quantiles.of([3.0, 1.0, 2.0])
    assert found == Quantiles(3, 2.0, 3.0, 3.0, 3.0)
    assert found.as_json() == {"count": 3, "p50_ms": 2.0, "p90_ms": 3.0, "p99_ms": 3.0, "max_ms": 3.0}


def test_an_offset_that_goes_back_is_noticed() -> None:
    watch = OffsetsWatch({"bootstrap.servers": "127.0.0.1:9"}, "group", "in", 2)
    first, second = TopicPartition("in", 0), TopicPartition("in", 1)
    for committed in ({first: 5, second: 1}, {first: 0, second: 3}, {first: 4, second: 3}, {first: 6, second: 3}):
        watch.note(committed)
    assert (watch.looks, watch.steps_back) == (4, ["in-0 from 5 to 4"])


def test_the_load_ends_when_the_file_appears(tmp_path: Path) -> None:
    pace = UntilFile(Schedule(constant_arrivals(1000.0), 10), tmp_path / "stop")
    assert pace.due(2_000) == 3
    assert pace.take(3, 2_000).tolist() == [0, 1000, 2000]
    assert pace.next_us == 3000
    (tmp_path / "stop").touch()
    assert pace.due(9_000) == 0
    assert pace.next_us is None


def a_result(**changes: object) -> CaseResult:
    steps = round((CURVE_BEFORE_S + CURVE_AFTER_S) / CURVE_STEP_S)
    one = Round(
        0, "kill <node>", ["n0000"], [1, 2], 251.0, 252.0, {1: 300.0, 2: 310.5}, {}, "ours", {"silence_ms": 250.0}
    )
    one.curve = ([3] * steps, [0] * steps)
    for name, value in changes.items():
        setattr(one, name, value)
    return CaseResult(CASES[1], Level.IDLE, seed=7, rounds=[one], watched_s=36.0, mistaken=1)


def test_the_report_holds_figures_and_a_picture_and_says_what_did_not_hold(tmp_path: Path) -> None:
    files = write_report(tmp_path / "chaos.json", [a_result(complaints=["it smelled"])], {"broker": "none"})
    assert [file.name for file in files] == ["chaos.json", "chaos.md", "chaos-node-killed-idle.svg"]
    (case,) = json.loads(files[0].read_bytes())["cases"]
    assert (case["row"], case["clean"], case["mistaken_verdicts"], case["judge"]) == ("1", False, 1, None)
    assert (case["detection"]["p50_ms"], case["takeover"]["max_ms"], case["pause"]) == (251.0, 310.5, None)
    assert case["rounds"][0]["takeover_ms"] == {"1": 300.0, "2": 310.5}
    page = files[1].read_text()
    assert "| 1 | node-killed | idle | 1 | ? | ? | 0 | 251 | 251 | 251 | 310 | 310 | 310 | 330 / 450 |" in page
    assert "round 0: it smelled" in page
    assert "![chaos-node-killed-idle.svg]" in page
    texts = [node.text for node in ET.parse(files[2]).iter() if node.text and node.text.strip()]
    assert "kill <node>: 2 partitions of the struck" in texts
    assert "all back 310" in texts


def test_a_page_without_results_has_a_table_without_rows() -> None:
    assert page_of([], {}, []).count("\n|") == 2


@pytest.mark.parametrize(
    ("settings", "mistake"),
    [
        ({"rows": ("99",)}, "there is no row '99'"),
        ({"cases": ("node-kiled",)}, "there is no case 'node-kiled'"),
        ({"rounds": 0}, "rounds is 0"),
        ({"levels": ()}, "no level is named"),
        ({"warm_up_s": -1.0}, "the warm-up is -1 s"),
        ({"warm_up_s": float("nan")}, "the warm-up is nan s"),
    ],
)
def test_wrong_settings_are_told(settings: dict[str, object], mistake: str) -> None:
    with pytest.raises(SettingsError, match=mistake):
        ChaosSettings(**settings)  # type: ignore[arg-type]


def test_each_case_has_a_name_of_its_own_and_rows_choose_cases() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert [case.name for case in ChaosSettings(rows=("9", "14")).chosen()] == ["cold-start", "clock-stepped"]
    assert len(ChaosSettings().chosen()) == len(CASES)
    assert set(ROWS) >= set(map(str, range(1, 17)))
