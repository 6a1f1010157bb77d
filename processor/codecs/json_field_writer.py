"""From columns back into JSON objects: new values are spliced into the original bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from millstream.processor.codecs import json_field_kernels as scan_states
from millstream.processor.codecs import json_splice_kernels as kernels
from millstream.processor.codecs.json_field_reader import FieldColumns
from millstream.processor.codecs.json_field_scan import FieldScan, FieldScanner, borrowed
from millstream.processor.codecs.json_field_texts import NonFinite, WritableColumn, column_texts
from millstream.processor.codecs.json_field_types import Field, check_distinct
from millstream.processor.codecs.json_splice import spliced
from millstream.processor.columns import Bools, Bytes, Int32s, Slices
from millstream.processor.errors import EncodeError
from millstream.processor.interfaces import Encoded

_INT32_MAX = np.iinfo(np.int32).max


class FieldWriter:
    """Replaces or appends top-level fields of JSON objects; every other byte stays as it is.

    A field that is there gets its new value in place (all of its values, where an object names it more than once);
    one that is not is appended before the closing brace.
    """

    def __init__(self, fields: Sequence[Field], *, fidelity_non_finite: NonFinite = "refuse") -> None:
        """NaN and infinity are an `EncodeError`, or become null. Raises ValueError where two fields have one name."""
        check_distinct([field.name for field in fields])
        self.fields = tuple(fields)
        self.names = tuple(field.name for field in fields)
        self._non_finite: NonFinite = fidelity_non_finite
        self._scanner = FieldScanner(dict.fromkeys(self.names, scan_states.WANT_SPAN))
        keys = [msgspec.json.encode(name) + b":" for name in self.names]
        self._key_bytes = borrowed(np.frombuffer(b"".join(keys), np.uint8))
        self._key_start = borrowed(np.cumsum([0, *map(len, keys)]).astype(np.int32))

    def write(
        self,
        values: Slices,
        columns: Mapping[str, WritableColumn],
        *,
        valid: Mapping[str, Bools] | None = None,
        scanned: FieldColumns | None = None,
    ) -> Encoded:
        """Each row of `values` with the fields' new values; null and an `EncodeError` where that cannot be done.

        `valid` may have a mask for a field: where it is False the value is null (an error if the field is required).
        `scanned` is what a reader made of the same rows; where it located all of these fields, nothing is scanned
        again. Raises ValueError where the columns are not this writer's, or `scanned` is of other rows.
        """
        self._check_columns(columns, valid or {})
        texts, errors = [], dict[int, Exception]()
        for field in self.fields:
            mask = (valid or {}).get(field.name)
            text, refused = column_texts(field, columns[field.name], mask, len(values), self._non_finite)
            texts.append(text)
            errors = refused | errors
        scan = self._scan(values, scanned)
        for row in np.flatnonzero(scan.row_state == scan_states.ROW_NULL).tolist():
            errors[row] = EncodeError("a tombstone (null value) cannot be given fields")
        result = self._splice(scan, texts, errors)
        if scan.unsure:
            result = self._splice_unsure(scan, texts, errors, result)
        return Encoded(result, errors)

    def _check_columns(self, columns: Mapping[str, WritableColumn], valid: Mapping[str, Bools]) -> None:
        if columns.keys() != set(self.names):
            raise ValueError(f"columns {sorted(columns)} were given; {sorted(self.names)} were declared to be written")
        if not valid.keys() <= set(self.names):
            raise ValueError(f"masks {sorted(valid)} were given; {sorted(self.names)} are written")

    def _scan(self, values: Slices, scanned: FieldColumns | None) -> FieldScan:
        if scanned is None:
            return self._scanner.scan(values)
        if not _same_rows(scanned.scan.values, values):
            raise ValueError("`scanned` has other rows than `values`; take the same rows of both")
        return scanned.scan if set(self.names) <= set(scanned.scan.names) else self._scanner.scan(values)

    def _splice(self, scan: FieldScan, texts: Sequence[Slices], errors: Mapping[int, Exception]) -> Slices:
        """Results for the rows that the scanner has read; null for the others and those in error."""
        wanted = scan.row_state == scan_states.ROW_READ
        wanted[np.fromiter(errors, np.int64, len(errors))] = False
        text_bytes, text_start, text_size = _stacked(texts)
        place = borrowed(np.array([scan.names.index(name) for name in self.names], np.int32))
        size, close = borrowed(scan.values.size), borrowed(scan.close)
        cell_state, value_size = borrowed(scan.cell_state), borrowed(scan.value_size)
        result_start, result_size = np.empty(len(size), np.int32), np.empty(len(size), np.int32)
        total = kernels.splice_layout(
            wanted, size, close, place, cell_state, value_size, text_size, self._key_start, result_start, result_size
        )
        if total > _INT32_MAX:
            raise OverflowError(f"{total} bytes do not fit into one column (2 GiB at most)")
        result = np.empty(total, np.uint8)
        kernels.splice(
            borrowed(scan.values.buffer),
            borrowed(scan.values.start),
            size,
            close,
            place,
            cell_state,
            borrowed(scan.value_start),
            value_size,
            text_bytes,
            text_start,
            text_size,
            self._key_bytes,
            self._key_start,
            result_start,
            result_size,
            result,
        )
        return Slices(result, result_start, result_size)

    def _splice_unsure(
        self, scan: FieldScan, texts: Sequence[Slices], errors: dict[int, Exception], result: Slices
    ) -> Slices:
        """The result with the rows that the scanner gave up, done one by one."""
        rows, documents = [], []
        for row in np.flatnonzero(scan.row_state == scan_states.ROW_UNSURE).tolist():
            if row in errors:
                continue
            try:
                new = {name: text[row] or b"" for name, text in zip(self.names, texts, strict=True)}
                documents.append(spliced(scan.values[row] or b"", new))
                rows.append(row)
            except EncodeError as error:
                errors[row] = error
        if not rows:
            return result
        more = Slices.from_list(documents)
        result.start[rows] = more.start + np.int32(len(result.buffer))
        result.size[rows] = more.size
        return Slices(np.concatenate([result.buffer, more.buffer]), result.start, result.size)


def _same_rows(one: Slices, other: Slices) -> bool:
    return one is other or (
        one.buffer is other.buffer and np.array_equal(one.start, other.start) and np.array_equal(one.size, other.size)
    )


def _stacked(texts: Sequence[Slices]) -> tuple[Bytes, Int32s, Int32s]:
    """The bytes of all texts in one buffer, and their places in it: int32[fields, rows]."""
    lengths = [len(text.buffer) for text in texts]
    if sum(lengths) > _INT32_MAX:
        raise OverflowError(f"{sum(lengths)} bytes do not fit into one column (2 GiB at most)")
    shifts = np.cumsum([0, *lengths])[:-1].astype(np.int32)
    start = np.stack([text.start + shift for text, shift in zip(texts, shifts, strict=True)])
    size = np.stack([text.size for text in texts])
    buffer = texts[0].buffer if len(texts) == 1 else np.concatenate([text.buffer for text in texts])
    return borrowed(buffer), borrowed(start), borrowed(size)
