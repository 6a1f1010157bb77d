"""Where the fields of a batch of JSON objects stand: the scanner's result, which reader and writer share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from millstream.processor.codecs import json_field_kernels as kernels
from millstream.processor.columns import Bytes, Index, Int32s, Int64s, Slices

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class FieldScan:
    """What the scanner found in `values`; the arrays are those of `json_field_kernels.scan`, its states included."""

    values: Slices
    names: tuple[str, ...]
    row_state: Bytes
    close: Int32s
    cell_state: Bytes
    value_start: Int32s
    value_size: Int32s
    integers: Int64s
    unsure: int

    def take(self, rows: Index) -> FieldScan:
        """The chosen rows. `unsure` stays as it was: at least as many as there are."""
        return FieldScan(
            self.values.take(rows),
            self.names,
            self.row_state[rows],
            self.close[rows],
            self.cell_state[:, rows],
            self.value_start[:, rows],
            self.value_size[:, rows],
            self.integers[:, rows],
            self.unsure,
        )


class FieldScanner:
    """Scans for a fixed set of fields."""

    def __init__(self, wanted: Mapping[str, int]) -> None:
        """`wanted` gives each field's name one of the scanner's `WANT_` numbers."""
        self.names = tuple(wanted)
        encoded = [name.encode() for name in wanted]
        self._name_bytes = borrowed(np.frombuffer(b"".join(encoded), np.uint8))
        self._name_start = borrowed(np.cumsum([0, *map(len, encoded)]).astype(np.int32))
        self._wanted = borrowed(np.array(list(wanted.values()), np.uint8))

    def scan(self, values: Slices) -> FieldScan:
        """One pass over all rows."""
        rows, shape = len(values), (len(self.names), len(values))
        row_state, close = np.empty(rows, np.uint8), np.empty(rows, np.int32)
        cell_state = np.zeros(shape, np.uint8)
        value_start, value_size = np.empty(shape, np.int32), np.empty(shape, np.int32)
        integers = np.zeros(shape, np.int64)
        unsure = kernels.scan(
            borrowed(values.buffer),
            borrowed(values.start),
            borrowed(values.size),
            self._name_bytes,
            self._name_start,
            self._wanted,
            row_state,
            close,
            cell_state,
            value_start,
            value_size,
            integers,
            integers.view(np.float64),
        )
        return FieldScan(
            values, self.names, row_state, close, cell_state, value_start, value_size, integers, int(unsure)
        )


def borrowed(array: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """The array as kernels here take what they only read: contiguous and not writeable.

    numba compiles a kernel again for each combination of layouts and of writeable and read-only arguments. Buffers
    come both ways, so all are made one.
    """
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
