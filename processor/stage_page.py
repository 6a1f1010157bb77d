"""A few pages of memory that a worker shares with its agent: at which batch, in which stage, each of its shards is.

The worker writes a few bytes for each batch and stage, and makes no call to the system. The agent reads them even
while user code holds the worker's interpreter, which no message could be sent from.

Every entry into a stage has a number of its own. Whoever sees the same number in two looks knows that nothing has
moved in between; what was read while it was being written has another number at the next look, and so does no harm.

    0        how many slots were ever used
    4096 k   slot k - 1: number, stage (-1: none), shard, how many ranges; from byte 32 on, the ranges
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from millstream.processor.stage_mark import UNWATCHED, StageMark

# A slot for each shard that is in a stage at a time; shards beyond that are not watched. Memory that is not written
# to takes none.
SLOTS: Final = 255
# A batch has records of so many partitions at most (`Intake.take`).
RANGES_MAX: Final = 160

_SLOT_BYTES: Final = 4096
_RANGES_AT: Final = 32
_PAGE_BYTES: Final = _SLOT_BYTES * (SLOTS + 1)
_NO_STAGE: Final = -1

_USED: Final = struct.Struct("<I")
_MARK: Final = struct.Struct("<Qi")
_HEAD: Final = struct.Struct("<QiiI")
_RANGE: Final = struct.Struct("<iiqq")


class Range(NamedTuple):
    """Records of one partition, as a worker speaks of them: the topic by its number."""

    topic: int
    partition: int
    first_offset: int
    next_offset: int


# -- the worker's side ------------------------------------------------------------------------------------------------


class StagePage:
    """The page as its worker writes it. It takes over the descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _PAGE_BYTES)
        os.close(descriptor)
        self._topics: dict[str, int] = {}
        self._free = list(range(SLOTS - 1, -1, -1))
        self._used = 0
        self._number = 0

    def name_topics(self, topics: Sequence[str]) -> None:
        """From now on topics have these numbers."""
        self._topics = {topic: number for number, topic in enumerate(topics)}

    @contextmanager
    def batch(self, shard: int, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> Iterator[StageMark]:
        """A batch of the shard runs meanwhile. `ranges` are first and next offset of each partition in it."""
        if not self._free:
            yield UNWATCHED
            return
        slot = self._free.pop()
        mark = _PageMark(self, (slot + 1) * _SLOT_BYTES)
        self._begin(mark.at, slot, shard, ranges)
        try:
            yield mark
        finally:
            mark.rest()
            self._free.append(slot)

    def write(self, at: int, stage: int) -> None:
        """The batch of the slot at this place has entered the stage."""
        self._number += 1
        _MARK.pack_into(self._memory, at, self._number, stage)

    def _begin(self, at: int, slot: int, shard: int, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> None:
        # The number comes first: a reader that looks again after it has read the ranges sees that they have changed.
        self._number += 1
        _HEAD.pack_into(self._memory, at, self._number, _NO_STAGE, shard, min(len(ranges), RANGES_MAX))
        place = at + _RANGES_AT
        for (topic, partition), (first, next_) in list(ranges.items())[:RANGES_MAX]:
            _RANGE.pack_into(self._memory, place, self._topics.get(topic, -1), partition, first, next_)
            place += _RANGE.size
        if slot >= self._used:
            self._used = slot + 1
            _USED.pack_into(self._memory, 0, self._used)


class _PageMark(StageMark):
    """What one batch says of itself, on the page."""

    __slots__ = ("_page", "_stage", "at")

    def __init__(self, page: StagePage, at: int) -> None:
        self._page = page
        self._stage = _NO_STAGE
        self.at = at

    def enter(self, stage: int) -> None:
        self._stage = stage
        self._page.write(self.at, stage)

    def alive(self) -> None:
        self._page.write(self.at, self._stage)

    def rest(self) -> None:
        self._page.write(self.at, _NO_STAGE)


# -- the agent's side -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """A slot at one look. `number` grows with everything that any slot has written; `stage` is None where none runs."""

    slot: int
    number: int
    stage: int | None
    shard: int


class StagePageReader:
    """The page as its agent makes and reads it; `descriptor` is for the worker to inherit. Raises OSError."""

    def __init__(self) -> None:
        self.descriptor = _shared_memory()
        self._memory = mmap.mmap(self.descriptor, _PAGE_BYTES, prot=mmap.PROT_READ)

    def look(self) -> list[Seen]:
        """All slots that were ever used, as they are now."""
        used = min(_USED.unpack_from(self._memory, 0)[0], SLOTS)
        return [self._seen(slot) for slot in range(used)]

    def ranges(self, seen: Seen) -> tuple[Range, ...] | None:
        """The records of the batch in a slot; None where the worker has moved on since."""
        at = (seen.slot + 1) * _SLOT_BYTES
        count = min(_HEAD.unpack_from(self._memory, at)[3], RANGES_MAX)
        end = at + _RANGES_AT + count * _RANGE.size
        ranges = tuple(map(Range._make, _RANGE.iter_unpack(self._memory[at + _RANGES_AT : end])))
        return ranges if self._seen(seen.slot) == seen else None

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
        os.close(self.descriptor)

    def _seen(self, slot: int) -> Seen:
        number, stage, shard, _ = _HEAD.unpack_from(self._memory, (slot + 1) * _SLOT_BYTES)
        return Seen(slot, number, None if stage < 0 else stage, shard)


def _shared_memory() -> int:
    if sys.platform == "linux":
        descriptor = os.memfd_create("millstream-stages")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _PAGE_BYTES)
    return descriptor
