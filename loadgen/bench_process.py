"""A measured process, seen from the benchmark: started with an order, watched, and never left behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from millstream.loadgen.bench_orders import Began, Finished, Order, decode_answer, encode
from millstream.processor.errors import UnavailableError

_GRACE_S = 3.0
_LOG_LINES_SHOWN = 15
_READ_BYTES = 1 << 16
# A fresh installation compiles its kernels before anything begins.
_BEGIN_S_MAX = 300.0

A = TypeVar("A", Began, Finished)


class Side(Enum):
    """Whose figures: the program that is started for it."""

    OURS = "millstream.loadgen.bench_worker"
    BASELINE = "millstream.loadgen.bench_loop"


class MeasuredProcess:
    """One worker, or one loop. A context manager: entering starts it, leaving ends it, done or not."""

    def __init__(self, side: Side, order: Order, log_file: Path) -> None:
        self._side = side
        self._order = order
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = b""

    def __enter__(self) -> Self:
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._side.value],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                # Ctrl-C in the terminal must reach the benchmark alone, which then ends this process.
                start_new_session=True,
            )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(self._order))
        except BrokenPipeError:
            # It has died already, and whoever listens to it is told so.
            pass
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._running
        self._close_stdin()
        try:
            process.wait(0 if kind is not None else _GRACE_S)
        except subprocess.TimeoutExpired:
            # What is measured is measured; it has nothing to save.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._running.pid

    def stop(self) -> None:
        """Tell a passage without end to end; `finished` then answers."""
        self._close_stdin()

    def began(self) -> None:
        """Wait until the measured passage reads. Raises UnavailableError when that takes too long."""
        self._next(Began, _BEGIN_S_MAX)

    def finished(self, timeout_s: float) -> Finished:
        """Wait for the figures, at most so long. Raises UnavailableError, with the end of the process's log."""
        return self._next(Finished, timeout_s)

    def check(self) -> None:
        """Raises UnavailableError when the process has ended by itself."""
        if (code := self._running.poll()) is not None:
            raise self._trouble(f"ended by itself with code {code}")

    def _next(self, kind: type[A], timeout_s: float) -> A:
        message = decode_answer(self._line(time.monotonic() + timeout_s, timeout_s))
        if not isinstance(message, kind):
            raise self._trouble(f"said {type(message).__name__} where {kind.__name__} was expected")
        return message

    def _line(self, deadline: float, timeout_s: float) -> bytes:
        assert self._running.stdout is not None
        descriptor = self._running.stdout.fileno()
        while b"\n" not in self._heard:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                raise self._trouble(f"said nothing for {timeout_s:.0f} s")
            piece = os.read(descriptor, _READ_BYTES)
            if not piece:
                raise self._trouble("ended without its figures")
            self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        return line

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("a measured process is used inside its `with` block only")
        return self._process

    def _close_stdin(self) -> None:
        if self._running.stdin is not None:
            self._running.stdin.close()

    def _trouble(self, what: str) -> UnavailableError:
        text = self._log_file.read_text(errors="replace") if self._log_file.exists() else ""
        end = "\n".join(text.splitlines()[-_LOG_LINES_SHOWN:])
        return UnavailableError(f"{self._side.value} {what}; its log ends with:\n{end}")
