"""Starts processes of pretended nodes, hears their reports, and kills one. A context manager."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import msgspec

from millstream.loadgen.moments import Moment
from millstream.loadgen.pretended_nodes import REPORT_S, Herd, NodeReport, ProcessReport
from millstream.processor.errors import UnavailableError

_REPORT_BYTES: Final = 1 << 20
_REPORTS_KEPT: Final = 200
_END_S: Final = 5.0
_POLL_S: Final = 0.05
# A process that has not reported for so long is taken for dead, wherever nobody killed it.
_SILENT_S: Final = 10 * REPORT_S


class NodeHerds:
    """Processes of nodes of one pipeline. Reports are kept for the last 200 s or so."""

    def __init__(self) -> None:
        self._forker: subprocess.Popen[bytes] | None = None
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._lock = threading.Lock()
        self._reports: dict[int, deque[ProcessReport]] = {}
        self._killed: set[int] = set()
        self._hearing = threading.Thread(target=self._hear, name="reports", daemon=True)

    def __enter__(self) -> Self:
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _REPORT_BYTES)
        self._theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REPORT_BYTES)
        command = [sys.executable, "-m", "millstream.loadgen.pretended_nodes", str(self._theirs.fileno())]
        self._forker = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[self._theirs.fileno()])
        self._theirs.close()
        self._hearing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        forker = self._forker
        assert forker is not None
        assert forker.stdin is not None
        try:
            forker.stdin.close()
        except BrokenPipeError:
            # It has died, and whoever it had forked ends by itself.
            pass
        try:
            forker.wait(_END_S)
        except subprocess.TimeoutExpired:
            forker.kill()
            forker.wait(_END_S)
        # All writers are gone, but a datagram socket never says so.
        self._ours.shutdown(socket.SHUT_RD)
        self._hearing.join(_END_S)
        self._ours.close()

    def start(self, herd: Herd) -> None:
        """Start one process. Its first report comes at once. Raises UnavailableError where nobody starts any more."""
        forker = self._forker
        assert forker is not None
        assert forker.stdin is not None
        try:
            forker.stdin.write(msgspec.json.encode(herd) + b"\n")
            forker.stdin.flush()
        except BrokenPipeError as error:
            raise UnavailableError("the process that starts pretended nodes is gone; see what it printed") from error

    def kill(self, pid: int) -> Moment:
        """SIGKILL to a process; answers the instant before."""
        with self._lock:
            self._killed.add(pid)
        ordered = Moment.now()
        os.kill(pid, signal.SIGKILL)
        return ordered

    def reports(self) -> dict[int, list[ProcessReport]]:
        """The reports of every process that lives, by process id, oldest first."""
        with self._lock:
            return {pid: list(reports) for pid, reports in self._reports.items() if pid not in self._killed}

    def nodes(self) -> list[NodeReport]:
        """All nodes that live, as they reported last. Raises UnavailableError where a process has ended by itself."""
        if self._forker is None or self._forker.poll() is not None:
            raise UnavailableError("pretended nodes have ended by themselves; see what they printed")
        nodes: list[NodeReport] = []
        for pid, reports in self.reports().items():
            if time.monotonic() - reports[-1].at_s > _SILENT_S:
                raise UnavailableError(f"process {pid} of pretended nodes has not reported for {_SILENT_S:g} s")
            nodes += reports[-1].nodes
        return nodes

    def forget(self, pid: int) -> None:
        """A process that was killed: its reports are of no more use, and the kernel may give its number away again."""
        with self._lock:
            self._reports.pop(pid, None)
            self._killed.discard(pid)

    def wait_until(self, holds: Callable[[list[NodeReport]], bool], what: str, timeout_s: float) -> None:
        """Wait for something to hold of all nodes. Raises UnavailableError when it does not in time."""
        deadline = time.monotonic() + timeout_s
        while not holds(nodes := self.nodes()):
            if time.monotonic() > deadline:
                phases = sorted({node.phase for node in nodes})
                raise UnavailableError(
                    f"{what} did not come about within {timeout_s:g} s: {len(nodes)} nodes have reported, their "
                    f"phases are {', '.join(phases)}; give fewer nodes, or see whether the broker is overloaded"
                )
            time.sleep(_POLL_S)

    def _hear(self) -> None:
        decoder = msgspec.json.Decoder(ProcessReport)
        while data := self._ours.recv(_REPORT_BYTES):
            report = decoder.decode(data)
            with self._lock:
                self._reports.setdefault(report.pid, deque(maxlen=_REPORTS_KEPT)).append(report)


def agree(nodes: list[NodeReport], count: int) -> bool:
    """Whether there are so many nodes, all of them in, and all see the same."""
    return (
        len(nodes) == count
        and all(node.phase == "in" and node.members == count for node in nodes)
        and len({node.agreement for node in nodes}) == 1
    )
