"""Which partition a record goes to: as Java clients place it, so that all of a key's records meet."""

from __future__ import annotations

import numpy as np

from millstream.processor.columns import Bytes, Index, Int32s, Int64s, Slices
from millstream.processor.kernels import borrowing_kernel

_WORD = 0xFFFFFFFF


def place(keys: Slices, unkeyed_partition: Int32s, partitions: int) -> Int32s:
    """The partition of each row, from 0 to `partitions` - 1.

    A key is placed by murmur2 of its bytes, an empty one too; a null key goes to its row's `unkeyed_partition`,
    modulo `partitions`.
    """
    if partitions < 1:
        raise ValueError(f"partitions is {partitions}; a topic has at least 1")
    placed = np.empty(len(keys), np.int32)
    if not _place(_read_only(keys.buffer), keys.start, keys.size, unkeyed_partition, partitions, placed):
        raise ValueError("a key points outside its buffer")
    return placed


def rows_by_partition(placed: Int32s, partitions: int) -> list[tuple[int, Index]]:
    """The rows of each partition that has any, by ascending partition, each partition's rows in their order."""
    ends = np.zeros(partitions, np.int64)
    rows = np.empty(len(placed), np.int64)
    if not _group(placed, ends, rows):
        raise ValueError(f"a row is placed outside partitions 0 to {partitions - 1}")
    groups = []
    start = 0
    for partition, end in enumerate(ends.tolist()):
        if end > start:
            groups.append((partition, rows[start:end]))
        start = end
    return groups


def _read_only(buffer: Bytes) -> Bytes:
    """The kernel is compiled for one kind of buffer; most are read-only."""
    if buffer.flags.writeable:
        buffer = buffer.view()
        buffer.flags.writeable = False
    return buffer


@borrowing_kernel
def _byte(data: Bytes, position: int) -> int:
    return int(np.int64(data[position]))


@borrowing_kernel
def _murmur2(data: Bytes, start: int, size: int) -> int:
    """Kafka's murmur2 (seed 0x9747b28c) as an unsigned 32-bit number."""
    multiplier = 0x5BD1E995
    state = 0x9747B28C ^ size
    position = start
    for _ in range(size >> 2):
        word = _byte(data, position) | _byte(data, position + 1) << 8
        word |= _byte(data, position + 2) << 16 | _byte(data, position + 3) << 24
        word = (word * multiplier) & _WORD
        word ^= word >> 24
        word = (word * multiplier) & _WORD
        state = ((state * multiplier) & _WORD) ^ word
        position += 4
    rest = size & 3
    if rest == 3:
        state ^= _byte(data, position + 2) << 16
    if rest >= 2:
        state ^= _byte(data, position + 1) << 8
    if rest >= 1:
        state ^= _byte(data, position)
        state = (state * multiplier) & _WORD
    state ^= state >> 13
    state = (state * multiplier) & _WORD
    return state ^ state >> 15


@borrowing_kernel
def _place(
    keys: Bytes, start: Int32s, size: Int32s, unkeyed_partition: Int32s, partitions: int, placed: Int32s
) -> bool:
    """Fill `placed`; False, and nothing read, at a key that leaves its buffer."""
    for row in range(len(placed)):
        if size[row] < 0:
            placed[row] = unkeyed_partition[row] % partitions
        elif start[row] < 0 or start[row] > len(keys) - size[row]:
            return False
        else:
            placed[row] = (_murmur2(keys, start[row], size[row]) & 0x7FFFFFFF) % partitions
    return True


@borrowing_kernel
def _group(placed: Int32s, ends: Int64s, rows: Index) -> bool:
    """A stable counting sort; False at a partition that is not there. `ends` starts as zeros."""
    for partition in placed:
        if partition < 0 or partition >= len(ends):
            return False
        ends[partition] += 1
    total = 0
    for partition in range(len(ends)):
        count = ends[partition]
        ends[partition] = total
        total += count
    for row in range(len(placed)):
        rows[ends[placed[row]]] = row
        ends[placed[row]] += 1
    return True
