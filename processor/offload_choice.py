"""Which columns an offload stage gets and adds, decided and checked when the pipeline is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from millstream.processor.codecs.fidelity import Fidelity
from millstream.processor.codecs.fixed_width import FixedWidthCodec
from millstream.processor.codecs.json_field_types import Field, FieldType
from millstream.processor.interfaces import ValueCodec
from millstream.processor.layout_choice import LayoutError, layout_for
from millstream.processor.offloading import ColumnSchema
from millstream.processor.stages.array_columns import column_schema
from millstream.processor.stages.json_layout import JsonLayout
from millstream.processor.stages.layouts import FixedLayout, Layout, RawToFixedLayout

_DTYPES = {FieldType.INT64: np.dtype(np.int64), FieldType.FLOAT64: np.dtype(np.float64), FieldType.BOOL: np.dtype("?")}


@dataclass(frozen=True, slots=True)
class OffloadColumns:
    """How a stage's values become columns and back; `type` is that of the values that come out."""

    layout: Layout
    type: Any
    reads: tuple[ColumnSchema, ...]
    adds: tuple[ColumnSchema, ...]


def offload_columns(
    codec: ValueCodec, type_: Any, reads: Mapping[str, Any] | None, adds: Mapping[str, Any], fidelity: Fidelity
) -> OffloadColumns:
    """The columns of values of this codec. Raises LayoutError."""
    if not adds:
        raise LayoutError(["adds nothing; name the columns that the function answers, as adds={'score': float}"])
    if codec.format in ("raw", "text"):
        return _raw(reads, adds)
    layout, type_ = layout_for(codec, type_, reads, adds, fidelity)
    mistakes: list[str] = []
    if isinstance(layout, FixedLayout):
        read, added = _of_fixed(layout, mistakes)
    else:
        assert isinstance(layout, JsonLayout)
        read, added = _of_json(layout, mistakes)
    if not read:
        mistakes.append("reads nothing; name the fields that the function gets, as reads={'amount': float}")
    if mistakes:
        raise LayoutError(mistakes)
    return OffloadColumns(layout, type_, read, added)


def _raw(reads: Mapping[str, Any] | None, adds: Mapping[str, Any]) -> OffloadColumns:
    mistakes = ["values without fields are read whole, as columns['value']; leave out reads="] if reads else []
    after: FixedWidthCodec | None = None
    if tuple(adds) != ("value",):
        mistakes.append(
            "values without fields can only be replaced whole: adds={'value': dtype}, such as 'f8' or 'S16'"
        )
    else:
        try:
            after = FixedWidthCodec(np.dtype(adds["value"]))
        except (TypeError, ValueError) as error:
            mistakes.append(f"adds['value']={adds['value']!r}: {error}")
    added = [] if after is None else _schemas("adds", {"value": after.dtype}, mistakes)
    if mistakes:
        raise LayoutError(mistakes)
    assert after is not None
    text = ColumnSchema("value", np.dtype(np.uint8), is_text=True)
    return OffloadColumns(RawToFixedLayout(after), after.dtype, (text,), tuple(added))


def _of_fixed(layout: FixedLayout, mistakes: list[str]) -> tuple[tuple[ColumnSchema, ...], tuple[ColumnSchema, ...]]:
    dtype, after = layout.before.dtype, layout.after.dtype
    reads = {name: dtype if dtype.names is None else dtype[name] for name in layout.reads}
    adds = {name: after[name] for name in layout.adds}
    return tuple(_schemas("reads", reads, mistakes)), tuple(_schemas("adds", adds, mistakes))


def _of_json(layout: JsonLayout, mistakes: list[str]) -> tuple[tuple[ColumnSchema, ...], tuple[ColumnSchema, ...]]:
    for added in layout.adds:
        if added.type is FieldType.STRING:
            mistakes.append(f"adds[{added.name!r}]: text has no fixed width; answer a number, or a code for the text")
        if not added.required:
            mistakes.append(
                f"adds[{added.name!r}]: it may not be optional; answer NaN or a code where there is no value"
            )
    adds = [_json_schema(added) for added in layout.adds if added.type is not FieldType.STRING]
    return tuple(map(_json_schema, layout.reads)), tuple(adds)


def _json_schema(declared: Field) -> ColumnSchema:
    if declared.type is FieldType.STRING:
        return ColumnSchema(declared.name, np.dtype(np.uint8), is_text=True, is_optional=not declared.required)
    return ColumnSchema(declared.name, _DTYPES[declared.type], is_optional=not declared.required)


def _schemas(argument: str, dtypes: Mapping[str, np.dtype[Any]], mistakes: list[str]) -> Sequence[ColumnSchema]:
    schemas = []
    for name, dtype in dtypes.items():
        try:
            schemas.append(column_schema(name, dtype))
        except ValueError as error:
            mistakes.append(f"{argument}[{name!r}]: {error}")
    return schemas
