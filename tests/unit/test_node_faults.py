"""A node of several processes is killed, frozen and thawed as one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from millstream.loadgen.node_faults import freeze, kill, node_processes, thaw
from millstream.processor.errors import UnavailableError

# An agent with two workers, one of which has a child and one of which has left the group.
AGENT = """
import subprocess, sys
deep = "import subprocess; subprocess.Popen(['sleep', '1000']); print('ready', flush=True); input()"
workers = [
    subprocess.Popen([sys.executable, "-c", deep], stdin=subprocess.PIPE, stdout=subprocess.PIPE),
    subprocess.Popen(["sleep", "1000"], start_new_session=True),
]
workers[0].stdout.readline()
print("ready", flush=True)
input()
"""
PROCESSES = 4
END_S = 20


@pytest.fixture(params=[True, False], ids=["leads a group", "in our group"])
def agent(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", AGENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=request.param,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        left = [found.pid for found in node_processes(process.pid)]
        yield process
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def states(agent: subprocess.Popen[str]) -> list[str]:
    return [process.state for process in node_processes(agent.pid)]


def test_all_of_a_node_is_found(agent: subprocess.Popen[str]) -> None:
    found = node_processes(agent.pid)
    assert len(found) == PROCESSES
    assert agent.pid in [process.pid for process in found]
    assert os.getpid() not in [process.pid for process in found]


def test_a_kill_leaves_nothing_alive(agent: subprocess.Popen[str]) -> None:
    pids = [process.pid for process in node_processes(agent.pid)]
    strike = kill(agent.pid)
    assert agent.wait(END_S) == -signal.SIGKILL
    assert node_processes(agent.pid) == []
    assert [pid for pid in pids if pid != agent.pid and runs(pid)] == []
    assert strike.fault == "kill"
    assert strike.took_s >= 0


def runs(pid: int) -> bool:
    return any(process.state not in "ZX" for process in node_processes(pid) if process.pid == pid)


def test_a_frozen_node_stands_still_and_goes_on_when_it_is_thawed(agent: subprocess.Popen[str]) -> None:
    frozen = freeze(agent.pid)
    assert states(agent) == ["T"] * PROCESSES
    thawed = thaw(agent.pid)
    assert "T" not in states(agent)
    assert frozen.done.monotonic_s <= thawed.ordered.monotonic_s
    # It hears the end of its input, which it could not while it stood still.
    assert agent.stdin is not None
    agent.stdin.close()
    agent.wait(END_S)


def test_a_frozen_node_can_be_killed(agent: subprocess.Popen[str]) -> None:
    freeze(agent.pid)
    kill(agent.pid)
    assert node_processes(agent.pid) == []


def test_workers_of_a_dead_agent_that_share_its_group_are_still_its_node() -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL).pid, flush=True)"
    orphaned = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, process_group=0, check=True)
    worker = int(orphaned.stdout)
    group = os.getpgid(worker)
    assert [process.pid for process in node_processes(group)] == [worker]
    kill(group)
    assert node_processes(group) == []


def test_a_node_that_is_gone_is_an_error_that_says_so(agent: subprocess.Popen[str]) -> None:
    kill(agent.pid)
    agent.wait(END_S)
    with pytest.raises(UnavailableError, match=f"no node of process {agent.pid} to freeze"):
        freeze(agent.pid)
