"""From JSON objects to columns: the scanner does what it is sure of, msgspec the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import GenericAlias
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from millstream.processor.codecs import json_field_kernels as kernels
from millstream.processor.codecs.json_field_scan import FieldScan, FieldScanner
from millstream.processor.codecs.json_field_types import Field, FieldType, check_distinct
from millstream.processor.columns import NULL_SIZE, Bools, Index, Slices
from millstream.processor.errors import DecodeError

Column = npt.NDArray[np.generic] | Slices

_WANTS = {
    FieldType.INT64: kernels.WANT_INT64,
    FieldType.FLOAT64: kernels.WANT_FLOAT64,
    FieldType.BOOL: kernels.WANT_BOOL,
    FieldType.STRING: kernels.WANT_STRING,
}
_PYTHON_TYPES: dict[FieldType, type] = {
    FieldType.INT64: int,
    FieldType.FLOAT64: float,
    FieldType.BOOL: bool,
    FieldType.STRING: str,
}
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
# Older versions of msgspec let Python's own error through for a string that is not UTF-8.
_NOT_AS_DECLARED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class FieldColumns:
    """The declared fields of n rows.

    `columns` has for each field an array of float64, int64 or bool, or `Slices` of UTF-8 text with escapes resolved.
    `valid` has a mask for each field that is not required; where it is False the value is 0, False or null.
    `errors` has a `DecodeError` for each row that is no JSON object or lacks what was declared; all of its values are
    0, False or empty, and not valid. `scan` is for `FieldWriter.write`, which need not scan the same rows again.
    """

    columns: Mapping[str, Column]
    valid: Mapping[str, Bools]
    errors: Mapping[int, Exception]
    scan: FieldScan

    def take(self, rows: Index | Bools) -> FieldColumns:
        """The chosen rows (positions or a mask), errors included."""
        chosen: Index = np.arange(len(self.scan.values))[rows]
        errors = {row: self.errors[old] for row, old in enumerate(chosen.tolist()) if old in self.errors}
        return FieldColumns(
            {
                name: column.take(chosen) if isinstance(column, Slices) else column[chosen]
                for name, column in self.columns.items()
            },
            {name: mask[chosen] for name, mask in self.valid.items()},
            errors if self.errors else {},
            self.scan.take(chosen),
        )


class FieldReader:
    """Reads declared top-level fields of JSON objects into columns.

    What is accepted, and as which value, is what msgspec's strict decoding into a Struct with these fields accepts;
    an INT64 beyond 64 bits is an error besides. Fields that are not declared may hold anything that is JSON.
    """

    def __init__(self, fields: Sequence[Field], *, located: Sequence[str] = ()) -> None:
        """`located` names fields that a `FieldWriter` will replace: they are found on the way, so that it need not
        scan again. Raises ValueError where two fields have one name.
        """
        check_distinct([field.name for field in fields])
        self.fields = tuple(fields)
        wants = {field.name: _WANTS[field.type] for field in fields}
        self._scanner = FieldScanner(wants | {name: kernels.WANT_SPAN for name in located if name not in wants})
        self._row_decoder = msgspec.json.Decoder[Any](_row_type(fields))
        self._cells_decoders = [msgspec.json.Decoder[Any](GenericAlias(list, _PYTHON_TYPES[f.type])) for f in fields]

    def read(self, values: Slices) -> FieldColumns:
        """The declared fields of all rows. Null rows (tombstones) are errors here."""
        scan = self._scanner.scan(values)
        work = _Reading(self.fields, scan)
        work.refuse_null_rows()
        work.refuse_missing()
        if scan.unsure:
            for row in np.flatnonzero(scan.row_state == kernels.ROW_UNSURE).tolist():
                self._decode_row(work, row)
            for place in range(len(self.fields)):
                self._decode_cells(work, place)
        return work.finish()

    def _decode_row(self, work: _Reading, row: int) -> None:
        try:
            decoded = self._row_decoder.decode(work.scan.values[row] or b"")
            for place in range(len(self.fields)):
                work.set_value(place, row, getattr(decoded, f"f{place}"))
        except (*_NOT_AS_DECLARED, DecodeError) as error:
            work.refuse(row, _reason(error))

    def _decode_cells(self, work: _Reading, place: int) -> None:
        """Values of one field that the scanner found but could not convert, all in one call if they are all right."""
        rows = work.unsure_rows(place)
        if not len(rows):
            return
        name, decoder = self.fields[place].name, self._cells_decoders[place]
        spans = work.spans(place, rows)
        try:
            work.set_values(place, rows, decoder.decode(b"[" + b",".join(spans) + b"]"))
            return
        except (*_NOT_AS_DECLARED, OverflowError):
            pass  # at least one is not as declared, or does not fit; which ones, the rest tells
        for row, span in zip(rows.tolist(), spans, strict=True):
            try:
                work.set_value(place, row, decoder.decode(b"[" + span + b"]")[0])
            except (*_NOT_AS_DECLARED, DecodeError) as error:
                work.refuse(row, f"field {name!r}: {_reason(error)}")


def _row_type(fields: Sequence[Field]) -> type[msgspec.Struct]:
    """A Struct with these fields. Their names need not be Python names, so its own are numbered."""
    attributes: list[tuple[str, Any, Any]] = []
    for place, declared in enumerate(fields):
        python = _PYTHON_TYPES[declared.type]
        if declared.required:
            attributes.append((f"f{place}", python, msgspec.NODEFAULT))
        else:
            attributes.append((f"f{place}", python | None, None))
    names = {f"f{place}": declared.name for place, declared in enumerate(fields)}
    return msgspec.defstruct("Row", attributes, rename=names, kw_only=True, gc=False)


def _reason(error: Exception) -> str:
    """What is wrong, without any of the record's bytes."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "a string is not UTF-8"
    return str(error).removesuffix(" - at `$[0]`")


