"""Many JSON values at once: joined into lines for one call of msgspec, and provably taken apart again.

Decoding. `decode_lines` reads one value after the other and does not care where the lines end, so rows such as
`{"a":1,` and `"b":2}{"c":3}` would together yield two values, both wrong. Joining is safe all the same for rows that
*look whole*: their first byte (JSON whitespace aside) is one of `{ [ " - 0..9 t f`, their last one of `} ] " 0..9 e`.

    Claim: if the joined text of whole-looking rows, each followed by a newline, is decoded without an error and
    into as many values as there are rows, then value k is exactly the value of row k.

    Proof. Call the parser *outside* where it stands between top-level values. By induction it is outside at the
    start of each row. There, a first byte as above begins a value, so the row yields at least one value unless the
    parser fails or the value goes on beyond the row. It cannot go on beyond the row:
    - If the last byte lies inside a string, the newline after it does too, and JSON refuses raw newlines in strings.
    - If the last byte leaves a number or a word unfinished (`1e`, `tre`), the newline ends it, which is an error.
    - Otherwise the last byte completes a token: a closing bracket, the end of a string, a number or a word. Inside of
      an array or object the next token must then be one of `, : ] }`. The next row begins with none of these, and
      after the last row there is nothing: an error either way.
    So the parser is outside again after each row, and each row has yielded one value or more. With as many values
    as rows, each has yielded one, which was all of it. QED.

Rows that do not look whole (blank, cut off, the word `null`) are decoded one by one. Where the joined text fails, or
yields too many values, the rows are halved and tried again, so a bad row costs about two blocks' time and no more.

Encoding. `encode_lines` ends each value with a newline and writes none inside of a value, except in `msgspec.Raw`.
Each value adds one newline at least, so if there are as many newlines as values, each ends one value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from millstream.processor.codecs.messages import undecodable, unencodable
from millstream.processor.codecs.value_kernels import mark_whole_looking, split_lines
from millstream.processor.columns import NULL_SIZE, Bytes, Slices
from millstream.processor.errors import DecodeError, EncodeError

# Large enough that a call's own cost vanishes, small enough that a bad row makes little work be done twice.
_BLOCK_ROWS = 4096
# Below this, halving costs more calls than looking at each row.
_ROWS_ONE_BY_ONE = 4

_ENCODER = msgspec.json.Encoder()


JsonDecoder = msgspec.json.Decoder[Any]


@dataclass(slots=True)
class _Outcome:
    """Grows row by row, in order."""

    values: list[object] = field(default_factory=list)
    errors: dict[int, DecodeError] = field(default_factory=dict)


def decode_each_line(
    decoder: JsonDecoder, values: Slices, codec: str, *, null_refusal: str | None = None
) -> tuple[list[object], dict[int, DecodeError]]:
    """An object for each row, and an error for each row that is not one JSON value of the decoder's type.

    Null rows, and rows in error, hold None; so do rows that are the text `null`, which are an error with the message
    `null_refusal` if there is one. A type's own checks may see a value more than once. Raises OverflowError where all
    rows together pass 2 GiB, and MemoryError.
    """
    joined = values.gathered(b"\n")
    marks = np.empty(len(values), np.uint8)
    if mark_whole_looking(joined.buffer, joined.start, joined.size, marks) == len(values):
        outcome = _decode_joined(decoder, joined, codec)
        return outcome.values, outcome.errors

    decoded: list[object] = [None] * len(values)
    errors: dict[int, DecodeError] = {}
    whole = np.flatnonzero(marks)
    outcome = _decode_joined(decoder, joined.take(whole).gathered(b"\n"), codec)
    rows = whole.tolist()
    for row, value in zip(rows, outcome.values, strict=True):
        decoded[row] = value
    errors.update((rows[k], error) for k, error in outcome.errors.items())
    text = joined.buffer.data
    for row in np.flatnonzero((marks == 0) & (values.size != NULL_SIZE)).tolist():
        start = int(joined.start[row])
        result = _decode_one(decoder, text[start : start + int(joined.size[row])], codec)
        if result is None and null_refusal is not None:
            result = DecodeError(f"{codec}: {null_refusal}")
        if isinstance(result, DecodeError):
            errors[row] = result
        else:
            decoded[row] = result
    return decoded, dict(sorted(errors.items()))


def _decode_joined(decoder: JsonDecoder, lines: Slices, codec: str) -> _Outcome:
    """All rows of `lines` look whole and stand one after the other, each followed by a newline."""
    outcome = _Outcome()
    borders = [*lines.start.tolist(), len(lines.buffer)]
    text = lines.buffer.data
    for first in range(0, len(lines), _BLOCK_ROWS):
        _decode_block(decoder, text, borders[first : first + _BLOCK_ROWS + 1], codec, outcome)
    return outcome


def _decode_block(decoder: JsonDecoder, text: memoryview, borders: list[int], codec: str, outcome: _Outcome) -> None:
    rows = len(borders) - 1
    try:
        values = decoder.decode_lines(text[borders[0] : borders[-1]])
    except MemoryError:
        raise
    except Exception:  # msgspec's errors, too deep a nesting, and whatever a type's own checks raise
        values = []
    if len(values) == rows:
        outcome.values += values
    elif rows <= _ROWS_ONE_BY_ONE:
        for start, end in pairwise(borders):
            result = _decode_one(decoder, text[start:end], codec)
            if isinstance(result, DecodeError):
                outcome.errors[len(outcome.values)] = result
                result = None
            outcome.values.append(result)
    else:
        middle = rows // 2
        _decode_block(decoder, text, borders[: middle + 1], codec, outcome)
        _decode_block(decoder, text, borders[middle:], codec, outcome)


def _decode_one(decoder: JsonDecoder, text: memoryview, codec: str) -> object:
    """The value, or a DecodeError as a value: no traceback, which would hold on to the batch."""
    try:
        return decoder.decode(text)
    except MemoryError:
        raise
    except Exception as error:
        return undecodable(codec, error)


@dataclass(frozen=True, slots=True)
class EncodedLines:
    """A row for each object, null for None and for those in `errors`.

    `may_hold_null[row]` is 0 where no `null` stands in the row.
    """

    rows: Slices
    may_hold_null: Bytes
    errors: dict[int, EncodeError]


def encode_each_line(values: Sequence[object], codec: str) -> EncodedLines:
    """A row of JSON for each object, and an error for each that cannot be JSON.

    Raises OverflowError where all rows together pass 2 GiB, and MemoryError.
    """
    lines = _encode_joined(values)
    if lines is not None:
        return lines
    errors: dict[int, EncodeError] = {}
    for first in range(0, len(values), _BLOCK_ROWS):
        _find_unencodable(values[first : first + _BLOCK_ROWS], first, codec, errors)
    lines = _encode_joined([None if row in errors else value for row, value in enumerate(values)]) if errors else None
    if lines is not None:
        return replace(lines, errors=errors)
    return _encode_one_by_one(values, codec)


def _encode_joined(values: Sequence[object]) -> EncodedLines | None:
    """All rows from one call; None where an object cannot be encoded, or holds newlines of its own."""
    present = [value for value in values if value is not None]
    try:
        text = np.frombuffer(_ENCODER.encode_lines(present), np.uint8)
    except MemoryError:
        raise
    except Exception:  # msgspec's errors, and whatever the values' own code raises
        return None
    if len(text) > np.iinfo(np.int32).max:
        raise OverflowError(f"{len(text)} bytes do not fit into one column (2 GiB at most)")
    start, size = np.empty(len(present), np.int32), np.empty(len(present), np.int32)
    nulls = np.empty(len(present), np.uint8)
    if split_lines(text, start, size, nulls) != len(present):
        return None
    lines = EncodedLines(Slices(text, start, size), nulls, {})
    return lines if len(present) == len(values) else _with_null_rows(lines, values)


def _with_null_rows(lines: EncodedLines, values: Sequence[object]) -> EncodedLines:
    present = np.array([value is not None for value in values], np.bool_)
    start = np.zeros(len(values), np.int32)
    size = np.full(len(values), NULL_SIZE, np.int32)
    may_hold_null = np.zeros(len(values), np.uint8)
    start[present] = lines.rows.start
    size[present] = lines.rows.size
    may_hold_null[present] = lines.may_hold_null
    return EncodedLines(Slices(lines.rows.buffer, start, size), may_hold_null, {})


def _find_unencodable(values: Sequence[object], first: int, codec: str, errors: dict[int, EncodeError]) -> None:
    """Add an error for each object that cannot be encoded; `values[0]` is row `first`."""
    try:
        _ENCODER.encode_lines(values)
    except MemoryError:
        raise
    except Exception as error:
        if len(values) == 1:
            errors[first] = unencodable(codec, values[0], error)
            return
        middle = len(values) // 2
        _find_unencodable(values[:middle], first, codec, errors)
        _find_unencodable(values[middle:], first + middle, codec, errors)


def _encode_one_by_one(values: Sequence[object], codec: str) -> EncodedLines:
    rows: list[bytes | None] = []
    errors: dict[int, EncodeError] = {}
    encode_singly(_ENCODER.encode, values, codec, rows, errors)
    slices = Slices.from_list(rows)
    return EncodedLines(slices, (slices.size != NULL_SIZE).astype(np.uint8), errors)


def encode_singly(
    encode: Callable[[object], bytes],
    values: Sequence[object],
    codec: str,
    rows: list[bytes | None],
    errors: dict[int, EncodeError],
) -> None:
    """Append a row for each object; None for None, and for each that cannot be encoded, with its error."""
    for value in values:
        row: bytes | None = None
        if value is not None:
            try:
                row = encode(value)
            except MemoryError:
                raise
            except Exception as error:
                errors[len(rows)] = unencodable(codec, value, error)
        rows.append(row)
