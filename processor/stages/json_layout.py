"""Columns of JSON values: declared fields are read where they lie, and changed ones spliced into the original bytes."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from millstream.processor.codecs.fidelity import Fidelity
from millstream.processor.codecs.json_field_reader import FieldColumns, FieldReader
from millstream.processor.codecs.json_field_types import Field, FieldType
from millstream.processor.codecs.json_field_writer import FieldWriter
from millstream.processor.columns import Index, Slices
from millstream.processor.interfaces import Encoded
from millstream.processor.stages.column_calls import Column
from millstream.processor.stages.layouts import Answer, Opened, as_array, as_mapping, as_slices

_DTYPES = {
    FieldType.INT64: np.dtype(np.int64),
    FieldType.FLOAT64: np.dtype(np.float64),
    FieldType.BOOL: np.dtype(np.bool_),
}


def json_field(name: str, annotation: Any) -> Field:
    """The field that a name and a type such as `float` or `float | None` declare. Raises ValueError."""
    required = True
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        others = [one for one in typing.get_args(annotation) if one is not type(None)]
        if len(others) == 1:
            annotation, required = others[0], False
    return Field(name, FieldType.from_annotation(annotation), required)


@dataclass(frozen=True, slots=True)
class JsonLayout:
    """`reads` are given to the function, which may answer them changed; `adds` it has to answer."""

    reads: Sequence[Field]
    adds: Sequence[Field]
    fidelity: Fidelity
    _reader: FieldReader = field(init=False)
    _writers: dict[frozenset[str], FieldWriter] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_reader", FieldReader(self.reads, located=[added.name for added in self.adds]))

    def open(self, values: Slices) -> Opened:
        """The declared fields; every value has to be a JSON object that has the required ones."""
        read = self._reader.read(values)
        return Opened(read.columns, read.valid, read.errors, read)

    def check(self, answer: Any, count: int) -> Answer:
        """Masked arrays stand for null where they are masked, in fields declared as `float | None` and the like."""
        known = {declared.name: declared for declared in (*self.reads, *self.adds)}
        answered = as_mapping(answer, known, {declared.name: None for declared in self.adds})
        columns: dict[str, Column] = {}
        valid = {}
        for name, given in answered.items():
            if isinstance(given, np.ma.MaskedArray):
                valid[name] = ~np.ma.getmaskarray(given)
                given = given.filled(given.dtype.type())  # the same column, without its mask
            columns[name] = _column(known[name], given, count)
        return Answer(columns, valid)

    def write(self, opened: Opened, rows: Index, answer: Answer) -> Encoded:
        """The original bytes with the answered fields in place of theirs, or before the closing brace."""
        read: FieldColumns = opened.origin
        if len(rows) != len(read.scan.values):
            read = read.take(rows)
        if not answer.columns:
            return Encoded(read.scan.values)
        # Where an optional field had no value the array held a 0 that nobody wrote; what is made of it is no value.
        valid = {name: mask for name, mask in read.valid.items() if name in answer.columns} | dict(answer.valid)
        return self._writer(answer.columns).write(read.scan.values, answer.columns, valid=valid, scanned=read)

    def _writer(self, columns: Mapping[str, Column]) -> FieldWriter:
        names = frozenset(columns)
        if names not in self._writers:
            fields = [declared for declared in (*self.reads, *self.adds) if declared.name in names]
            self._writers[names] = FieldWriter(fields, fidelity_non_finite=self.fidelity.non_finite)
        return self._writers[names]


def _column(declared: Field, given: Any, count: int) -> Column:
    if declared.type is FieldType.STRING:
        return as_slices(declared.name, given, count)
    return as_array(declared.name, given, _DTYPES[declared.type], count)
