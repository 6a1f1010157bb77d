"""Which columns a column stage gets, decided and checked when the pipeline is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from millstream.processor.codecs.fidelity import Fidelity
from millstream.processor.codecs.fixed_width import FixedWidthCodec
from millstream.processor.codecs.json_field_types import Field
from millstream.processor.interfaces import ValueCodec
from millstream.processor.stages.json_layout import JsonLayout, json_field
from millstream.processor.stages.layouts import FixedLayout, Layout, RawLayout, extended

_OBJECTS = (msgspec.inspect.StructType, msgspec.inspect.DataclassType, msgspec.inspect.TypedDictType)


class LayoutError(ValueError):
    """The declared columns cannot be had. `mistakes` has all reasons."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("; ".join(self.mistakes))


def layout_for(
    codec: ValueCodec, type_: Any, reads: Mapping[str, Any] | None, adds: Mapping[str, Any], fidelity: Fidelity
) -> tuple[Layout, Any]:
    """The layout for values of this codec, and the type of what comes out of it. Raises LayoutError."""
    if isinstance(codec, FixedWidthCodec):
        return _fixed(codec, type_, reads, adds)
    if codec.format == "json":
        return _json(type_, reads or {}, adds, fidelity), type_
    if codec.format in ("raw", "text"):
        if reads or adds:
            raise LayoutError(
                [f"values in format {codec.format!r} have no fields: leave out reads= and adds=, and use columns.value"]
            )
        return RawLayout(), type_
    raise LayoutError(
        [f"format {codec.format!r} has no columns (json, fixed, raw and text have); use map or filter instead"]
    )


def _fixed(
    codec: FixedWidthCodec, type_: Any, reads: Mapping[str, Any] | None, adds: Mapping[str, Any]
) -> tuple[Layout, Any]:
    names = codec.dtype.names or ("value",)
    read = names if reads is None else tuple(reads)
    mistakes = [
        f"reads {name!r}, which the dtype does not have; it has {', '.join(map(repr, names))}"
        for name in read
        if name not in names
    ]
    mistakes += [f"adds {name!r}, which the dtype already has" for name in adds if name in names]
    after = codec
    if not mistakes and adds:
        try:
            after = FixedWidthCodec(extended(codec.dtype, adds))
        except (TypeError, ValueError) as error:
            mistakes.append(f"adds={dict(adds)!r}: {error}")
    if mistakes:
        raise LayoutError(mistakes)
    return FixedLayout(codec, after, read, tuple(adds)), after.dtype if adds else type_


def _json(type_: Any, reads: Mapping[str, Any], adds: Mapping[str, Any], fidelity: Fidelity) -> Layout:
    mistakes = [f"{name!r} is both in reads and in adds; leave it out of adds" for name in adds if name in reads]
    mistakes += _unnamed(type_, reads)
    read_fields = _fields("reads", reads, mistakes)
    added_fields = _fields("adds", adds, mistakes)
    if mistakes:
        raise LayoutError(mistakes)
    return JsonLayout(read_fields, added_fields, fidelity)


def _fields(argument: str, declared: Mapping[str, Any], mistakes: list[str]) -> Sequence[Field]:
    fields = []
    for name, annotation in declared.items():
        try:
            fields.append(json_field(name, annotation))
        except (TypeError, ValueError) as error:
            mistakes.append(f"{argument}[{name!r}]: {error}")
    return fields


def _unnamed(type_: Any, reads: Mapping[str, Any]) -> list[str]:
    """Fields that the stream's type does not have, where it is a type that names them."""
    try:
        info = msgspec.inspect.type_info(type_)
    except Exception:  # whatever is wrong with the type, its codec has told already
        return []
    if not isinstance(info, _OBJECTS):
        return []
    names = [declared.encode_name for declared in info.fields]
    return [
        f"reads {name!r}, which {info.cls.__name__} does not have; it has {', '.join(map(repr, names))}"
        for name in reads
        if name not in names
    ]
