"""Reads declared top-level fields of JSON objects where they lie, and checks the whole document on the way.

One pass over each row's bytes. It either accepts the document as JSON (RFC 8259, as msgspec reads it) and notes
where each wanted field's value stands, or it gives the row up as `ROW_UNSURE`; it never decides that a document is
wrong. The same holds for each value: a number that is not exact in a few operations, or a value of another type
than declared, is left as `CELL_UNSURE`. Whoever calls this asks msgspec about everything that is unsure, so that
a doubt costs time and never a wrong answer.

Positions are int64 and are turned to uint64 where a byte is read: an unsigned index spares numba the test for
negative ones in the innermost loops. Every read is guarded by `position < end`, the end of the row, not of the buffer.

All of it stands in one file because numba's cache watches the file of the function that it keeps, and no other: an
edit to a part in another file would leave an old `scan` in use.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from millstream.processor.columns import Bytes, Int32s, Int64s
from millstream.processor.kernels import borrowing_kernel, inlined

Uint64s = npt.NDArray[np.uint64]
Float64s = npt.NDArray[np.float64]

# What is wanted of a field.
WANT_SPAN: Final = 0
WANT_INT64: Final = 1
WANT_FLOAT64: Final = 2
WANT_BOOL: Final = 3
WANT_STRING: Final = 4

# What became of a row.
ROW_READ: Final = 0
ROW_NULL: Final = 1
ROW_UNSURE: Final = 2

# What became of a row's field.
CELL_MISSING: Final = 0
CELL_READ: Final = 1
CELL_NULL: Final = 2
CELL_UNSURE: Final = 3

# Containers are kept as the bits of one int64; deeper documents are unsure.
_DEPTH_MAX: Final = 60

# Eisel-Lemire multiplies by powers of ten; outside of these exponents results may be subnormal or infinite.
_POWER_MIN: Final = -307
_POWER_MAX: Final = 288

_DIGITS_MAX: Final = 19  # as many always fit into a uint64
_EXPONENT_CAP: Final = 10_000
_NONE: Final = -1


def _power_of_ten_high(exponent: int) -> int:
    """The first 64 bits of 10**exponent, cut off, with the highest bit set."""
    if exponent >= 0:
        power: int = 10**exponent
        shift = power.bit_length() - 64
        return power >> shift if shift >= 0 else power << -shift
    divisor: int = 10**-exponent
    quotient = (1 << (divisor.bit_length() + 128)) // divisor
    return quotient >> (quotient.bit_length() - 64)


_POWERS_OF_TEN: Final[Uint64s] = np.array([_power_of_ten_high(e) for e in range(_POWER_MIN, _POWER_MAX + 1)], np.uint64)
_EXACT_POWERS_OF_TEN: Final[Float64s] = np.array([float(10**e) for e in range(23)], np.float64)

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_SPACE: Final = ord(" ")
_COMMA: Final = ord(",")
_COLON: Final = ord(":")
_MINUS: Final = ord("-")
_PLUS: Final = ord("+")
_POINT: Final = ord(".")
_ZERO: Final = ord("0")
_NINE: Final = ord("9")
_OBJECT: Final = ord("{")
_OBJECT_END: Final = ord("}")
_ARRAY: Final = ord("[")
_ARRAY_END: Final = ord("]")
_LOWER_A, _LOWER_E, _LOWER_F, _LOWER_L, _LOWER_N = (ord(letter) for letter in "aefln")
_LOWER_R, _LOWER_S, _LOWER_T, _LOWER_U = (ord(letter) for letter in "rstu")


def _bytes_in(members: bytes) -> Bytes:
    """A table that holds 1 for each byte in `members`."""
    return np.isin(np.arange(256), np.frombuffer(members, np.uint8)).astype(np.uint8)


_IS_SPACE: Final = _bytes_in(b" \t\n\r")
_IS_SHORT_ESCAPE: Final = _bytes_in(b'"\\/bfnrt')


@inlined
def _skip_space(buffer: Bytes, position: int, end: int) -> int:
    while position < end and buffer[np.uint64(position)] <= _SPACE and _IS_SPACE[buffer[np.uint64(position)]]:
        position += 1
    return position


@borrowing_kernel
def _hex4(buffer: Bytes, position: int, end: int) -> int:
    """The number that four hexadecimal digits spell, or -1."""
    if end - position < 4:
        return _NONE
    value = 0
    for i in range(4):
        byte = int(buffer[np.uint64(position + i)])
        letter = byte | 32
        if _ZERO <= byte <= _NINE:
            value = value * 16 + (byte - _ZERO)
        elif _LOWER_A <= letter <= _LOWER_F:
            value = value * 16 + (letter - _LOWER_A + 10)
        else:
            return _NONE
    return value


@borrowing_kernel
def _skip_escape(buffer: Bytes, position: int, end: int) -> int:
    """From the byte after a backslash to the first byte after the escape, or -1."""
    if position >= end:
        return _NONE
    byte = buffer[np.uint64(position)]
    if byte != _LOWER_U:
        return position + 1 if _IS_SHORT_ESCAPE[byte] else _NONE
    code = _hex4(buffer, position + 1, end)
    position += 5
    if code < 0 or 0xDC00 <= code <= 0xDFFF:
        return _NONE
    if code < 0xD800 or code > 0xDFFF:
        return position
    # The first half of a surrogate pair; the second has to follow.
    if end - position < 6 or buffer[np.uint64(position)] != _BACKSLASH:
        return _NONE
    if buffer[np.uint64(position + 1)] != _LOWER_U or not 0xDC00 <= _hex4(buffer, position + 2, end) <= 0xDFFF:
        return _NONE
    return position + 6


@inlined
def _skip_string(buffer: Bytes, position: int, end: int) -> tuple[int, bool, bool]:
    """From the byte after the opening quote to the byte after the closing one, or -1.

    Also: whether there are escapes, and whether there are bytes beyond ASCII.
    """
    escaped = False
    seen = 0
    while position < end:
        byte = int(buffer[np.uint64(position)])
        position += 1
        if byte == _QUOTE:
            return position, escaped, seen >= 128
        if byte == _BACKSLASH:
            escaped = True
            position = _skip_escape(buffer, position, end)
            if position < 0:
                break
        elif byte < _SPACE:
            break
        seen |= byte
    return _NONE, escaped, False


@inlined
def _literal_size(buffer: Bytes, position: int, end: int) -> int:
    """4 for true or null, 5 for false, -1 for anything else."""
    if end - position < 4:
        return _NONE
    first = buffer[np.uint64(position)]
    second = buffer[np.uint64(position + 1)]
    third = buffer[np.uint64(position + 2)]
    fourth = buffer[np.uint64(position + 3)]
    if first == _LOWER_T and second == _LOWER_R and third == _LOWER_U and fourth == _LOWER_E:
        return 4
    if first == _LOWER_N and second == _LOWER_U and third == _LOWER_L and fourth == _LOWER_L:
        return 4
    if first == _LOWER_F and second == _LOWER_A and third == _LOWER_L and fourth == _LOWER_S and end - position > 4:
        return 5 if buffer[np.uint64(position + 4)] == _LOWER_E else _NONE
    return _NONE


@inlined
def _number(buffer: Bytes, position: int, end: int) -> tuple[int, np.uint64, int, int, bool, bool]:
    """Reads a number: the position after it (or -1), its digits as an integer, the power of ten to multiply them
    with, how many digits there are, whether it is negative, and whether it is written with a point or an exponent.

    With more than 19 digits the integer has wrapped around and means nothing.
    """
    mantissa = np.uint64(0)
    exponent = 0
    negative = False
    fractional = False
    if position < end and buffer[np.uint64(position)] == _MINUS:
        negative = True
        position += 1
    first = position
    while position < end:
        byte = buffer[np.uint64(position)]
        if byte < _ZERO or byte > _NINE:
            break
        mantissa = mantissa * np.uint64(10) + np.uint64(byte - _ZERO)
        position += 1
    digits = position - first
    if digits == 0 or (digits > 1 and buffer[np.uint64(first)] == _ZERO):
        return _NONE, mantissa, 0, 0, negative, fractional
    if position < end and buffer[np.uint64(position)] == _POINT:
        fractional = True
        position += 1
        first = position
        while position < end:
            byte = buffer[np.uint64(position)]
            if byte < _ZERO or byte > _NINE:
                break
            mantissa = mantissa * np.uint64(10) + np.uint64(byte - _ZERO)
            position += 1
        if position == first:
            return _NONE, mantissa, 0, 0, negative, fractional
        digits += position - first
        exponent = first - position
    if position < end and buffer[np.uint64(position)] | 32 == _LOWER_E:
        fractional = True
        position += 1
        sign = 1
        if position < end and (buffer[np.uint64(position)] == _PLUS or buffer[np.uint64(position)] == _MINUS):
            sign = -1 if buffer[np.uint64(position)] == _MINUS else 1
            position += 1
        first = position
        written = 0
        while position < end:
            byte = buffer[np.uint64(position)]
            if byte < _ZERO or byte > _NINE:
                break
            if written < _EXPONENT_CAP:
                written = written * 10 + int(byte - _ZERO)
            position += 1
        if position == first:
            return _NONE, mantissa, 0, 0, negative, fractional
        exponent += sign * written
    return position, mantissa, exponent, digits, negative, fractional


@borrowing_kernel
def _float_bits(mantissa: np.uint64, exponent: int) -> int:
    """The bits of the double nearest to `mantissa * 10**exponent`, or -1 where this way cannot tell.

    Eisel and Lemire's algorithm (https://nigeltao.github.io/blog/2020/eisel-lemire.html) with the first 64 bits of the
    power alone. `mantissa` is not 0.
    """
    if exponent < _POWER_MIN or exponent > _POWER_MAX:
        return _NONE
    shifted = 0
    for step in (32, 16, 8, 4, 2, 1):
        if mantissa >> np.uint64(64 - step) == np.uint64(0):
            mantissa <<= np.uint64(step)
            shifted += step
    power = _POWERS_OF_TEN[np.uint64(exponent - _POWER_MIN)]
    half = np.uint64(32)
    low = np.uint64(0xFFFFFFFF)
    m_low, m_high, p_low, p_high = mantissa & low, mantissa >> half, power & low, power >> half
    cross = m_high * p_low + (m_low * p_low >> half)
    cross_low = (cross & low) + m_low * p_high
    high = m_high * p_high + (cross >> half) + (cross_low >> half)
    rest = mantissa * power
    # The power was cut off: the true product is less than `mantissa` above this one. Could that carry into `high`?
    if high & np.uint64(0x1FF) == np.uint64(0x1FF) and rest + mantissa < mantissa:
        return _NONE
    top = high >> np.uint64(63)
    result = high >> (top + np.uint64(9))
    if rest == np.uint64(0) and high & np.uint64(0x1FF) == np.uint64(0) and result & np.uint64(3) == np.uint64(1):
        return _NONE
    binary_exponent = (217706 * exponent >> 16) + 64 + 1023 - shifted - (1 - int(np.int64(top)))
    result = (result + (result & np.uint64(1))) >> np.uint64(1)
    if result >> np.uint64(53) != np.uint64(0):
        result >>= np.uint64(1)
        binary_exponent += 1
    if binary_exponent <= 0 or binary_exponent >= 0x7FF:
        return _NONE
    return (binary_exponent << 52) | int(np.int64(result & np.uint64(0xFFFFFFFFFFFFF)))


@borrowing_kernel
def is_utf8(buffer: Bytes, position: int, end: int) -> bool:
    """Whether the bytes are UTF-8 as Unicode defines it: shortest forms, no surrogates, nothing beyond U+10FFFF."""
    while position < end:
        byte = int(buffer[np.uint64(position)])
        position += 1
        if byte < 0x80:
            continue
        lowest, highest = 0x80, 0xBF  # of the second byte
        if 0xC2 <= byte <= 0xDF:
            more = 1
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            if byte == 0xE0:
                lowest = 0xA0
            elif byte == 0xED:
                highest = 0x9F
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            if byte == 0xF0:
                lowest = 0x90
            elif byte == 0xF4:
                highest = 0x8F
        else:
            return False
        if end - position < more:
            return False
        for i in range(more):
            byte = int(buffer[np.uint64(position + i)])
            if byte < lowest or byte > highest:
                return False
            lowest, highest = 0x80, 0xBF
        position += more
    return True


@inlined
def _field_of(buffer: Bytes, first: int, size: int, names: Bytes, name_start: Int32s) -> int:
    """The place of the field whose name these bytes are, or -1. Name i is `names[name_start[i]:name_start[i + 1]]`."""
    for field in range(len(name_start) - 1):
        name = int(name_start[field])
        if name_start[field + 1] - name != size:
            continue
        same = 0
        while same < size and buffer[np.uint64(first + same)] == names[np.uint64(name + same)]:
            same += 1
        if same == size:
            return field
    return _NONE


@inlined
def _skip_scalar(buffer: Bytes, position: int, end: int) -> int:
    """Past a string, number or literal, or -1."""
    byte = buffer[np.uint64(position)]
    if byte == _QUOTE:
        return _skip_string(buffer, position + 1, end)[0]
    if byte == _MINUS or _ZERO <= byte <= _NINE:
        return _number(buffer, position, end)[0]
    size = _literal_size(buffer, position, end)
    return position + size if size > 0 else _NONE


@inlined
def _skip_key(buffer: Bytes, position: int, end: int) -> tuple[int, int, bool]:
    """From a key's opening quote to the first byte of its value, or -1.

    Also: where the key's closing quote stands, and whether the key has escapes.
    """
    if position >= end or buffer[np.uint64(position)] != _QUOTE:
        return _NONE, _NONE, False
    after, escaped, _ = _skip_string(buffer, position + 1, end)
    if after < 0:
        return _NONE, _NONE, False
    position = _skip_space(buffer, after, end)
    if position >= end or buffer[np.uint64(position)] != _COLON:
        return _NONE, _NONE, False
    position = _skip_space(buffer, position + 1, end)
    return (position if position < end else _NONE), after - 1, escaped


@inlined
def _skip_value(buffer: Bytes, position: int, end: int) -> int:
    """From a value's first byte, which there is, to the byte after the value, or -1."""
    depth = 0
    containers = 0  # bit 0 is the innermost: 1 for an object, 0 for an array
    while True:
        byte = buffer[np.uint64(position)]
        opened = byte in (_OBJECT, _ARRAY)
        if opened:
            if depth == _DEPTH_MAX:
                return _NONE
            depth += 1
            containers = containers << 1 | (1 if byte == _OBJECT else 0)
            position += 1
        else:
            position = _skip_scalar(buffer, position, end)
            if position < 0:
                return _NONE
        while True:
            if depth == 0:
                return position
            position = _skip_space(buffer, position, end)
            if position >= end:
                return _NONE
            if buffer[np.uint64(position)] != (_OBJECT_END if containers & 1 else _ARRAY_END):
                break
            opened = False
            depth -= 1
            containers >>= 1
            position += 1
        if not opened:
            if buffer[np.uint64(position)] != _COMMA:
                return _NONE
            position = _skip_space(buffer, position + 1, end)
        if containers & 1:
            position = _skip_key(buffer, position, end)[0]
        if position < 0 or position >= end:
            return _NONE


