"""A run that the device's memory does not hold is made in two halves, each tried once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millstream.gpu_offload.backend import OutOfDeviceMemoryError, Runner
from millstream.gpu_offload.slots import Segment


@dataclass(frozen=True, slots=True)
class Outcome:
    """`rows_max`: as many rows may go through at once; 0 where all did. `failed`: segments with rows that did not."""

    rows_max: int = 0
    failed: frozenset[int] = frozenset()


def run(runner: Runner, segments: Sequence[Segment], free: Callable[[], None]) -> Outcome:
    """Run all segments together, or where that takes too much memory in two halves after `free`.

    Raises StickyError and FunctionError.
    """
    try:
        runner.run(segments)
    except OutOfDeviceMemoryError:
        return _in_halves(runner, segments, free)
    return Outcome()


def _in_halves(runner: Runner, segments: Sequence[Segment], free: Callable[[], None]) -> Outcome:
    rows = sum(segment.rows for segment in segments)
    half = -(-rows // 2)
    failed: set[int] = set()
    for first, next_ in ((0, half), (half, rows)):
        pieces = _between(segments, first, next_)
        free()
        try:
            if pieces:
                runner.run([piece for _, piece in pieces])
        except OutOfDeviceMemoryError:
            failed.update(number for number, _ in pieces)
    return Outcome(max(1, half // 2 if failed else half), frozenset(failed))


def _between(segments: Sequence[Segment], first: int, next_: int) -> list[tuple[int, Segment]]:
    """The pieces of the segments that lie between two rows of the whole, each with its segment's number."""
    pieces = []
    at = 0
    for number, segment in enumerate(segments):
        begin, end = max(first - at, 0), min(next_ - at, segment.rows)
        if begin < end:
            pieces.append((number, segment if end - begin == segment.rows else segment.cut(begin, end)))
        at += segment.rows
    return pieces
