"""A piece of work in a process of its own, which tells how far it is and hands back one result.

The demo's generator and judge each get one, so that neither shares an interpreter with the other, and the numbers that
one measures do not depend on what the other does. A companion never outlives the program that started it: it ends
when it is told to, and it notices by itself, at its next word, when nobody listens any more.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Generic, Self, TypeVar

from millstream.processor.errors import MillstreamError, UnavailableError

P = TypeVar("P")
T = TypeVar("T")

_END_S = 5.0


@dataclass(frozen=True, slots=True)
class _Told(Generic[P]):
    progress: P


@dataclass(frozen=True, slots=True)
class _Finished(Generic[T]):
    result: T


@dataclass(frozen=True, slots=True)
class _Failed:
    reason: str


class Companion(Generic[P, T]):
    """Runs `work(tell)` in a new process. A context manager: entering starts it, leaving ends it, done or not.

    `work` must be picklable: a function of a module, or a partial of one.
    """

    def __init__(self, name: str, work: Callable[[Callable[[P], None]], T]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._ours, theirs = spawn.Pipe(duplex=False)
        self._theirs = theirs
        self._process = spawn.Process(target=_run, args=(work, theirs), name=name, daemon=True)
        self._name = name
        self._finished: _Finished[T] | None = None
        self.progress: P | None = None

    def __enter__(self) -> Self:
        self._process.start()
        # Only the child may hold the writing end: its death must read as the end of the pipe.
        self._theirs.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ours.close()
        if self._process.is_alive() and self._finished is None:
            self._process.terminate()
        self._process.join(_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_END_S)

    @property
    def pid(self) -> int:
        """The process's id, inside of the context."""
        assert self._process.pid is not None
        return self._process.pid

    def listen(self, timeout_s: float) -> T | None:
        """Take in what was told, waiting at most so long for the first word; answers the result once it is there.

        `progress` is the last that was told. Raises UnavailableError when the work failed or its process died.
        """
        wait_s = timeout_s
        while self._finished is None and self._ours.poll(wait_s):
            wait_s = 0.0
            try:
                message = self._ours.recv()
            except EOFError as error:
                raise UnavailableError(f"the {self._name} died before it was done") from error
            if isinstance(message, _Failed):
                raise UnavailableError(f"the {self._name} failed: {message.reason}")
            if isinstance(message, _Finished):
                self._finished = message
            else:
                self.progress = message.progress
        return None if self._finished is None else self._finished.result


def _run(work: Callable[[Callable[[P], None]], T], pipe: Connection) -> None:
    # Ctrl-C in the terminal reaches every process; only the one that shows the demo decides what follows.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        try:
            message: _Finished[T] | _Failed = _Finished(work(lambda progress: pipe.send(_Told(progress))))
        except MillstreamError as error:
            message = _Failed(str(error))
        pipe.send(message)
    except BrokenPipeError:
        # Nobody listens any more; there is nothing left to be done for.
        pass