@dataclass(slots=True)
class _Reading:
    """One call of `FieldReader.read`: what is known so far, and where values and errors are put."""

    fields: tuple[Field, ...]
    scan: FieldScan
    state: npt.NDArray[np.uint8] = field(init=False)
    texts: dict[int, dict[int, bytes]] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = self.scan.cell_state.copy()

    def refuse(self, row: int, reason: str) -> None:
        self.errors.setdefault(row, DecodeError(reason))

    def refuse_null_rows(self) -> None:
        for row in np.flatnonzero(self.scan.row_state == kernels.ROW_NULL).tolist():
            self.refuse(row, "a tombstone (null value) has no fields")

    def refuse_missing(self) -> None:
        """Required fields that the scanner found to be missing or null."""
        read = self.scan.row_state == kernels.ROW_READ
        for place, declared in enumerate(self.fields):
            if not declared.required:
                continue
            state = self.state[place]
            for row in np.flatnonzero(read & (state == kernels.CELL_MISSING)).tolist():
                self.refuse(row, f"required field {declared.name!r} is missing")
            for row in np.flatnonzero(read & (state == kernels.CELL_NULL)).tolist():
                self.refuse(row, f"required field {declared.name!r} is null")

    def unsure_rows(self, place: int) -> Index:
        read = self.scan.row_state == kernels.ROW_READ
        return np.flatnonzero(read & (self.state[place] == kernels.CELL_UNSURE))

    def spans(self, place: int, rows: Index) -> list[bytes]:
        start, size = self.scan.value_start[place], self.scan.value_size[place]
        return [span or b"" for span in Slices(self.scan.values.buffer, start, size).take(rows).to_list()]

    def set_values(self, place: int, rows: Index, values: list[Any]) -> None:
        """Raises OverflowError, with nothing decided, where an integer is too large."""
        if self.fields[place].type is FieldType.STRING:
            self.texts.setdefault(place, {}).update(zip(rows.tolist(), map(str.encode, values), strict=True))
        elif self.fields[place].type is FieldType.FLOAT64:
            self.scan.integers.view(np.float64)[place, rows] = values
        else:
            self.scan.integers[place, rows] = values
        self.state[place, rows] = kernels.CELL_READ

    def set_value(self, place: int, row: int, value: object) -> None:
        """Raises DecodeError for an integer that is too large."""
        if value is None:
            self.state[place, row] = kernels.CELL_NULL
            return
        self.state[place, row] = kernels.CELL_READ
        if isinstance(value, str):
            self.texts.setdefault(place, {})[row] = value.encode()
        elif isinstance(value, float):
            self.scan.integers.view(np.float64)[place, row] = value
        elif isinstance(value, int):
            if not _INT64_MIN <= value <= _INT64_MAX:
                raise DecodeError("the integer is beyond 64 bits; read it in an event stage")
            self.scan.integers[place, row] = value

    def finish(self) -> FieldColumns:
        refused = np.fromiter(self.errors, np.int64, len(self.errors))
        self.scan.integers[:, refused] = 0
        valid = {}
        columns: dict[str, Column] = {}
        for place, declared in enumerate(self.fields):
            present = self.state[place] == kernels.CELL_READ
            present[refused] = False
            if not declared.required:
                valid[declared.name] = present
            columns[declared.name] = self._column(place, declared.type, present, refused)
        return FieldColumns(columns, valid, self.errors, self.scan)

    def _column(self, place: int, kind: FieldType, present: Bools, refused: Index) -> Column:
        if kind is FieldType.STRING:
            return self._strings(place, present, refused)
        integers = np.where(present, self.scan.integers[place], 0)
        if kind is FieldType.BOOL:
            return integers.astype(np.bool_)
        return integers.view(np.float64) if kind is FieldType.FLOAT64 else integers

    def _strings(self, place: int, present: Bools, refused: Index) -> Slices:
        start = np.where(present, self.scan.value_start[place] + np.int32(1), np.int32(0))
        size = np.where(present, self.scan.value_size[place] - np.int32(2), np.int32(NULL_SIZE))
        size[refused] = 0
        texts = {row: text for row, text in self.texts.get(place, {}).items() if row not in self.errors}
        if not texts:
            return Slices(self.scan.values.buffer, start, size)
        # Values that are not as they stand in the buffer need another one: the column's own, a fraction of the batch.
        rows = np.fromiter(texts, np.int64, len(texts))
        resolved = Slices.from_list(list(texts.values()))
        size[rows] = 0
        column = Slices(self.scan.values.buffer, start, size).gathered()
        column.start[rows] = resolved.start + np.int32(len(column.buffer))
        column.size[rows] = resolved.size
        return Slices(np.concatenate([column.buffer, resolved.buffer]), column.start, column.size)
