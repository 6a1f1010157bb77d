"""What the benchmark and the processes that it measures say to each other.

The order is the first line of a process's standard input, so that no secret stands among its arguments. Standard input
stays open as long as the process is wanted: its end means stop, whether the benchmark says so or has died. Answers are
lines on standard output.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from millstream.loadgen.bench_workloads import Work

_READ_BYTES = 1 << 16

M = TypeVar("M", bound=msgspec.Struct)


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """Events on their way from one topic to another. `name` is the pipeline's, or the loop's group.

    `events` None: until standard input ends. `transaction_records_max` and `commit_interval_ms` are the loop's.
    """

    name: str
    source: str
    target: str
    events: int | None
    transaction_records_max: int = 200_000
    commit_interval_ms: int = 1000

    def committing_every(self, commit_interval_ms: int) -> Passage:
        """The same for a loop that commits as often."""
        return msgspec.structs.replace(self, commit_interval_ms=commit_interval_ms)

    def in_transactions_of(self, records_max: int) -> Passage:
        """The same for a loop whose transactions hold so many records."""
        return msgspec.structs.replace(self, transaction_records_max=records_max)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to do: warm up on one passage, then do the one that is measured."""

    kafka: dict[str, Any]
    work: Work
    warm_up: Passage | None
    measured: Passage


class Began(msgspec.Struct, frozen=True, tag=True):
    """The measured passage has begun to read."""


class Finished(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The measured passage is over: all of it is committed. `seconds` and `cpu_s` run from the first fetch position
    until the last commit; `cpu_s` is user and system time of the whole process."""

    events: int
    seconds: float
    cpu_s: float
    shards: int = 0


Answer = Began | Finished
_answers = msgspec.json.Decoder(Answer)


def encode(message: msgspec.Struct) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


def decode_answer(line: bytes) -> Answer:
    """The answer in a line. Raises msgspec.DecodeError for what is none."""
    return _answers.decode(line)


def answer(message: Answer) -> None:
    """Tell the benchmark."""
    sys.stdout.buffer.write(encode(message))
    sys.stdout.buffer.flush()


def receive_order() -> Order:
    """The order from standard input. Raises EOFError where there is none."""
    # Not through sys.stdin: its buffer would hold a lock that `on_stdin_end` keeps until the process ends.
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, _READ_BYTES)
        if not piece:
            raise EOFError("standard input ended before the order was complete")
        line += piece
    return msgspec.json.decode(line, type=Order)


def on_stdin_end(stop: Callable[[], None]) -> None:
    """Call `stop`, in a thread of its own, when standard input ends."""

    def watch() -> None:
        while os.read(0, _READ_BYTES):
            pass
        stop()

    threading.Thread(target=watch, name="stdin", daemon=True).start()


class Stopwatch:
    """Elapsed time and CPU time of this process between its first `start` and its last `lap`."""

    def __init__(self) -> None:
        self._start: tuple[float, float] | None = None
        self._end = (0.0, 0.0)

    @property
    def is_running(self) -> bool:
        """Whether it was started."""
        return self._start is not None

    def start(self) -> None:
        """Start, unless it was started before."""
        if self._start is None:
            self._start = self._end = _now()

    def lap(self) -> None:
        """What is measured lasts at least until now."""
        self._end = _now()

    @property
    def seconds(self) -> float:
        """Elapsed; 0 where it was never started."""
        return self._end[0] - self._start[0] if self._start else 0.0

    @property
    def cpu_s(self) -> float:
        """User and system time of all threads; 0 where it was never started."""
        return self._end[1] - self._start[1] if self._start else 0.0


def _now() -> tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), usage.ru_utime + usage.ru_stime
