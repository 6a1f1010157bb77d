"""How a batch is cut where records in it have hung before: suspects in small pieces of their own. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from millstream.processor.columns import Records
from millstream.processor.partitions import TopicPartition
from millstream.processor.stalled import Stalled

_PIECES: Final = 64

Offsets = dict[tuple[str, int], tuple[int, int]]
"""First and next offset of the records of each partition."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Records that run as a batch of their own. `suspect` is what is known of them, None for the unsuspected."""

    records: Records
    ranges: Offsets
    suspect: Stalled | None


def is_touched(ranges: Offsets, stalls: Sequence[Stalled]) -> bool:
    """Whether any record of a batch is under suspicion."""
    for stalled in stalls:
        first, next_ = ranges.get((stalled.topic, stalled.partition), (0, 0))
        if stalled.first_offset < next_ and first < stalled.next_offset:
            return True
    return False


def pieces(records: Records, stalls: Sequence[Stalled], attempts_max: int) -> Iterator[Piece]:
    """The batch in pieces, in the order of its records.

    A range that hung is cut into 64 pieces, each of which may hang in turn and is cut again; before the last attempt it
    is cut into single records. So what reaches `attempts_max` is one record, and that is one piece.
    """
    suspect = _suspects(records, stalls)
    borders = np.flatnonzero(np.diff(suspect)) + 1
    for run in np.split(np.arange(len(records), dtype=np.int64), borders):
        number = int(suspect[run[0]])
        if number < 0:
            yield _piece(records.take(run), None)
            continue
        stalled = stalls[number]
        size = len(run) if stalled.attempts >= attempts_max else _piece_rows(len(run), stalled, attempts_max)
        for start in range(0, len(run), size):
            yield _piece(records.take(run[start : start + size]), stalled)


def _suspects(records: Records, stalls: Sequence[Stalled]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each row the number of the stall that it belongs to, -1 for none."""
    suspect = np.full(len(records), -1, np.int64)
    for number, stalled in enumerate(stalls):
        place = TopicPartition(stalled.topic, stalled.partition)
        if place in records.origins:
            mine = records.origin == records.origins.index(place)
            mine &= (records.offset >= stalled.first_offset) & (records.offset < stalled.next_offset)
            suspect[mine] = number
    return suspect


def _piece_rows(rows: int, stalled: Stalled, attempts_max: int) -> int:
    return 1 if stalled.attempts >= attempts_max - 1 else -(-rows // _PIECES)


def _piece(records: Records, suspect: Stalled | None) -> Piece:
    ranges: Offsets = {}
    for number, origin in enumerate(records.origins):
        offsets = records.offset[records.origin == number]
        if len(offsets):
            ranges[origin] = int(offsets[0]), int(offsets[-1]) + 1
    return Piece(records, ranges, suspect)
