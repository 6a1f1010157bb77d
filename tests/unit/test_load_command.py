"""The generator judges itself: a load that was not what was asked for does not count as a success."""

from __future__ import annotations

import argparse

import pytest

from millstream.loadgen import load_command
from millstream.loadgen.latency import Percentiles
from millstream.loadgen.load_command import load_mistakes
from millstream.loadgen.produce import SendReport
from millstream.processor.errors import SettingsError


def _report(*, failed: int = 0, p99: float | None = 1.0) -> SendReport:
    return SendReport(
        events=1000,
        delivered=1000 - failed,
        failed=failed,
        first_error="the broker was away" if failed else None,
        seconds=2.0,
        started_us=0,
        lateness=None if p99 is None else Percentiles(0.1, 0.5, p99, p99, p99, p99 * 2),
    )


def test_a_load_that_kept_its_schedule_has_no_mistakes() -> None:
    assert load_mistakes(_report(), lateness_ms_max=100) == []
    assert load_mistakes(_report(p99=None), lateness_ms_max=100) == []
    assert _report().events_per_s == 500


def test_a_late_generator_says_by_how_much() -> None:
    (mistake,) = load_mistakes(_report(p99=250), lateness_ms_max=100)
    assert "250 ms" in mistake
    assert "500 ms at worst" in mistake


def test_events_that_failed_are_told_with_the_reason() -> None:
    (mistake,) = load_mistakes(_report(failed=3), lateness_ms_max=100)
    assert "3 of 1000" in mistake
    assert "the broker was away" in mistake


def _execute(*flags: str) -> int:
    parser = argparse.ArgumentParser()
    load_command.configure(parser)
    return load_command.execute(parser.parse_args(["--topic", "t", "--brokers", "127.0.0.1:1", *flags]))


@pytest.mark.parametrize(
    "flags",
    [
        ["--rate", "fast"],
        ["--rate", "0"],
        ["--rate", "-5"],
        ["--rate", "nan"],
        ["--rate", "inf"],
        ["--rate", "max"],
        ["--seconds", "-1"],
        ["--seconds", "nan"],
        ["--events", "0"],
        ["--events", "99999999999"],
        ["--keys", "0"],
        ["--payload-bytes", "many"],
        ["--payload-bytes", "-5"],
        ["--payload-bytes", "400-90"],
        ["--keys-distribution", "zipf", "--zipf-s", "0"],
        ["--zipf-s", "nan"],
        ["--arrivals", "bursty", "--burst-factor", "1"],
        ["--arrivals", "bursty", "--burst-period-s", "nan"],
    ],
)
def test_settings_that_make_no_load_are_refused_before_anything_is_connected(flags: list[str]) -> None:
    with pytest.raises(SettingsError):
        _execute(*flags)
