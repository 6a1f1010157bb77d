"""When a shard commits: soon when it keeps up, seldom when it has a backlog, and at once when it holds much."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.processor.pacing import Commits, Gathered, Pacing, commit_wait_s, default_interval_ms

PACING = Pacing(interval_s=0.012, backlog_interval_s=0.1, pause_s=0.004, gathered_bytes_max=1000)
KEEPS_UP = Gathered(10, 100, records_at_hand=9)
BEHIND = Gathered(10, 100, records_at_hand=11)
FULL = Gathered(10, 1000, records_at_hand=11)


@pytest.mark.parametrize(
    ("gathered", "since_start", "since_end", "usual", "wait_s"),
    [
        (KEEPS_UP, 1.0, 1.0, 0.0, 0.0),
        (KEEPS_UP, 0.005, 0.004, 0.001, 0.007),
        (KEEPS_UP, 0.013, 0.012, 0.001, 0.0),
        (KEEPS_UP, 0.014, 0.001, 0.013, 0.012),  # where commits take 13 ms, a rest is as long
        (KEEPS_UP, 0.014, 0.001, 0.003, 0.003),  # a single one of 13 ms is followed by the usual rest
        (KEEPS_UP, 0.503, 0.001, 0.5, 0.099),  # where they take half a second, by the longest interval
        (BEHIND, 0.020, 0.010, 0.01, 0.080),
        (BEHIND, 0.1, 0.09, 0.01, 0.0),
        (FULL, 0.020, 0.010, 0.01, 0.0),
        (FULL, 0.020, 0.001, 0.02, 0.003),
    ],
)
def test_a_commit_is_due(gathered: Gathered, since_start: float, since_end: float, usual: float, wait_s: float) -> None:
    now = 50.0
    commits = Commits(now - since_start, now - since_end, usual)
    assert commit_wait_s(PACING, gathered, commits, now=now) == pytest.approx(wait_s)


def test_the_first_commit_of_a_run_waits_for_nothing() -> None:
    assert commit_wait_s(PACING, BEHIND, Commits(), now=0.0) == 0


def test_what_is_usual_follows_a_lasting_change_and_hardly_a_single_one() -> None:
    commits = Commits()
    for number in range(40):
        commits = commits.followed_by(number, number + 0.004)
    assert commits.usual_s == pytest.approx(0.004, rel=0.01)
    assert commits.followed_by(50, 50.040).usual_s < 0.010
    for number in range(60, 100):
        commits = commits.followed_by(number, number + 0.040)
    assert commits.usual_s == pytest.approx(0.040, rel=0.01)


def test_few_shards_commit_more_often_than_many_and_no_shard_too_seldom() -> None:
    assert [default_interval_ms(shards) for shards in (1, 2, 3, 4, 100)] == [6, 8, 12, 12, 12]


times = st.floats(0, 1e6, allow_nan=False)
counts = st.integers(0, 2000)


@settings(max_examples=200, deadline=None)
@given(counts, counts, counts, times, times, times, times)
def test_the_wait_is_never_negative_never_longer_than_the_longest_interval_and_over_when_it_is_over(
    records: int, byte_count: int, at_hand: int, start: float, took: float, usual: float, since: float
) -> None:
    gathered = Gathered(records, byte_count, at_hand)
    commits = Commits(start, start + took, usual)
    now = start + took + since
    wait_s = commit_wait_s(PACING, gathered, commits, now=now)
    assert 0 <= wait_s <= PACING.backlog_interval_s + 1e-6
    # Floats this large are a tenth of a nanosecond apart; the caller asks again in any case.
    assert commit_wait_s(PACING, gathered, commits, now=now + wait_s + 1e-9) < 1e-9


@settings(max_examples=100, deadline=None)
@given(counts, counts, counts, times, times)
def test_more_at_hand_never_makes_a_commit_come_sooner(
    records: int, byte_count: int, at_hand: int, start: float, since: float
) -> None:
    commits = Commits(start, start, 0.0)
    waits = [
        commit_wait_s(PACING, Gathered(records, byte_count, hand), commits, now=start + since) for hand in (0, at_hand)
    ]
    assert waits[0] <= waits[1]
