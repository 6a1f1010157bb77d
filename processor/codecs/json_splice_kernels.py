"""Puts new field values into JSON objects: first how long each result is, then the bytes."""

from __future__ import annotations

import numpy as np

from millstream.processor.codecs.json_field_kernels import CELL_MISSING, is_utf8
from millstream.processor.columns import NULL_SIZE, Bools, Bytes, Int32s
from millstream.processor.kernels import borrowing_kernel, inlined

# The text of a string that needs escapes or is not UTF-8 is left to the caller.
TEXT_UNSURE = -2

_QUOTE = ord('"')
_BACKSLASH = ord("\\")
_SPACE = ord(" ")
_COMMA = ord(",")


@inlined
def _copy(source: Bytes, start: int, size: int, target: Bytes, position: int) -> int:
    """Returns the position after the copied bytes."""
    for i in range(size):
        target[np.uint64(position + i)] = source[np.uint64(start + i)]
    return position + size


@borrowing_kernel
def quote(source: Bytes, start: Int32s, size: Int32s, text_start: Int32s, text_size: Int32s, text: Bytes) -> int:
    """Strings in quotes, one after the other. `text` has room for all of them.

    `text_size` is -1 for null and `TEXT_UNSURE` where the string is not plain. Returns how many are not.
    """
    unsure = 0
    position = 0
    for row in range(len(start)):
        text_start[row] = position
        text_size[row] = NULL_SIZE
        if size[row] < 0:
            continue
        first = int(np.int64(start[row]))
        count = int(np.int64(size[row]))
        plain = True
        seen = 0
        text[position] = _QUOTE
        for i in range(count):
            byte = int(source[np.uint64(first + i)])
            text[np.uint64(position + 1 + i)] = byte
            plain &= byte >= _SPACE and byte != _QUOTE and byte != _BACKSLASH
            seen |= byte
        if plain and (seen < 128 or is_utf8(source, first, first + count)):
            text[np.uint64(position + 1 + count)] = _QUOTE
            text_size[row] = count + 2
            position += count + 2
        else:
            text_size[row] = TEXT_UNSURE
            unsure += 1
    return unsure


@borrowing_kernel
def splice_layout(
    wanted: Bools,
    size: Int32s,
    close: Int32s,
    place: Int32s,
    cell_state: Bytes,
    value_size: Int32s,
    text_size: Int32s,
    key_start: Int32s,
    result_start: Int32s,
    result_size: Int32s,
) -> int:
    """Where each row's result will stand, one after the other; null for rows that are not `wanted`.

    `place` says which rows of the scan's [fields, rows] arrays belong to the written fields; `text_size` is
    [written fields, rows]. Returns the bytes of all results together, which may be more than int32 can place.
    """
    total = 0
    for row in range(len(size)):
        result_start[row] = total
        result_size[row] = NULL_SIZE
        if not wanted[row]:
            continue
        length = int(np.int64(size[row]))
        members = close[row] >= 0
        for field in range(len(place)):
            length += text_size[field, row]
            if cell_state[place[field], row] != CELL_MISSING:
                length -= value_size[place[field], row]
            else:
                length += key_start[field + 1] - key_start[field] + (1 if members else 0)
                members = True
        result_size[row] = length
        total += length
    return total


@borrowing_kernel
def splice(
    source: Bytes,
    start: Int32s,
    size: Int32s,
    close: Int32s,
    place: Int32s,
    cell_state: Bytes,
    value_start: Int32s,
    value_size: Int32s,
    texts: Bytes,
    text_start: Int32s,
    text_size: Int32s,
    keys: Bytes,
    key_start: Int32s,
    result_start: Int32s,
    result_size: Int32s,
    result: Bytes,
) -> None:
    """Write the results that `splice_layout` has placed. `keys` are the written fields' names, quoted, with colons."""
    for row in range(len(start)):
        if result_size[row] < 0:
            continue
        target = int(np.int64(result_start[row]))
        position = int(np.int64(start[row]))
        end = position + int(np.int64(size[row]))
        closing = int(np.int64(close[row]))
        members = closing >= 0
        if not members:
            closing = ~closing
        while True:  # each value that is there, from left to right
            next_field = -1
            next_start = closing
            for field in range(len(place)):
                if cell_state[place[field], row] != CELL_MISSING:
                    found = int(np.int64(value_start[place[field], row]))
                    if position <= found < next_start:
                        next_field = field
                        next_start = found
            target = _copy(source, position, next_start - position, result, target)
            position = next_start
            if next_field < 0:
                break
            target = _copy(texts, text_start[next_field, row], text_size[next_field, row], result, target)
            position += value_size[place[next_field], row]
        for field in range(len(place)):
            if cell_state[place[field], row] == CELL_MISSING:
                if members:
                    result[np.uint64(target)] = _COMMA
                    target += 1
                members = True
                target = _copy(keys, key_start[field], key_start[field + 1] - key_start[field], result, target)
                target = _copy(texts, text_start[field, row], text_size[field, row], result, target)
        _copy(source, position, end - position, result, target)
