"""What the judge needs of events: `id`, `seq` and `sent_us` of each, out of their JSON, as columns.

A compiled scan reads what is plainly an event: one flat object of names, numbers and strings without escapes. All else,
from nested objects to bytes that are no JSON at all, is left to msgspec, which has the last word on what an event is:
the scan accepts a value only where msgspec would find the same in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from millstream.processor.columns import Bools, Bytes, Int64s, Slices
from millstream.processor.kernels import borrowing_kernel, inlined

_FIELDS = 3
_DIGITS_MAX = 18

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Event(msgspec.Struct, gc=False):
    """All other fields are skipped without being built."""

    id: _Int64
    seq: _Int64
    sent_us: _Int64


_decoder = msgspec.json.Decoder(_Event)


@dataclass(frozen=True, slots=True)
class EventFields:
    """One row for each value. Where `is_event` is false, the other columns mean nothing."""

    event_id: Int64s
    seq: Int64s
    sent_us: Int64s
    is_event: Bools


def event_fields(values: Sequence[bytes | None]) -> EventFields:
    """The fields of each value. A null, and what is not an event, is no event."""
    column = Slices.from_list(values)
    found = np.empty((_FIELDS, len(values)), np.int64)
    is_event = np.zeros(len(values), np.bool_)
    _scan(column.buffer, column.start.astype(np.int64), column.size.astype(np.int64), found, is_event)
    if not is_event.all():
        _decode_rest(values, np.flatnonzero(~is_event), found, is_event)
    return EventFields(found[0], found[1], found[2], is_event)


def _decode_rest(
    values: Sequence[bytes | None], rows: npt.NDArray[np.intp], found: npt.NDArray[np.int64], is_event: Bools
) -> None:
    rest = [values[row] for row in rows.tolist()]
    decoded = _decoded_together(rest) or [_decoded_alone(value) for value in rest]
    for row, event in zip(rows.tolist(), decoded, strict=True):
        if event is not None:
            found[:, row] = event.id, event.seq, event.sent_us
            is_event[row] = True


def _decoded_together(values: list[bytes | None]) -> list[_Event | None] | None:
    """All values at once; None where one of them is not an event, or not one line."""
    try:
        events: list[_Event | None] = [*_decoder.decode_lines(b"\n".join(values))]  # type: ignore[arg-type]  # see except
    except (msgspec.DecodeError, TypeError, UnicodeDecodeError):
        return None
    return events if len(events) == len(values) else None


def _decoded_alone(value: bytes | None) -> _Event | None:
    if value is None:
        return None
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


@inlined
def _after_spaces(data: Bytes, position: int, end: int) -> int:
    while position < end and data[position] == 32:
        position += 1
    return position


@inlined
def _after_string(data: Bytes, position: int, end: int) -> int:
    """Behind the closing quote of the string whose first character is at `position`; -1 where it is not plain ASCII."""
    while position < end:
        byte = data[position]
        if byte == 34:
            return position + 1
        if byte < 32 or byte == 92 or byte > 126:
            return -1
        position += 1
    return -1


@inlined
def _after_digits(data: Bytes, position: int, end: int) -> int:
    while position < end and 48 <= data[position] <= 57:
        position += 1
    return position


@inlined
def _after_number(data: Bytes, position: int, end: int) -> int:
    """Behind a number as JSON writes it; -1 where it is none."""
    if position < end and data[position] == 45:
        position += 1
    first = position
    position = _after_digits(data, position, end)
    if position == first or (data[first] == 48 and position - first > 1):
        return -1
    if position < end and data[position] == 46:
        first = position + 1
        position = _after_digits(data, first, end)
        if position == first:
            return -1
    # Exponents are rare in events, and msgspec has its own view of the largest.
    if position < end and (data[position] == 101 or data[position] == 69):
        return -1
    return position


@inlined
def _field_at(data: Bytes, start: int, size: int) -> int:
    """Which of the wanted fields the name is: 0 id, 1 seq, 2 sent_us; -1 another."""
    if size == 2 and data[start] == 105 and data[start + 1] == 100:
        return 0
    if size == 3 and data[start] == 115 and data[start + 1] == 101 and data[start + 2] == 113:
        return 1
    # s e n t _ u s
    if size == 7 and data[start] == 115 and data[start + 1] == 101 and data[start + 2] == 110:
        rest = data[start + 3] == 116 and data[start + 4] == 95 and data[start + 5] == 117 and data[start + 6] == 115
        return 2 if rest else -1
    return -1


@borrowing_kernel
def _scan_one(data: Bytes, position: int, end: int, found: npt.NDArray[np.int64], row: int) -> bool:
    seen = 0
    if position >= end or data[position] != 123:
        return False
    position += 1
    while True:
        position = _after_spaces(data, position, end)
        if position >= end or data[position] != 34:
            return False
        name = position + 1
        position = _after_string(data, name, end)
        if position < 0:
            return False
        field = _field_at(data, name, position - 1 - name)
        position = _after_spaces(data, position, end)
        if position >= end or data[position] != 58:
            return False
        position = _after_spaces(data, position + 1, end)
        if position >= end:
            return False
        if field >= 0:
            first = position
            position = _after_number(data, position, end)
            if position < 0 or position - first > _DIGITS_MAX or seen & (1 << field):
                return False
            number = np.int64(0)
            for digit in range(first + (data[first] == 45), position):
                if data[digit] == 46:
                    return False
                number = number * 10 + np.int64(data[digit]) - 48
            found[field, row] = -number if data[first] == 45 else number
            seen |= 1 << field
        elif data[position] == 34:
            position = _after_string(data, position + 1, end)
        else:
            position = _after_number(data, position, end)
        if position < 0:
            return False
        position = _after_spaces(data, position, end)
        if position >= end:
            return False
        if data[position] == 125:
            return seen == 7 and position + 1 == end
        if data[position] != 44:
            return False
        position += 1


@borrowing_kernel
def _scan(data: Bytes, start: Int64s, size: Int64s, found: npt.NDArray[np.int64], is_event: Bools) -> None:
    """Fill the columns of the rows that are plainly events, and mark them."""
    for row in range(len(start)):
        if size[row] > 0:
            is_event[row] = _scan_one(data, start[row], start[row] + size[row], found, row)
