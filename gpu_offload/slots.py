"""Memory that a worker shares with a device's process: a page of its own, then slots, each with one batch.

    0                  word 0: how many runs the device has finished, whoever's they were
    4096 + k · size    slot k: columns, masks of optional ones, then what the stage adds; each at a multiple of 64 bytes

Both sides compute the places from the schema and the number of rows, so that no message has to name them. A device's
process that may still write to a slot keeps it: slots are free again with its answer, or all at once with new memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millstream.processor.errors import MillstreamError
from millstream.processor.offloading import ArrayColumns, ColumnSchema, StageDefinition, Text

ALIGNMENT: Final = 64
PAGE_BYTES: Final = 4096

Bytes = npt.NDArray[np.uint8]
_OFFSET: Final = np.dtype(np.int32)
_MASK: Final = np.dtype(np.bool_)
_BYTE: Final = np.dtype(np.uint8)


class SlotTooSmallError(MillstreamError):
    """A batch does not fit into a slot."""


class SlotMemory:
    """The shared memory as either side sees it. It is unmapped when nobody looks into it any more."""

    def __init__(self, descriptor: int, slots: int, slot_bytes: int) -> None:
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._memory = mmap.mmap(descriptor, PAGE_BYTES + slots * slot_bytes)
        self.bytes: Bytes = np.frombuffer(self._memory, np.uint8)
        # In words, since a word is written at once: no reader sees half of it.
        self._words = self.bytes[:PAGE_BYTES].view(np.uint64)

    @property
    def runs(self) -> int:
        """How many runs the device has finished."""
        return int(self._words[0])

    @runs.setter
    def runs(self, count: int) -> None:
        self._words[0] = count

    def slot(self, number: int) -> Bytes:
        """The bytes of one slot."""
        at = PAGE_BYTES + number * self.slot_bytes
        return self.bytes[at : at + self.slot_bytes]


def create_memory(slots: int, slot_bytes: int) -> int:
    """The descriptor of new memory for so many slots; the caller closes it. Raises OSError."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("millstream-slots", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, PAGE_BYTES + slots * slot_bytes)
    with contextlib.suppress(AttributeError):
        # Memory that shrank under the other side would kill it.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows with room for what a stage adds to them, as views of memory that the two sides share."""

    columns: ArrayColumns
    outputs: dict[str, npt.NDArray[Any]]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.columns.rows

    def cut(self, first: int, next_: int) -> Segment:
        """The rows from `first` up to `next_`."""
        columns = {name: _cut(column, first, next_) for name, column in self.columns.items()}
        masks = {name: mask[first:next_] for name, mask in self.columns.masks.items()}
        outputs = {name: output[first:next_] for name, output in self.outputs.items()}
        return Segment(ArrayColumns(columns, masks, next_ - first), outputs)


def segment_in(slot: Bytes, stage: StageDefinition, rows: int, texts: Sequence[int]) -> Segment:
    """Where rows of the stage lie in a slot, with so many bytes of each text column. Raises SlotTooSmallError."""
    walk = _Walk(slot)
    columns: dict[str, Any] = {}
    masks = {}
    sizes = iter(texts)
    for column in stage.reads:
        if column.is_text:
            columns[column.name] = Text(walk.take(_OFFSET, (rows + 1,)), walk.take(_BYTE, (next(sizes),)))
        else:
            columns[column.name] = walk.take(column.dtype, (rows, *column.shape))
        if column.is_optional:
            masks[column.name] = walk.take(_MASK, (rows,))
    outputs = {column.name: walk.take(column.dtype, (rows, *column.shape)) for column in stage.adds}
    return Segment(ArrayColumns(columns, masks, rows), outputs)


def fill(segment: Segment, columns: ArrayColumns) -> None:
    """Copy the columns into the segment, which has room for exactly these."""
    for name, place in segment.columns.items():
        column = columns[name]
        if isinstance(place, Text):
            # Pieces of a batch may be views whose texts begin in the middle of the data.
            np.subtract(column.offsets, column.offsets[0], out=place.offsets)
            place.data[...] = column.data[int(column.offsets[0]) : int(column.offsets[-1])]
        else:
            place[...] = column
    for name, mask in segment.columns.masks.items():
        mask[...] = columns.masks[name]


def text_sizes(columns: ArrayColumns, stage: StageDefinition) -> tuple[int, ...]:
    """How many bytes each text column of the stage has, in order."""
    texts = [columns[column.name] for column in stage.reads if column.is_text]
    return tuple(int(text.offsets[-1]) - int(text.offsets[0]) for text in texts)


def bytes_needed(stage: StageDefinition, rows: int, bytes_per_text: int) -> int:
    """What rows of the stage take in a slot."""
    texts = sum(column.is_text for column in stage.reads)
    fixed = sum(_row_bytes(column) for column in [*stage.reads, *stage.adds])
    places = len(stage.reads) * 2 + len(stage.adds) + texts
    return rows * (fixed + texts * bytes_per_text) + places * ALIGNMENT + texts * _OFFSET.itemsize


def _row_bytes(column: ColumnSchema) -> int:
    width = _OFFSET.itemsize if column.is_text else column.dtype.itemsize * int(np.prod(column.shape, dtype=np.int64))
    return width + column.is_optional


def _cut(column: Any, first: int, next_: int) -> Any:
    if not isinstance(column, Text):
        return column[first:next_]
    offsets = column.offsets[first : next_ + 1]
    return Text(offsets - offsets[0], column.data[int(offsets[0]) : int(offsets[-1])])


class _Walk:
    """Takes one array after the other out of a slot."""

    def __init__(self, slot: Bytes) -> None:
        self._slot = slot
        self._at = 0

    def take(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        end = self._at + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if end > len(self._slot):
            raise SlotTooSmallError(f"the batch needs {end} bytes and more; a slot has {len(self._slot)}")
        array: npt.NDArray[Any] = self._slot[self._at : end].view(dtype).reshape(shape)
        self._at = -(-end // ALIGNMENT) * ALIGNMENT
        return array
