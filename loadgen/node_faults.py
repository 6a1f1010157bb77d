"""What befalls a whole node at once: an agent and all of its workers die, freeze, and wake. Needs Linux's /proc.

    struck = kill(agent_pid)            as a machine that loses power
    struck = freeze(agent_pid)          as a machine that is stopped in its tracks
    struck = thaw(agent_pid)            and goes on as if nothing had happened

Each answers when every process is found to be dead, stopped, or running, with the instant before the first signal and
the one after that was seen.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millstream.loadgen.moments import Moment, Strike
from millstream.processor.errors import UnavailableError

_EFFECT_S = 5.0
_POLL_S = 0.0005
_DEAD = frozenset("ZX")
_STOPPED = frozenset("Tt")
_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it. `state` is one letter: R runs, S sleeps, T is stopped, Z is dead and not reaped."""

    pid: int
    state: str
    parent: int
    group: int
    started_ticks: int


def node_processes(agent: int) -> list[Process]:
    """The agent, everything that descends from it, and all of its process group if it leads one; dead ones left out.

    The group also holds workers whose agent is dead already. Raises UnavailableError without /proc.
    """
    everything = _all_processes()
    members = {process.pid for process in everything if process.pid == agent or process.group == agent}
    while True:
        more = {process.pid for process in everything if process.parent in members} - members
        if not more:
            break
        members |= more
    return [process for process in everything if process.pid in members and process.state not in _DEAD]


def kill(agent: int) -> Strike:
    """SIGKILL to all of a node. Raises UnavailableError where there is none, or where it does not die."""
    return _signalled(agent, signal.SIGKILL, "kill", lambda process: process is None or process.state in _DEAD)


def freeze(agent: int) -> Strike:
    """SIGSTOP to all of a node: not one of its threads runs. Raises UnavailableError, as `kill`."""
    return _signalled(agent, signal.SIGSTOP, "freeze", lambda process: process is None or process.state in _STOPPED)


def thaw(agent: int) -> Strike:
    """SIGCONT to all of a node. Raises UnavailableError, as `kill`."""
    return _signalled(agent, signal.SIGCONT, "thaw", lambda process: process is None or process.state not in _STOPPED)


def _signalled(agent: int, sent: signal.Signals, fault: str, is_done: Callable[[Process | None], bool]) -> Strike:
    processes = node_processes(agent)
    if not processes:
        raise UnavailableError(f"there is no node of process {agent} to {fault}; did it end by itself?")
    ordered = Moment.now()
    reached: dict[int, int] = {}
    # What is started while the signals are under way is met in the next round.
    for _ in range(_ROUNDS):
        new = [process for process in processes if reached.get(process.pid) != process.started_ticks]
        if not new:
            break
        _send(agent, [process.pid for process in new], sent)
        reached |= {process.pid: process.started_ticks for process in new}
        processes = node_processes(agent)
    _await_effect(reached, fault, is_done)
    return Strike(fault, f"node of process {agent}", ordered, Moment.now())


def _send(agent: int, pids: list[int], sent: signal.Signals) -> None:
    try:
        # One call for all of them: between the first and the last nothing of the node runs on for long.
        os.killpg(agent, sent)
    except (ProcessLookupError, PermissionError):
        # The agent leads no group.
        pass
    for pid in pids:
        try:
            os.kill(pid, sent)
        except ProcessLookupError:
            # It is gone, which only a SIGKILL can have wanted; the wait will tell.
            pass


def _await_effect(reached: dict[int, int], fault: str, is_done: Callable[[Process | None], bool]) -> None:
    deadline = time.monotonic() + _EFFECT_S
    left = set(reached)
    while left := {pid for pid in left if not is_done(_process(pid, reached[pid]))}:
        if time.monotonic() > deadline:
            raise UnavailableError(f"processes {sorted(left)} took no notice of {fault} within {_EFFECT_S:g} s")
        time.sleep(_POLL_S)


def _all_processes() -> list[Process]:
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError as error:
        raise UnavailableError("a node's processes are found in /proc; this needs Linux") from error
    found = (_process(pid) for pid in pids)
    return [process for process in found if process is not None]


def _process(pid: int, started_ticks: int | None = None) -> Process | None:
    """One process; None where it is gone, or where its number is another's by now."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in brackets and may hold anything, brackets too. `man 5 proc` counts the state as field 3.
    fields = text.rpartition(")")[2].split()
    process = Process(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[19]))
    return process if started_ticks in (None, process.started_ticks) else None