@inlined
def _read_number(
    buffer: Bytes, position: int, end: int, want: int, integers: Int64s, floats: Float64s, row: int
) -> tuple[int, int]:
    """Past a number (or -1), and the state of its cell, which is an INT64 or a FLOAT64."""
    position, mantissa, exponent, digits, negative, fractional = _number(buffer, position, end)
    if position < 0 or digits > _DIGITS_MAX:
        return position, CELL_UNSURE
    if not fractional:
        if mantissa >> np.uint64(63) != np.uint64(0):
            return position, CELL_UNSURE
        value = -np.int64(mantissa) if negative else np.int64(mantissa)
        if want == WANT_INT64:
            integers[row] = value
        else:
            floats[row] = np.float64(value)
        return position, CELL_READ
    if want != WANT_FLOAT64:
        return position, CELL_UNSURE
    if mantissa >> np.uint64(53) == np.uint64(0) and -22 <= exponent <= 22:
        # Both are exact doubles, so one operation rounds once, and rightly (Clinger).
        if exponent < 0:
            floats[row] = np.float64(mantissa) / _EXACT_POWERS_OF_TEN[-exponent]
        else:
            floats[row] = np.float64(mantissa) * _EXACT_POWERS_OF_TEN[exponent]
    elif mantissa == np.uint64(0):
        floats[row] = 0.0
    else:
        bits = _float_bits(mantissa, exponent)
        if bits < 0:
            return position, CELL_UNSURE
        integers[row] = bits
    if negative:
        floats[row] = -floats[row]
    return position, CELL_READ


