"""How the values of a format become columns and go back into bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from millstream.processor.codecs.fixed_width import FixedWidthCodec
from millstream.processor.columns import Index, Slices
from millstream.processor.interfaces import Encoded
from millstream.processor.stages.calls import WrongAnswerError, refuse_awaitable
from millstream.processor.stages.column_calls import Column


@dataclass(frozen=True, slots=True)
class Answer:
    """A function's columns, as declared. A column without a mask in `valid` has a value in every row."""

    columns: Mapping[str, Column]
    valid: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Opened:
    """The columns of n values. `errors` has a DecodeError for each value that cannot be read; its columns mean nothing.

    `origin` is whatever the layout needs to write the values again.
    """

    fields: Mapping[str, Column]
    valid: Mapping[str, Any]
    errors: Mapping[int, Exception]
    origin: Any


class Layout(Protocol):
    """One format, with the fields that a stage reads and adds."""

    def open(self, values: Slices) -> Opened:
        """Columns of values, none of which is null."""

    def check(self, answer: Any, count: int) -> Answer:
        """A function's answer with the declared types. Raises WrongAnswerError for what cannot be written."""

    def write(self, opened: Opened, rows: Index, answer: Answer) -> Encoded:
        """The chosen rows with the answered columns; an EncodeError for each of them that cannot be written."""


def as_mapping(answer: Any, known: Mapping[str, Any], required: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer as columns by name. Raises WrongAnswerError where names are unknown or missing."""
    if not isinstance(answer, Mapping):
        refuse_awaitable(answer)
        raise WrongAnswerError(
            f"a column function answers a dict of columns, such as {{'name': array}}, not {type(answer).__name__}"
        )
    unknown = [name for name in answer if name not in known]
    if unknown:
        raise WrongAnswerError(
            f"the function answered {', '.join(map(repr, unknown))}; it may answer {', '.join(map(repr, known))}. "
            "Name new columns in adds={...}"
        )
    missing = [name for name in required if name not in answer]
    if missing:
        raise WrongAnswerError(f"the function did not answer {', '.join(map(repr, missing))}")
    return answer


def as_array(name: str, given: Any, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
    """One column with the declared dtype. Raises WrongAnswerError for a wrong length, or values that would change."""
    array = np.asarray(given)
    if array.shape[:1] != (count,) or array.ndim != 1 + len(dtype.shape):
        raise WrongAnswerError(f"column {name!r} has the shape {array.shape}; {count} rows were asked for")
    base = dtype.base
    if array.dtype == base:
        return array
    if array.dtype.kind not in _BECOMES.get(base.kind, base.kind):
        raise WrongAnswerError(f"column {name!r} has the dtype {array.dtype}; {base} was declared (use .astype)")
    with np.errstate(all="ignore"):
        cast = array.astype(base)
    if not _same(array, cast):
        raise WrongAnswerError(f"column {name!r} has values that {base} cannot hold")
    return cast


# Numbers may widen, and floats may round; nothing else turns into another thing by itself.
_BECOMES = {"i": "iu", "u": "iu", "f": "iuf", "c": "iufc"}


def _same(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> bool:
    if after.dtype.kind in "fc":
        return bool((np.isfinite(before) == np.isfinite(after)).all())
    return bool((before == after).all())


def as_slices(name: str, given: Any, count: int) -> Slices:
    """One column of text or bytes, from `Slices` or a sequence of bytes, str and None."""
    if isinstance(given, Slices):
        column = given
    elif isinstance(given, str | bytes):
        raise WrongAnswerError(f"column {name!r} is a single {type(given).__name__}; {count} rows were asked for")
    else:
        values = given.tolist() if isinstance(given, np.ndarray) else list(given)
        column = Slices.from_list([_bytes(name, value) for value in values])
    if len(column) != count:
        raise WrongAnswerError(f"column {name!r} has {len(column)} rows; {count} were asked for")
    return column


def _bytes(name: str, value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise WrongAnswerError(f"column {name!r} has a {type(value).__name__}; it may have bytes, str and None")


@dataclass(frozen=True, slots=True)
class RawLayout:
    """Values as they are: `columns.value`, and `{"value": ...}` as the answer."""

    def open(self, values: Slices) -> Opened:
        return Opened({}, {}, {}, values)

    def check(self, answer: Any, count: int) -> Answer:
        value = as_mapping(answer, {"value": bytes}, {"value": bytes})["value"]
        return Answer({"value": as_slices("value", value, count)})

    def write(self, opened: Opened, rows: Index, answer: Answer) -> Encoded:  # noqa: ARG002  # all is in the answer
        value = answer.columns["value"]
        assert isinstance(value, Slices)
        return Encoded(value)


@dataclass(frozen=True, slots=True)
class FixedLayout:
    """Fixed-width records: each field of the dtype is a column; a dtype without fields has one, named value."""

    before: FixedWidthCodec
    after: FixedWidthCodec
    reads: tuple[str, ...]
    adds: tuple[str, ...]

    def open(self, values: Slices) -> Opened:
        array, errors = self.before.decode_columns(values)
        plain = array.dtype.names is None
        return Opened({name: array if plain else array[name] for name in self.reads}, {}, errors, array)

    def check(self, answer: Any, count: int) -> Answer:
        dtype = self.after.dtype
        known = {"value": dtype} if dtype.names is None else {name: dtype[name] for name in dtype.names}
        answered = as_mapping(answer, known, dict.fromkeys(self.adds))
        return Answer({name: as_array(name, column, known[name], count) for name, column in answered.items()})

    def write(self, opened: Opened, rows: Index, answer: Answer) -> Encoded:
        before = opened.origin if len(rows) == len(opened.origin) else opened.origin[rows]
        if self.after.dtype.names is None:
            array = answer.columns.get("value", before)
            return Encoded(self.after.encode_array(np.asarray(array)))
        # Zeros, so that padding between fields holds nothing that happened to lie in memory.
        array = np.zeros(len(rows), self.after.dtype)
        for name in before.dtype.names:
            if name not in answer.columns:
                array[name] = before[name]
        for name, column in answer.columns.items():
            array[name] = column
        return Encoded(self.after.encode_array(array))


def extended(dtype: np.dtype[Any], adds: Mapping[str, Any]) -> np.dtype[Any]:
    """The dtype with more fields at its end. Raises TypeError or ValueError for what cannot be a field."""
    if not adds:
        return dtype
    if dtype.names is None or dtype.fields is None:
        raise ValueError("adds={...} needs a structured dtype, such as np.dtype([('amount', '<f8')])")
    names, formats = list(dtype.names), [dtype[name] for name in dtype.names]
    offsets = [int(dtype.fields[name][1]) for name in dtype.names]
    size = dtype.itemsize
    for name, kind in adds.items():
        added = np.dtype(kind)
        names.append(name)
        formats.append(added)
        offsets.append(size)
        size += added.itemsize
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


@dataclass(frozen=True, slots=True)
class RawToFixedLayout:
    """Bytes in, as `columns.value` has them and under the name of value; items of a dtype out, in their place."""

    after: FixedWidthCodec

    def open(self, values: Slices) -> Opened:
        return Opened({"value": values}, {}, {}, values)

    def check(self, answer: Any, count: int) -> Answer:
        value = as_mapping(answer, {"value": bytes}, {"value": bytes})["value"]
        return Answer({"value": as_array("value", value, self.after.dtype, count)})

    def write(self, opened: Opened, rows: Index, answer: Answer) -> Encoded:  # noqa: ARG002  # all is in the answer
        return Encoded(self.after.encode_array(np.asarray(answer.columns["value"]).astype(self.after.dtype)))
