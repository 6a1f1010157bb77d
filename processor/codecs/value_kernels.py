"""Compiled looks at the bytes of values."""

from __future__ import annotations

import numpy as np

from millstream.processor.columns import Bytes, Int32s
from millstream.processor.kernels import kernel

_SPACE, _TAB, _LINE_FEED, _RETURN = ord(" "), ord("\t"), ord("\n"), ord("\r")
_N, _U, _L = b"nul"
_ZERO, _NINE = ord("0"), ord("9")
_SMALLEST_BIG_INTEGER_DIGITS = 19


def _bytes_in(characters: bytes) -> Bytes:
    table = np.zeros(256, np.uint8)
    table[np.frombuffer(characters, np.uint8)] = 1
    return table


# `n` is left out: a row that can only be `null` is looked at by itself, because None means a tombstone.
_STARTS_VALUE = _bytes_in(b'{["-0123456789tf')
_ENDS_VALUE = _bytes_in(b'}]"0123456789e')


@kernel
def mark_whole_looking(buffer: Bytes, start: Int32s, size: Int32s, marks: Bytes) -> int:
    """Set `marks[row]` to 1 where a row's first and last byte, JSON whitespace aside, are a JSON value's, else to 0.

    Null and blank rows get 0. Answers the number of ones. `marks` has one place for each row.
    """
    count = 0
    for row in range(len(start)):
        first = start[row]
        last = first + size[row] - 1
        while first <= last and _is_space(buffer[first]):
            first += 1
        while last > first and _is_space(buffer[last]):
            last -= 1
        marks[row] = 0
        if first <= last and _STARTS_VALUE[buffer[first]] and _ENDS_VALUE[buffer[last]]:
            marks[row] = 1
            count += 1
    return count


@kernel
def split_lines(text: Bytes, start: Int32s, size: Int32s, nulls: Bytes) -> int:
    """Set where each line of `text` starts, its size without the newline, and `nulls[line]` to 1 where it holds `null`.

    Answers the number of newlines, which may be another than that of places in `start`, `size` and `nulls`: lines
    beyond them are only counted, and what follows the last newline is left out. One pass, without the temporary arrays
    that would cost more than the search itself.
    """
    line = 0
    begin = 0
    null = 0
    for i in range(len(text)):
        byte = text[i]
        if byte == _LINE_FEED:
            if line < len(start):
                start[line] = begin
                size[line] = i - begin
                nulls[line] = null
            line += 1
            begin = i + 1
            null = 0
        elif byte == _N and i + 3 < len(text) and text[i + 1] == _U and text[i + 2] == _L and text[i + 3] == _L:
            null = 1
    return line


@kernel
def mark_long_digit_runs(buffer: Bytes, start: Int32s, size: Int32s, marks: Bytes) -> int:
    """Set `marks[row]` to 1 where a row holds 19 or more digits in a row, which an integer beyond 64 bits needs.

    Answers the number of ones. `marks` has one place for each row.
    """
    count = 0
    for row in range(len(start)):
        run = 0
        marks[row] = 0
        for i in range(start[row], start[row] + size[row]):
            run = run + 1 if _ZERO <= buffer[i] <= _NINE else 0
            if run == _SMALLEST_BIG_INTEGER_DIGITS:
                marks[row] = 1
                count += 1
                break
    return count


@kernel
def _is_space(byte: int) -> bool:
    return byte in (_SPACE, _LINE_FEED, _TAB, _RETURN)
