"""Timings go together, or the user reads all that does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.processor.errors import SettingsError
from millstream.processor.timings import Timings, check_timings

OTHERS = {"commit_timeout_s": 10.0, "transaction_timeout_s": 30.0}


def mistakes(timings: Timings, **others: float) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        check_timings(timings, **{**OTHERS, **others})
    return caught.value.mistakes


def test_the_defaults_go_together() -> None:
    check_timings(Timings(), **OTHERS)


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({"own_beats": 4}, ("0.25", "0.25")),
        ({"beat_wait_s": 0.21}, ("0.26", "0.25")),
        ({"own_late_s": 0.06}, ("0.06", "0.05")),
        ({"silence_max_s": 0.24, "deviations": 1.0}, ("0.25", "0.24")),
        ({"deviations": 20.0}, ("0.45", "0.4")),
        ({"silence_max_s": 1.1}, ("1.1", "1 s")),
        ({"reconnect_max_s": 0.9}, ("1.05", "1 s")),
        ({"hold_s": 0.09}, ("0.1", "0.09")),
        ({"verdict_step_s": 0.3}, ("0.3", "0.3")),
        ({"verdict_valid_s": 1.5}, ("1.5", "1 s")),
        ({"resend_s": 5.0}, ("5 s", "5 s")),
        ({"ledger_wait_s": 1.0}, ("1 s", "1 s")),
    ],
)
def test_each_broken_relation_is_told_with_both_numbers(changes: dict[str, float], numbers: tuple[str, str]) -> None:
    told = mistakes(replace(Timings(), **changes))  # type: ignore[arg-type]
    assert len(told) == 1
    for number in numbers:
        assert number in told[0]
    assert any(name in told[0] for name in changes)


def test_bounds_of_others_count_too() -> None:
    (told,) = mistakes(Timings(), commit_timeout_s=30.0)
    assert told.startswith("commit_timeout_s is 30 s and must be less than transaction_timeout_s, which is 30 s")


def test_all_mistakes_come_at_once() -> None:
    told = mistakes(Timings(own_beats=9, hold_s=0.01, window=3, snapshot_records=0))
    assert len(told) == 4
    assert any("window is 3" in mistake for mistake in told)
    assert any("snapshot_records is 0: it must be more than 0" in mistake for mistake in told)
