"""SIGKILL at every point of a commit: whatever was in hand, each input has its effect exactly once afterwards."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from outside import Outside

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

_SCRIPT = Path(__file__).with_name("killed_run.py")
_REQUESTS = ("InitProducerIdRequest", "FetchRequest", "ProduceRequest", "TxnOffsetCommitRequest", "EndTxnRequest")
_POINTS = ("before", "sent", "answered")


def run_killed(
    outside: Outside, name: str, source: str, target: str, guarantee: str, request: str, point: str, count: int
) -> int:
    """The exit code: -9 where the process met its point, 0 where it reached the end of its input before."""
    command = [sys.executable, str(_SCRIPT), outside.bootstrap, name, source, target, guarantee]
    return subprocess.run([*command, request, point, str(count)], timeout=90, check=False).returncode


def test_a_kill_at_any_point_of_a_commit_neither_loses_nor_doubles(outside: Outside) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    source, target = outside.topic("in", partitions=4), outside.topic("out", partitions=4)
    name = outside.unique("killed")
    points = [(request, point) for request in _REQUESTS for point in _POINTS]
    choose.shuffle(points)
    killed = 0
    for number, (request, point) in enumerate(points):
        outside.load(source, 1000, first_id=1000 * number)
        # Each of the two shards sends each request once at least, however much one commit takes in.
        code = run_killed(outside, name, source, target, "exactly-once", request, point, choose.randint(1, 2))
        assert code in (0, -signal.SIGKILL)
        killed += code == -signal.SIGKILL
    # A point that is not reached makes no test; most must have been.
    assert killed >= len(points) - 3
    assert run_killed(outside, name, source, target, "exactly-once", "none", "", 0) == 0
    verdict = outside.judge(source, target, group=name)
    assert verdict.is_clean, verdict.as_json()


def test_the_same_kill_doubles_at_least_once_so_this_test_can_fail(outside: Outside) -> None:
    source, target = outside.topic("in", partitions=4), outside.topic("out", partitions=4)
    name = outside.unique("plain")
    outside.load(source, 1000)
    assert run_killed(outside, name, source, target, "at-least-once", "ProduceRequest", "answered", 1) == -9
    assert run_killed(outside, name, source, target, "at-least-once", "none", "", 0) == 0
    verdict = outside.judge(source, target, group=name)
    assert verdict.balance.doubled > 0
    assert verdict.balance.lost == 0
