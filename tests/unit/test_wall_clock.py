"""A process's wall clock is stepped while it runs; nobody else's is, and no monotonic clock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from millstream.loadgen.wall_clock import WallClock
from millstream.processor.errors import UnavailableError

needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler, or not Linux"
)
# Tells its clocks each time that it is asked, one of them by the clock of a process that it starts.
ASKED = """
import datetime, subprocess, sys, time
for line in sys.stdin:
    child = subprocess.run(["date", "+%s"], stdout=subprocess.PIPE, check=True).stdout.decode().strip()
    print(time.time(), datetime.datetime.now().timestamp(), time.time_ns() / 1e9, child, time.monotonic(), flush=True)
"""
HOUR_S, SLACK_S = 3600, 60


@dataclass
class Asked:
    process: subprocess.Popen[str]
    clock: WallClock

    def ahead_s(self) -> list[float]:
        """By how much each of its wall clocks is ahead of ours, and last its monotonic one."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        *walls, monotonic = map(float, self.process.stdout.readline().split())
        return [*(wall - time.time() for wall in walls), monotonic - time.monotonic()]


@pytest.fixture
def asked() -> Iterator[Asked]:
    with (
        WallClock() as clock,
        subprocess.Popen(
            [sys.executable, "-c", ASKED],
            env=clock.environ(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        yield Asked(process, clock)
        assert process.stdin is not None
        process.stdin.close()


@needs_compiler
def test_wall_clocks_are_stepped_either_way_and_monotonic_ones_are_not(asked: Asked) -> None:
    expected_s = 0.0
    for step_s in (0, HOUR_S, -2 * HOUR_S, 0.25, 5 * HOUR_S):
        before = time.time()
        strike = asked.clock.step(step_s)
        expected_s += step_s
        assert asked.clock.offset_s == expected_s
        *walls, monotonic = asked.ahead_s()
        assert walls == pytest.approx([expected_s] * 4, abs=SLACK_S)
        assert abs(monotonic) < SLACK_S
        # Ours goes on as it did.
        assert before <= strike.ordered.wall_s <= strike.done.wall_s <= time.time() < before + SLACK_S


@needs_compiler
def test_what_was_to_be_loaded_before_still_is() -> None:
    with WallClock() as clock:
        environ = clock.environ({"LD_PRELOAD": "/lib/other.so", "A": "b"})
        assert environ["LD_PRELOAD"].endswith("clock.so:/lib/other.so")
        assert environ["A"] == "b"


@needs_compiler
def test_a_process_whose_clock_is_gone_says_so_rather_than_go_on_with_another() -> None:
    with WallClock() as clock:
        environ = {**clock.environ(os.environ), "MILLSTREAM_CLOCK_OFFSET": "/nowhere"}
        refused = subprocess.run(["true"], env=environ, capture_output=True, text=True, check=False)
    assert refused.returncode == 127
    assert "MILLSTREAM_CLOCK_OFFSET=/nowhere" in refused.stderr


def test_without_a_compiler_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UnavailableError, match="apt-get install gcc"):
        WallClock().__enter__()
