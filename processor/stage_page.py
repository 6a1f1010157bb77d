"""A few pages of memory that a worker shares with its agent: at which batch, in which stage each of its shards is.

The worker writes a few bytes for each batch and stage, and makes no call to the system. The agent reads them even
while user code holds the worker's interpreter, which no message could be sent from.

Whatever is written has a number of its own, in one word with the stage. Whoever sees the same number in two looks knows
that nothing has moved in between, and that what was read beside it belongs to it.

    0        how many slots were ever used
    4096 k   slot k - 1, in words of 8 bytes: number and stage (0: none); shard and how many ranges; the ranges
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from millstream.processor.stage_mark import UNWATCHED, StageMark

# A slot for each shard that is in a stage at a time; shards beyond that are not watched. Memory that is not written
# to takes none.
SLOTS: Final = 255
# A batch has records of so many partitions at most (`Intake.take`).
RANGES_MAX: Final = 160

_SLOT_BYTES: Final = 4096
_RANGES_AT: Final = 16
_PAGE_BYTES: Final = _SLOT_BYTES * (SLOTS + 1)
_WORD_BYTES: Final = 8
_STAGE_BITS: Final = 16
_SHARD_BITS: Final = 32

_RANGE: Final = struct.Struct("=iiqq")
_TWO_WORDS: Final = struct.Struct("=QQ")


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
        # In words, since a word is written at once: no reader sees half of it.
        self.words = memoryview(self._memory).cast("Q")
        self.number = 0
        self._topics: dict[str, int] = {}
        self._free = list(range(SLOTS, 0, -1))

    def name_topics(self, topics: Sequence[str]) -> None:
        """From now on topics have these numbers."""
        self._topics = {topic: number for number, topic in enumerate(topics)}

    def begin(self, shard: int, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> StageMark:
        """A batch of the shard begins. `ranges` are first and next offset of each partition in it."""
        if not self._free:
            return UNWATCHED
        slot = self._free.pop()
        at = slot * _SLOT_BYTES + _RANGES_AT
        for (topic, partition), (first, next_) in islice(ranges.items(), RANGES_MAX):
            _RANGE.pack_into(self._memory, at, self._topics.get(topic, -1), partition, first, next_)
            at += _RANGE.size
        word = slot * _SLOT_BYTES // _WORD_BYTES
        self.words[word + 1] = min(len(ranges), RANGES_MAX) << _SHARD_BITS | shard
        if slot > self.words[0]:
            self.words[0] = slot
        return _PageMark(self, slot, word)

    def end(self, mark: StageMark) -> None:
        """The batch is through, or given up."""
        if isinstance(mark, _PageMark):
            mark.rest()
            self._free.append(mark.slot)


class _PageMark(StageMark):
    """What one batch says of itself, on the page."""

    __slots__ = ("_page", "_stage", "_word", "slot")

    def __init__(self, page: StagePage, slot: int, word: int) -> None:
        self._page = page
        self._stage = 0
        self._word = word
        self.slot = slot

    def enter(self, stage: int) -> None:
        self._stage = stage + 1
        self.alive()

    def alive(self) -> None:
        page = self._page
        page.number = number = page.number + 1
        page.words[self._word] = number << _STAGE_BITS | self._stage

    def rest(self) -> None:
        page = self._page
        page.number = number = page.number + 1
        page.words[self._word] = number << _STAGE_BITS


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
        return [self._seen(slot) for slot in range(1, min(self._words(0)[0], SLOTS) + 1)]

    def ranges(self, seen: Seen) -> tuple[Range, ...] | None:
        """The records of the batch in a slot; None where the worker has moved on since."""
        at = seen.slot * _SLOT_BYTES
        count = min(self._words(at)[1] >> _SHARD_BITS, RANGES_MAX)
        at += _RANGES_AT
        ranges = tuple(map(Range._make, _RANGE.iter_unpack(self._memory[at : at + count * _RANGE.size])))
        return ranges if self._seen(seen.slot) == seen else None

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
        os.close(self.descriptor)

    def _seen(self, slot: int) -> Seen:
        where, shard = self._words(slot * _SLOT_BYTES)
        stage = where & ((1 << _STAGE_BITS) - 1)
        return Seen(slot, where >> _STAGE_BITS, stage - 1 if stage else None, shard & ((1 << _SHARD_BITS) - 1))

    def _words(self, at: int) -> tuple[int, int]:
        first, second = _TWO_WORDS.unpack_from(self._memory, at)
        return first, second


def _shared_memory() -> int:
    if sys.platform == "linux":
        descriptor = os.memfd_create("millstream-stages")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _PAGE_BYTES)
    return descriptor
