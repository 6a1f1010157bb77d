"""What an agent may have before others, and that nothing it starts has it as well. Linux alone knows such things."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no scheduling policies")

# What it is told comes before and after it takes what it can get; then it says how it, a thread and a child stand.
_PROGRAM = """
import json, os, sys, threading
from millstream.processor.precedence import take_precedence

def standing():
    return [os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, os.getpriority(os.PRIO_PROCESS, 0)]

before, = sys.argv[1:]
exec(before)
taken = take_precedence().value
of_thread = []
thread = threading.Thread(target=lambda: of_thread.extend(standing()))
thread.start()
thread.join()
reads, writes = os.pipe()
if os.fork() == 0:
    os.write(writes, json.dumps(standing()).encode())
    os._exit(0)
of_child = json.loads(os.read(reads, 100))
os.wait()
print(json.dumps([taken, standing(), of_thread, of_child]))
"""
# A test run may itself have been started with a niceness.
_ORDINARY = "os.setpriority(os.PRIO_PROCESS, 0, 0)"
_AS_NOBODY = "os.setgroups([]); os.setgid(65534); os.setuid(65534)"
_MAY = os.geteuid() == 0


def _taken(before: str) -> tuple[str, list[int], list[int], list[int]]:
    run = subprocess.run([sys.executable, "-c", _PROGRAM, before], stdout=subprocess.PIPE, check=True)
    taken, own, of_thread, of_child = json.loads(run.stdout)
    return taken, own, of_thread, of_child


@pytest.mark.skipif(not _MAY, reason="needs CAP_SYS_NICE")
def test_an_agent_that_may_comes_before_all_ordinary_processes_and_what_it_starts_does_not() -> None:
    taken, own, of_thread, of_child = _taken(_ORDINARY)
    ordinary = [os.SCHED_OTHER, 0]
    if taken != "real-time":
        pytest.skip(f"this machine lets even root have no more than {taken}")
    assert own == [os.SCHED_RR, 0]
    assert of_thread == ordinary
    assert of_child == ordinary


@pytest.mark.skipif(not _MAY, reason="needs root to become another user")
def test_one_that_may_not_goes_on_as_it_is() -> None:
    taken, own, *_ = _taken(f"{_ORDINARY}; {_AS_NOBODY}")
    assert taken == "ordinary"
    assert own == [os.SCHED_OTHER, 0]


def test_what_was_chosen_for_it_is_kept() -> None:
    niceness = max(5, os.getpriority(os.PRIO_PROCESS, 0))
    taken, own, _, of_child = _taken(f"os.setpriority(os.PRIO_PROCESS, 0, {niceness})")
    assert taken == "chosen"
    assert own == of_child == [os.SCHED_OTHER, niceness]