@inlined
def _read_value(
    buffer: Bytes, position: int, end: int, want: int, integers: Int64s, floats: Float64s, row: int
) -> tuple[int, int]:
    """Past the value of a wanted field (or -1), and the state of its cell."""
    byte = buffer[np.uint64(position)]
    if byte == _QUOTE and want == WANT_STRING:
        first = position + 1
        position, escaped, beyond = _skip_string(buffer, first, end)
        plain = position > 0 and not escaped and (not beyond or is_utf8(buffer, first, position - 1))
        return position, CELL_READ if plain else CELL_UNSURE
    if (byte == _MINUS or _ZERO <= byte <= _NINE) and want in (WANT_INT64, WANT_FLOAT64):
        return _read_number(buffer, position, end, want, integers, floats, row)
    if want != WANT_SPAN and byte in (_LOWER_N, _LOWER_T, _LOWER_F):
        size = _literal_size(buffer, position, end)
        if size < 0:
            return _NONE, CELL_UNSURE
        if byte == _LOWER_N:
            return position + size, CELL_NULL
        if want == WANT_BOOL:
            integers[row] = 1 if byte == _LOWER_T else 0
            return position + size, CELL_READ
        return position + size, CELL_UNSURE
    return _skip_value(buffer, position, end), CELL_READ if want == WANT_SPAN else CELL_UNSURE


