"""The load test's report: targets are shown as reached or missed, and only wrong results fail the command."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import orjson
import pytest
from rich.console import Console

from millstream.loadgen.accounting import Balance
from millstream.loadgen.latency import Percentiles
from millstream.loadgen.load_case import CaseResult, LoadCase, UnderWay
from millstream.loadgen.load_report import latency_table, misses, process_table, remarks, result_as_json
from millstream.loadgen.load_test import LoadTestSettings, exit_code, main
from millstream.loadgen.process_watch import ProcessWatch, Use, slope_per_minute
from millstream.loadgen.produce import SendReport
from millstream.loadgen.verdict import Verdict
from millstream.loadgen.verify import InputReading
from millstream.processor.errors import SettingsError, UnavailableError


def _result(
    *,
    rate: float = 20_000,
    p50: float = 10,
    p99: float = 30,
    lost: int = 0,
    failed: int = 0,
    late_ms: float = 1,
    under_way: tuple[float, float] = (100.0, 100.0),
) -> CaseResult:
    balance = Balance(
        inputs=100,
        inputs_repeated=0,
        inputs_foreign=0,
        outputs=100 - lost,
        lost=lost,
        doubled=0,
        unexpected=0,
        altered=0,
        reordered=0,
        scattered=0,
        seen=100 - lost,
    )
    verdict = Verdict(
        balance=balance,
        effects_each=1,
        events_per_s=rate,
        latency=Percentiles(p50, p99, p99, p99, p99, p99),
        timeline=(),
        output_pause_ms=1,
        partition_pause_ms=1,
        uncommitted_records=0,
        offsets_behind=0,
        offenders={},
        remarks=(),
    )
    sending = SendReport(
        events=100,
        delivered=100 - failed,
        failed=failed,
        first_error="refused" if failed else None,
        seconds=1,
        started_us=0,
        lateness=Percentiles(0, 0, late_ms, late_ms, late_ms, late_ms),
    )
    case = LoadCase(rate=rate, seconds=60, warm_up_s=10, workers=1, partitions=6, seed=7)
    return CaseResult(case, verdict, sending, {"broker": Use(50.4, 500, 510, 1.25)}, under_way)


def test_a_reached_target_is_told_and_a_missed_one_with_its_figure() -> None:
    assert misses(_result()) == []
    assert misses(_result(p50=12.5)) == ["p50 12.5 ms > 12"]
    assert misses(_result(p99=36)) == ["p99 36.0 ms > 35"]
    assert misses(_result(rate=200_000, p50=90, p99=100)) == []
    assert result_as_json(_result(p99=36))["reached"] is False
    assert result_as_json(_result())["reached"] is True


def test_a_rate_without_a_target_is_neither_reached_nor_missed() -> None:
    assert result_as_json(_result(rate=1234, p99=5000))["reached"] is None


def test_lag_that_grows_misses_the_target_whatever_the_latencies_are() -> None:
    assert misses(_result(under_way=(1_000, 6_000))) == []
    assert misses(_result(under_way=(1_000, 60_000))) == ["lag grew from 1,000 to 60,000 events"]


def test_a_missed_target_passes_and_a_lost_or_undelivered_event_does_not() -> None:
    assert exit_code([_result(p99=10_000)]) == 0
    assert exit_code([_result(), _result(lost=1)]) == 1
    assert exit_code([_result(failed=1)]) == 1


def test_a_generator_that_was_late_or_did_not_deliver_says_so() -> None:
    assert remarks(_result()) == []
    (late,) = remarks(_result(late_ms=250))
    assert "250 ms late" in late
    (failed,) = remarks(_result(failed=3))
    assert "3 events were not delivered: refused" in failed


def test_tables_and_json_hold_every_rate() -> None:
    results = [_result(), _result(rate=200_000, p99=150), replace(_result(), uses={})]
    text = io.StringIO()
    console = Console(file=text, width=200)
    console.print(latency_table(results))
    console.print(process_table(results))
    assert "200,000" in text.getvalue()
    assert "p99 150.0 ms > 100" in text.getvalue()
    assert "50 % · 500 → 510 (+1.25)" in text.getvalue()
    assert orjson.loads(orjson.dumps(result_as_json(results[0])))["processes"]["broker"]["slope_mb_per_minute"] == 1.25


def test_events_under_way_are_compared_between_the_middle_and_the_end() -> None:
    under_way = UnderWay()
    assert under_way.middle_and_end() == (0, 0)
    for number in [900, 900, 900, 10, 10, 10, 50, 60, -5]:
        under_way.note(number)
    assert under_way.middle_and_end() == (10, 50)


def test_memory_that_settles_has_no_slope_and_memory_that_leaks_has_its_rate() -> None:
    seconds = np.arange(0, 300, 0.5).tolist()
    assert slope_per_minute(seconds, np.minimum(200, 100 + 2 * np.array(seconds)).tolist()) == pytest.approx(
        0, abs=1e-6
    )
    assert slope_per_minute(seconds, [200 + second / 60 * 3 for second in seconds]) == pytest.approx(3)
    assert slope_per_minute(seconds[:100], seconds[:100]) is None


def test_a_watched_process_that_works_has_cpu_time_and_memory_and_one_that_is_gone_is_told() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        watch = ProcessWatch({"busy": [busy.pid], "both": [busy.pid, os.getpid()]})
        assert watch.uses() == {}
        watch.look()
        deadline = time.monotonic() + 30
        while (uses := watch.uses()).get("busy", Use(0, 0, 0, None)).cpu_percent == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
            watch.look()
        busy.kill()
    assert uses["busy"].cpu_percent > 0
    assert uses["both"].mb_at_last > uses["busy"].mb_at_last > 1
    with pytest.raises(UnavailableError, match=f"process {busy.pid}"):
        watch.look()


def test_a_soak_has_its_own_rate_and_length_and_a_judge_that_reads_along() -> None:
    (case,) = LoadTestSettings(rates=(50_000,), soak_minutes=2).cases()
    assert case.events == 6_000_000
    assert case.input_reading is InputReading.ALONGSIDE
    assert [case.input_reading for case in LoadTestSettings().cases()] == [InputReading.AFTERWARDS] * 3


def test_a_broker_is_warmed_at_the_highest_rate_unless_it_is_told_not_to_be() -> None:
    case = LoadTestSettings(rates=(20_000, 200_000, 50_000), seconds=60, broker_warm_up_s=30).broker_warm_up()
    assert case is not None
    assert (case.rate, case.seconds) == (200_000, 30)
    assert LoadTestSettings(broker_warm_up_s=0).broker_warm_up() is None


def test_every_wrong_setting_is_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        LoadTestSettings(rates=(0,), seconds=0, warm_up_s=0, broker_warm_up_s=-1, workers=0, partitions=0, seed=-1)
    assert len(caught.value.mistakes) == 7


@pytest.mark.parametrize("flags", [["--rates", "fast"], ["--rates", "nan"], ["--json", "/nowhere/at/all.json"]])
def test_what_cannot_work_ends_with_2_before_anything_starts(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags) == 2
    assert "load-test: " in capsys.readouterr().err
