"""Fixed-width records: each value is one item of a NumPy dtype, byte for byte.

The bytes are the dtype's own, byte order included, so dtypes for topics should name it: `np.dtype("<i8")`, or
`np.dtype([("price", ">f8"), ("count", "<u4")])`. Arrays over fetched values are views where the values stand at equal
distances, and are then as little aligned as the bytes are; NumPy reads them all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, isinf
from typing import Any

import numpy as np
import numpy.typing as npt

from millstream.processor.columns import Bytes, Slices
from millstream.processor.errors import DecodeError, EncodeError
from millstream.processor.interfaces import Decoded, Encoded

RecordArray = npt.NDArray[Any]


class FixedWidthCodec:
    """Values that are items of `dtype`. Raises ValueError for a dtype whose bytes alone do not make an item."""

    format = "fixed"

    def __init__(self, dtype: np.dtype[Any]) -> None:
        _refuse_unfit(dtype)
        self.dtype = dtype

    @property
    def name(self) -> str:
        return f"fixed {self.dtype.itemsize} bytes"

    def decode_columns(self, values: Slices) -> tuple[RecordArray, Mapping[int, DecodeError]]:
        """A read-only array with one item for each row, and an error for each row of a wrong size.

        Items of null rows and of rows in error are zeros. Nothing is copied where all rows have the right size and
        stand at equal distances, as back to back; the array then holds on to the buffer.
        """
        right = values.size == self.dtype.itemsize
        if right.all():
            view = self._view(values)
            return (self._gathered(values) if view is None else view), {}
        errors = {
            row: DecodeError(f"{self.name}: the value has {size} bytes")
            for row, size in enumerate(values.size.tolist())
            if size not in (-1, self.dtype.itemsize)
        }
        array = np.zeros(len(values), self.dtype)
        array[right] = self._gathered(values.take(right))
        array.flags.writeable = False
        return array, errors

    def _view(self, values: Slices) -> RecordArray | None:
        """An array over the values where they stand; None where their distances differ or go backwards."""
        if len(values) < 2:
            return None
        step = int(values.start[1]) - int(values.start[0])
        if step <= 0 or not (np.diff(values.start) == step).all():
            return None
        # The constructor checks that every item lies inside of the buffer.
        view: RecordArray = np.ndarray(
            len(values), self.dtype, values.buffer.data, offset=int(values.start[0]), strides=(step,)
        )
        view.flags.writeable = False
        return view

    def _gathered(self, values: Slices) -> RecordArray:
        array = np.frombuffer(values.gathered().buffer.data, self.dtype, len(values))
        array.flags.writeable = False
        return array

    def encode_array(self, array: RecordArray) -> Slices:
        """One row for each item, over the array's own memory where that is contiguous.

        Raises EncodeError for an array of another dtype or shape, OverflowError for more than 2 GiB.
        """
        if array.dtype != self.dtype or array.ndim != 1:
            raise EncodeError(
                f"{self.name}: the array has dtype {array.dtype} and shape {array.shape}; needed are"
                f" {self.dtype} and one dimension (convert with .astype)"
            )
        buffer: Bytes = np.ascontiguousarray(array).view(np.uint8)
        return Slices.back_to_back(buffer, np.full(len(array), self.dtype.itemsize, np.int32))

    def decode(self, values: Slices) -> Decoded:
        """A NumPy scalar for each row (`np.void`, with fields by name, for structured dtypes); None for null."""
        array, errors = self.decode_columns(values)
        items: list[object] = list(array)
        for row in np.flatnonzero(values.size != self.dtype.itemsize).tolist():
            items[row] = None
        return Decoded(items, errors)

    def encode(self, values: Sequence[object]) -> Encoded:
        """Rows for items of the dtype, tuples in the order of its fields, and plain numbers and bytes for plain dtypes.

        An EncodeError marks each object that the dtype cannot hold without a change of meaning; rounding to the
        precision of a floating-point field is none.
        """
        rows: list[bytes | None] = []
        errors: dict[int, EncodeError] = {}
        for value in values:
            row = None
            if isinstance(value, np.generic) and value.dtype == self.dtype:
                row = value.tobytes()
            elif value is not None:
                row = self._converted(value)
                if row is None:
                    errors[len(rows)] = self._refusal(value)
            rows.append(row)
        return Encoded(Slices.from_list(rows), errors)

    def _converted(self, value: object) -> bytes | None:
        item = np.zeros((), self.dtype)
        try:
            with np.errstate(all="ignore"):
                item[()] = value
            faithful = _faithful(self.dtype, value, item)
        except (TypeError, ValueError, OverflowError):
            return None
        return item.tobytes() if faithful else None

    def _refusal(self, value: object) -> EncodeError:
        remedy = "a tuple in the order of the fields" if self.dtype.names else "a number or bytes that fit"
        return EncodeError(
            f"{self.name}: a value of type {type(value).__qualname__} does not fit into {self.dtype} unchanged;"
            f" return an item of the dtype or {remedy}"
        )


def _refuse_unfit(dtype: np.dtype[Any]) -> None:
    reason = None
    if dtype.hasobject:
        reason = "it refers to Python objects, whose bytes are addresses; use numbers, or S and V of a fixed length"
    elif dtype.itemsize == 0:
        reason = 'its items have no bytes; give it a length, such as "S16"'
    elif dtype.subdtype is not None:
        reason = "it is an array; wrap it into a field: np.dtype([(name, dtype)])"
    elif "U" in _kinds(dtype):
        reason = "not all bytes are text of kind U; use S and decode it"
    if reason is not None:
        raise ValueError(f"dtype {dtype} cannot be a fixed-width record: {reason}")


def _kinds(dtype: np.dtype[Any]) -> set[str]:
    if dtype.subdtype is not None:
        return _kinds(dtype.subdtype[0])
    if dtype.fields is None:
        return {dtype.kind}
    return set().union(*(_kinds(entry[0]) for entry in dtype.fields.values()))


def _faithful(dtype: np.dtype[Any], given: Any, stored: Any) -> bool:
    """Whether `stored`, an item of `dtype`, means the same as what was given. NumPy truncates silently."""
    if dtype.names is not None:
        if isinstance(given, np.void):
            return given.dtype.names == dtype.names and _faithful(dtype, tuple(given[n] for n in dtype.names), stored)
        return (
            isinstance(given, tuple)
            and len(given) == len(dtype.names)
            and all(_faithful(dtype[n], part, stored[n]) for n, part in zip(dtype.names, given, strict=True))
        )
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        parts = np.empty(shape, object)
        parts[...] = given
        return parts.shape == np.shape(given) and all(
            _faithful(base, part, stored[place]) for place, part in np.ndenumerate(parts)
        )
    if dtype.kind in "fc":
        return isinstance(given, (int, float, complex, np.number)) and _same_float(complex(given), complex(stored))
    if dtype.kind == "V":
        return bool((given.tobytes() if isinstance(given, np.void) else given) == stored.tobytes())
    if dtype.kind in "mM" and not isinstance(given, int):
        return isinstance(given, (np.datetime64, np.timedelta64)) and (
            bool(stored[()] == given) or bool(np.isnat(given) and np.isnat(stored))
        )
    return bool(given == stored[()] if dtype.kind not in "mM" else given == int(stored.astype(np.int64)))


def _same_float(given: complex, stored: complex) -> bool:
    """Rounding is allowed, overflow to infinity and an imaginary part that is lost are not."""
    parts = ((given.real, stored.real), (given.imag, stored.imag))
    return all(isfinite(a) == isfinite(b) and (not isinf(a) or a == b) for a, b in parts)
