"""When a shard commits: soon when it keeps up, seldom when it has a backlog, and at once when it holds much."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.processor.pacing import Gathered, Pacing, commit_wait_s

PACING = Pacing(interval_s=0.012, backlog_interval_s=0.1, pause_s=0.004, gathered_bytes_max=1000)
KEEPS_UP = Gathered(10, backlog=False)
BEHIND = Gathered(10, backlog=True)
FULL = Gathered(1000, backlog=True)


@pytest.mark.parametrize(
    ("gathered", "since_start", "since_end", "wait_s"),
    [
        (KEEPS_UP, 1.0, 1.0, 0.0),
        (KEEPS_UP, 0.005, 0.004, 0.007),
        (KEEPS_UP, 0.013, 0.012, 0.0),
        (KEEPS_UP, 0.014, 0.001, 0.012),  # a commit of 13 ms is followed by a rest of 13 ms
        (KEEPS_UP, 0.503, 0.001, 0.099),  # and one of half a second by the longest interval
        (BEHIND, 0.020, 0.010, 0.080),
        (BEHIND, 0.1, 0.09, 0.0),
        (FULL, 0.020, 0.010, 0.0),
        (FULL, 0.020, 0.001, 0.003),
    ],
)
def test_a_commit_is_due(gathered: Gathered, since_start: float, since_end: float, wait_s: float) -> None:
    now = 50.0
    found = commit_wait_s(PACING, gathered, now=now, last_start=now - since_start, last_end=now - since_end)
    assert found == pytest.approx(wait_s)


times = st.floats(0, 1e6, allow_nan=False)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2000), st.booleans(), times, times, times)
def test_the_wait_is_never_negative_never_longer_than_the_longest_interval_and_over_when_it_is_over(
    byte_count: int, backlog: bool, start: float, took: float, since: float
) -> None:
    gathered = Gathered(byte_count, backlog)
    end = start + took
    now = end + since
    wait_s = commit_wait_s(PACING, gathered, now=now, last_start=start, last_end=end)
    assert 0 <= wait_s <= PACING.backlog_interval_s + 1e-6
    # Floats this large are a tenth of a nanosecond apart; the caller asks again in any case.
    assert commit_wait_s(PACING, gathered, now=now + wait_s + 1e-9, last_start=start, last_end=end) < 1e-9


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2000), times, times)
def test_a_backlog_never_makes_a_commit_come_sooner(byte_count: int, start: float, since: float) -> None:
    at = {"now": start + since, "last_start": start, "last_end": start}
    waits = [commit_wait_s(PACING, Gathered(byte_count, backlog), **at) for backlog in (False, True)]
    assert waits[0] <= waits[1]
