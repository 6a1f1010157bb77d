"""`millstream run` as a subprocess that can be stopped, or killed like a machine that loses power."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from millstream.processor.errors import UnavailableError

# `millstream` by this interpreter, be it installed as a command or not; its arguments follow.
MILLSTREAM = (sys.executable, "-c", "import sys; from millstream.processor.cli import main; sys.exit(main())")
_DRAIN_S = 15.0
_REAP_S = 5.0
_LOG_LINES_SHOWN = 15


class NodeProcess:
    """One node: an agent and its workers, in a process group of their own. A context manager; entering starts it.

    The node writes its log to `log_file`. Leaving stops it in order, or by force after 15 s, and takes along whatever
    its group still holds.
    """

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], log_file: Path) -> None:
        self._arguments = tuple(arguments)
        self._environ = dict(environ)
        self._log_file = log_file
        self._agent: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the node; a later start after a kill continues the same log."""
        with self._log_file.open("ab") as log:
            self._agent = subprocess.Popen(
                [*MILLSTREAM, "run", *self._arguments],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal must reach the demo alone, which then stops the node in order.
                start_new_session=True,
            )

    def check(self) -> None:
        """Raises UnavailableError, with the end of its log, when the node has ended by itself."""
        agent = self._agent
        if agent is not None and (code := agent.poll()) is not None:
            raise UnavailableError(f"the node ended by itself with code {code}; its log ends with:\n{self.log_end()}")

    def log_end(self) -> str:
        """The last lines of the log."""
        text = self._log_file.read_text(errors="replace") if self._log_file.exists() else ""
        return "\n".join(text.splitlines()[-_LOG_LINES_SHOWN:])

    @property
    def pid(self) -> int | None:
        """The agent's id; None before the start and after the stop."""
        return None if self._agent is None else self._agent.pid

    def children(self) -> list[int]:
        """The ids of the agent's child processes, oldest first; none where the system does not tell (not Linux)."""
        agent = self._agent
        if agent is None:
            return []
        try:
            threads = list(Path(f"/proc/{agent.pid}/task").iterdir())
            return sorted(int(pid) for thread in threads for pid in (thread / "children").read_text().split())
        except OSError:
            return []

    def kill_worker(self) -> int | None:
        """SIGKILL to one of the agent's children; answers its id, or None where there was none to kill."""
        for pid in self.children():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return pid
        return None

    def await_exit(self, timeout_s: float) -> int | None:
        """The agent's exit code; None where it does not end in time, or was not started."""
        self._reap(timeout_s)
        return None if self._agent is None else self._agent.poll()

    def kill(self) -> None:
        """SIGKILL to agent and workers at once. Afterwards none of them runs."""
        self._signal_group(signal.SIGKILL)
        self._reap(_REAP_S)

    def stop(self) -> None:
        """SIGTERM to the agent, time to drain, then SIGKILL to whatever is left of its group."""
        agent = self._agent
        if agent is None:
            return
        if agent.poll() is None:
            agent.terminate()
            self._reap(_DRAIN_S)
        self.kill()
        self._agent = None

    def _reap(self, timeout_s: float) -> None:
        if self._agent is None:
            return
        try:
            self._agent.wait(timeout_s)
        except subprocess.TimeoutExpired:
            # The caller's next step is a harder signal, and after SIGKILL nothing more can be done from here.
            pass

    def _signal_group(self, sent: signal.Signals) -> None:
        if self._agent is None:
            return
        try:
            os.killpg(self._agent.pid, sent)
        except (ProcessLookupError, PermissionError):
            # The whole group is gone already.
            pass