@borrowing_kernel
def scan(
    buffer: Bytes,
    start: Int32s,
    size: Int32s,
    names: Bytes,
    name_start: Int32s,
    wanted: Bytes,
    row_state: Bytes,
    close: Int32s,
    cell_state: Bytes,
    value_start: Int32s,
    value_size: Int32s,
    integers: Int64s,
    floats: Float64s,
) -> int:
    """Read the wanted fields of all rows; returns how many rows and cells are unsure.

    `row_state` and `close` are [rows]. `close` is where the closing brace stands, as its complement (`~`) where the
    object has no members. The others are [fields, rows]; `cell_state` comes as zeros, and a span is set for each cell
    that is not `CELL_MISSING`. `integers` and `floats` are two views of one memory: a FLOAT64 goes through the
    second, an INT64 or a BOOL through the first, where the cell is `CELL_READ`; other cells keep what they hold.
    A STRING is its span without the quotes. Cells of a row that is not `ROW_READ` mean nothing, set or not.
    """
    unsure = 0
    for row in range(len(start)):
        if size[row] < 0:
            row_state[row] = ROW_NULL
            continue
        row_state[row] = ROW_UNSURE
        unsure += 1
        position = int(np.int64(start[row]))
        end = position + int(size[row])
        position = _skip_space(buffer, position, end)
        if position >= end or buffer[np.uint64(position)] != _OBJECT:
            continue
        position = _skip_space(buffer, position + 1, end)
        if position < end and buffer[np.uint64(position)] == _OBJECT_END:
            close[row] = ~position
            if _skip_space(buffer, position + 1, end) == end:
                row_state[row] = ROW_READ
                unsure -= 1
            continue
        unsure_cells = 0
        while True:
            first = position + 1
            position, after, escaped = _skip_key(buffer, position, end)
            if position < 0 or escaped:  # an escaped key may spell a wanted name
                break
            field = _field_of(buffer, first, after - first, names, name_start)
            if field < 0:
                position = _skip_value(buffer, position, end)
            elif cell_state[field, row] != CELL_MISSING:  # the same name again: msgspec decides
                break
            else:
                first = position
                position, state = _read_value(
                    buffer, first, end, int(wanted[field]), integers[field], floats[field], row
                )
                cell_state[field, row] = state
                value_start[field, row] = first
                value_size[field, row] = position - first
                if state == CELL_UNSURE:
                    unsure_cells += 1
            if position < 0:
                break
            position = _skip_space(buffer, position, end)
            if position >= end:
                break
            byte = buffer[np.uint64(position)]
            if byte == _OBJECT_END:
                close[row] = position
                if _skip_space(buffer, position + 1, end) == end:
                    row_state[row] = ROW_READ
                    unsure += unsure_cells - 1
                break
            if byte != _COMMA:
                break
            position = _skip_space(buffer, position + 1, end)
    return unsure
