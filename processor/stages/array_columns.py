"""Columns of a batch as arrays that any device can hold: contiguous numbers, and text as offsets and bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from millstream.processor.columns import Index, Slices
from millstream.processor.offloading import ArrayColumns, ColumnSchema, Text
from millstream.processor.stages.column_calls import Column, Columns

NUMBER_KINDS = "biufc"
"""NumPy's kinds that devices know: bools, integers, floats and complex numbers."""


def column_schema(name: str, dtype: np.dtype[Any], *, is_optional: bool = False) -> ColumnSchema:
    """How a field of this dtype comes to a function: in native byte order; bytes of a fixed length as uint8.

    Raises ValueError for a dtype that no device holds.
    """
    shape = dtype.shape
    base = dtype.base.newbyteorder("=")
    if base.kind in "SV" and base.names is None:
        return ColumnSchema(name, np.dtype(np.uint8), (*shape, base.itemsize), is_optional=is_optional)
    if base.kind not in NUMBER_KINDS:
        raise ValueError(
            f"{dtype} is no type of a device's; it may be bools, integers, floats, or bytes of a fixed length"
        )
    return ColumnSchema(name, base, shape, is_optional=is_optional)


def array_columns(columns: Columns, schemas: tuple[ColumnSchema, ...]) -> ArrayColumns:
    """All rows as the schemas say. Arrays are views of the columns where those are contiguous and native already."""
    arrays = {schema.name: _as_array(columns[schema.name], schema) for schema in schemas}
    masks = {schema.name: columns.valid(schema.name) for schema in schemas if schema.is_optional}
    return ArrayColumns(arrays, masks, len(columns))


def _as_array(column: Column, schema: ColumnSchema) -> Any:
    if isinstance(column, Slices):
        return as_text(column)
    contiguous = np.ascontiguousarray(column)
    if contiguous.dtype.kind in "SV":
        contiguous = contiguous.view(np.uint8).reshape(len(column), *schema.shape)
    elif contiguous.dtype != schema.dtype:
        contiguous = contiguous.astype(schema.dtype)
    # What is made of a column is no more the function's to change than the column itself.
    contiguous.flags.writeable = False
    return contiguous


def as_text(column: Slices) -> Text:
    """The same texts one after the other; a null one has no bytes."""
    gathered = column.gathered()
    offsets = np.empty(len(column) + 1, np.int32)
    offsets[:-1] = gathered.start
    offsets[-1] = len(gathered.buffer)
    return Text(offsets, gathered.buffer)


def rows_of(columns: ArrayColumns, start: int, stop: int) -> ArrayColumns:
    """The rows from `start` up to `stop`; arrays are views of the same memory."""
    taken = {
        name: _text_rows(column, start, stop) if isinstance(column, Text) else column[start:stop]
        for name, column in columns.items()
    }
    return ArrayColumns(taken, {name: mask[start:stop] for name, mask in columns.masks.items()}, stop - start)


def _text_rows(text: Text, start: int, stop: int) -> Text:
    offsets = text.offsets[start : stop + 1]
    return Text(offsets - offsets[0], text.data[offsets[0] : offsets[-1]])


def chosen_rows(columns: ArrayColumns, rows: Index) -> ArrayColumns:
    """Rows by their numbers, copied; a number may stand there several times."""
    taken = {name: _chosen(column, rows) for name, column in columns.items()}
    return ArrayColumns(taken, {name: mask[rows] for name, mask in columns.masks.items()}, len(rows))


def _chosen(column: Any, rows: Index) -> Any:
    if not isinstance(column, Text):
        return column[rows]
    size = np.diff(column.offsets).astype(np.int32)
    return as_text(Slices(column.data, column.offsets[:-1].astype(np.int32), size).take(rows))
