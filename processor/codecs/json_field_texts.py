"""A column as JSON: the text of each row's value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from millstream.processor.codecs import json_splice_kernels as kernels
from millstream.processor.codecs.json_field_scan import borrowed
from millstream.processor.codecs.json_field_types import Field, FieldType
from millstream.processor.columns import Bools, Slices
from millstream.processor.errors import EncodeError

NonFinite = Literal["refuse", "null"]
WritableColumn = npt.NDArray[np.generic] | Slices | Sequence[str | None]
Problems = dict[int, str]

# From here on two integers may have one float64.
_NOT_EXACT_IN_FLOAT64 = 2**53
_LITERALS = np.frombuffer(b"falsetrue", np.uint8)
_COMMA = ord(",")


def column_texts(
    field: Field, column: WritableColumn, valid: Bools | None, rows: int, non_finite: NonFinite
) -> tuple[Slices, dict[int, Exception]]:
    """The JSON text of each row, and an `EncodeError` for each row that has none; no row of the text is null.

    A row that is not `valid`, and a string that is None, becomes `null`, or an error where the field is required.
    Raises ValueError where the column has another length, or other values, than the field's type wants.
    """
    for what, length in (("column", len(column)), ("mask of column", rows if valid is None else len(valid))):
        if length != rows:
            raise ValueError(f"the {what} {field.name!r} has {length} rows; the batch has {rows}")
    texts, problems = _texts(field, column, non_finite)
    absent = texts.size < 0 if valid is None else (texts.size < 0) | ~valid
    errors: dict[int, Exception] = {
        row: EncodeError(f"field {field.name!r}: {reason}") for row, reason in problems.items() if not absent[row]
    }
    if field.required:
        for row in np.flatnonzero(absent).tolist():
            errors[row] = EncodeError(f"required field {field.name!r} has no value")
    if absent.any():
        texts = Slices(
            np.concatenate([texts.buffer, np.frombuffer(b"null", np.uint8)]),
            np.where(absent, np.int32(len(texts.buffer)), texts.start),
            np.where(absent, np.int32(4), texts.size),
        )
    return texts, errors


def _texts(field: Field, column: WritableColumn, non_finite: NonFinite) -> tuple[Slices, Problems]:
    """Null only where a string is None. A row with a problem has any text."""
    if field.type is FieldType.STRING:
        return _string_texts(field, column)
    if not isinstance(column, np.ndarray) or column.ndim != 1:
        raise ValueError(f"column {field.name!r} has to be a one-dimensional array of {field.type.value}")
    kind = column.dtype.kind
    if field.type is FieldType.BOOL and kind == "b":
        return _bool_texts(column), {}
    if field.type is FieldType.INT64 and kind in "iu":
        # Unsigned integers beyond int64 are written as they are.
        return _number_texts(column.astype(np.uint64 if kind == "u" else np.int64)), {}
    if field.type is FieldType.FLOAT64 and kind in "iuf" and column.dtype.itemsize <= 8:
        return _float_texts(column, non_finite)
    raise ValueError(
        f"column {field.name!r} holds {column.dtype} where {field.type.value} is declared; "
        "convert it, or declare the field as what it is"
    )


def _number_texts(numbers: npt.NDArray[np.generic]) -> Slices:
    """orjson writes the shortest text that reads back as the same number, and null for what is not finite."""
    text = np.frombuffer(orjson.dumps(np.ascontiguousarray(numbers), option=orjson.OPT_SERIALIZE_NUMPY), np.uint8)
    if not len(numbers):
        return Slices(text, np.zeros(0, np.int32), np.zeros(0, np.int32))
    edges = np.empty(len(numbers) + 1, np.int32)  # of "[", each comma, and "]"
    edges[0], edges[-1] = 0, len(text) - 1
    edges[1:-1] = np.flatnonzero(text == _COMMA)
    start = edges[:-1] + np.int32(1)
    return Slices(text, start, edges[1:] - start)


def _float_texts(column: npt.NDArray[np.generic], non_finite: NonFinite) -> tuple[Slices, Problems]:
    floats = column.astype(np.float64)
    problems = {}
    if column.dtype.kind != "f":
        unsafe = np.abs(floats) >= _NOT_EXACT_IN_FLOAT64
        problems = dict.fromkeys(np.flatnonzero(unsafe).tolist(), "the integer is beyond what float64 holds exactly")
    elif non_finite == "refuse":
        finite = np.isfinite(floats)
        problems = dict.fromkeys(
            np.flatnonzero(~finite).tolist(), "JSON has no NaN or infinity; drop such rows or write null"
        )
    return _number_texts(floats), problems


def _bool_texts(column: npt.NDArray[np.generic]) -> Slices:
    true = column.astype(np.bool_)
    return Slices(_LITERALS, np.where(true, np.int32(5), np.int32(0)), np.where(true, np.int32(4), np.int32(5)))


def _string_texts(field: Field, column: WritableColumn) -> tuple[Slices, Problems]:
    problems: Problems = {}
    if not isinstance(column, Slices):
        column = Slices.from_list([_utf8(field, row, value, problems) for row, value in enumerate(column)])
    start, size = np.empty(len(column), np.int32), np.empty(len(column), np.int32)
    # Two quotes for each; a string that is not plain may be copied before that is seen.
    text = np.empty(column.byte_count + 2 * len(column), np.uint8)
    unsure = kernels.quote(borrowed(column.buffer), borrowed(column.start), borrowed(column.size), start, size, text)
    texts = Slices(text, start, size)
    return (_with_escapes(texts, column, problems) if unsure else texts), problems


def _utf8(field: Field, row: int, value: object, problems: Problems) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"column {field.name!r} holds {type(value).__name__} in row {row} where string is declared")
    try:
        return value.encode()
    except UnicodeEncodeError:
        problems[row] = "the string has lone surrogates"
        return b""


def _with_escapes(texts: Slices, column: Slices, problems: Problems) -> Slices:
    """The texts with those that the kernel left written by msgspec."""
    rows = np.flatnonzero(texts.size == kernels.TEXT_UNSURE)
    escaped = Slices.from_list([_escaped(row, column[row] or b"", problems) for row in rows.tolist()])
    start, size = texts.start.copy(), texts.size.copy()
    start[rows] = escaped.start + np.int32(len(texts.buffer))
    size[rows] = escaped.size
    return Slices(np.concatenate([texts.buffer, escaped.buffer]), start, size)


def _escaped(row: int, value: bytes, problems: Problems) -> bytes:
    try:
        return msgspec.json.encode(value.decode())
    except UnicodeDecodeError:
        problems[row] = "the string is not UTF-8"
        return b'""'
