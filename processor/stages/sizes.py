"""How many bytes a record takes as the only one of its batch, which decides whether a topic can hold it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millstream.processor.columns import Index, Slices

BATCH_HEADER_SIZE = 61
# Beside its key, value and headers, a record alone in its batch has its own length, one byte each for attributes,
# timestamp delta and offset delta, and the lengths of key and value; a varint of 32 bits takes 5 bytes at most.
OVERHEAD_MAX = BATCH_HEADER_SIZE + 5 + 3 + 5 + 5


def too_large(key: Slices, value: Slices, headers: Slices, limit: int) -> Index:
    """The rows whose record, alone in a batch, is larger than `limit` bytes."""
    content = _bytes(key) + _bytes(value) + _bytes(headers)
    suspects = np.flatnonzero(content > limit - OVERHEAD_MAX)
    if not len(suspects):
        return suspects
    sizes = alone_sizes(key.take(suspects), value.take(suspects), headers.take(suspects))
    return suspects[sizes > limit]


def alone_sizes(key: Slices, value: Slices, headers: Slices) -> npt.NDArray[np.int64]:
    """The size in bytes of a batch that holds nothing but the record, for each row."""
    body = 3 + _varint_size(key.size) + _bytes(key) + _varint_size(value.size) + _bytes(value) + _bytes(headers)
    sizes: npt.NDArray[np.int64] = BATCH_HEADER_SIZE + _varint_size(body) + body
    return sizes


def _bytes(column: Slices) -> npt.NDArray[np.int64]:
    return np.maximum(column.size, 0).astype(np.int64)


def _varint_size(values: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.int64]:
    wide = values.astype(np.int64)
    zigzag = (wide << 1) ^ (wide >> 63)
    size = np.ones(len(wide), np.int64)
    for bits in (7, 14, 21, 28, 35):
        size += zigzag >= 1 << bits
    return size
