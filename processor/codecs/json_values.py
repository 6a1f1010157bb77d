"""JSON values as Python objects, untyped or of a declared type, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from millstream.processor.codecs.fidelity import Fidelity
from millstream.processor.codecs.json_lines import EncodedLines, decode_each_line, encode_each_line
from millstream.processor.codecs.number_checks import (
    holds_big_integer,
    places_of_non_finite,
)
from millstream.processor.codecs.unknown_fields import fields_to_keep, strict_shadow
from millstream.processor.codecs.value_kernels import mark_long_digit_runs
from millstream.processor.columns import NULL_SIZE, Index, Slices
from millstream.processor.errors import DecodeError, EncodeError
from millstream.processor.interfaces import Decoded, Encoded

_NON_FINITE = (
    "a number is NaN or infinite, which JSON cannot express"
    ' (Fidelity(non_finite="null") writes null; MessagePack keeps it)'
)
_BIG = 'an integer does not fit into 64 bits, and Fidelity(big_integers="refuse") refuses it'
_NULL_DOCUMENT = (
    "the value is the JSON text null, which cannot be told from a tombstone"
    ' (Fidelity(null_documents="tombstone") reads it as one)'
)


class JsonCodec:
    """JSON values of one type; `Any` takes every JSON value.

    Raises ValueError for a type, or a combination of a type and a fidelity, that cannot work.
    """

    format = "json"

    def __init__(self, type_: Any, name: str, fidelity: Fidelity) -> None:
        self._name = name
        self._fidelity = fidelity
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(type_)
        self._shadow_decoder: msgspec.json.Decoder[Any] | None = None
        #: With `unknown_fields="keep"`, the fields that the type names, for `merge_unknown_fields`; None otherwise.
        self.named_fields: frozenset[str] | None = None
        if fidelity.unknown_fields == "keep":
            self.named_fields = fields_to_keep(type_)
        elif fidelity.unknown_fields == "refuse":
            shadow = strict_shadow(type_)
            self._shadow_decoder = None if shadow is None else msgspec.json.Decoder(shadow)

    @property
    def name(self) -> str:
        return self._name

    def decode(self, values: Slices) -> Decoded:
        """Objects for all rows; see `ValueCodec.decode`."""
        refusal = _NULL_DOCUMENT if self._fidelity.null_documents == "refuse" else None
        decoded, errors = decode_each_line(self._decoder, values, self._name, null_refusal=refusal)
        if self._shadow_decoder is not None:
            _, strict_errors = decode_each_line(self._shadow_decoder, values, self._name)
            for row, error in strict_errors.items():
                errors.setdefault(row, error)
        if self._fidelity.big_integers == "refuse":
            for row in _rows_with_long_digit_runs(values):
                if row not in errors and holds_big_integer(decoded[row]):
                    errors[row] = DecodeError(f"{self._name}: {_BIG}")
        for row in errors:
            decoded[row] = None
        return Decoded(decoded, errors)

    def encode(self, values: Sequence[object]) -> Encoded:
        """JSON for all objects; see `ValueCodec.encode`."""
        encoded = encode_each_line(values, self._name)
        errors = encoded.errors
        if self._fidelity.non_finite == "refuse":
            for row in _rows_of_non_finite(values, encoded):
                errors[row] = EncodeError(f"{self._name}: {_NON_FINITE}")
        if self._fidelity.big_integers == "refuse":
            for row in _rows_with_long_digit_runs(encoded.rows):
                if holds_big_integer(values[row]):
                    errors[row] = EncodeError(f"{self._name}: {_BIG}")
        return Encoded(_without(encoded.rows, errors), errors)


def merge_unknown_fields(original: Slices, encoded: Slices, named: frozenset[str]) -> Encoded:
    """`encoded`, with those fields of `original`'s objects added that `named` does not hold.

    Values of carried fields keep every byte (digits, spelling of numbers, order and blanks within). An object that
    has such fields is written in the original's order, then what only the encoded object has; fields that are named
    but no longer encoded stay away, and a field that both have takes the encoded value. Of a carried field that stands
    twice in the original, the last one is carried. All other rows are as in `encoded`, tombstones among them.

    Both have one row for each record. An EncodeError marks rows whose original is no JSON object, and rows that would
    have fields to carry and whose encoded value is no object.
    """
    name = "json with unknown fields kept"
    rows = np.flatnonzero((original.size != NULL_SIZE) & (encoded.size != NULL_SIZE))
    before, unreadable = decode_each_line(_RAW_FIELDS, original.take(rows), name)
    carrying = [k for k, fields in enumerate(before) if isinstance(fields, dict) and not named.issuperset(fields)]
    after, not_objects = decode_each_line(_RAW_FIELDS, encoded.take(rows[carrying]), name)
    errors: dict[int, EncodeError] = {
        int(rows[k]): EncodeError(f"{name}: the input's fields cannot be read: {error}")
        for k, error in unreadable.items()
    }
    merged: list[object] = []
    for place, k in enumerate(carrying):
        if place in not_objects:
            errors[int(rows[k])] = EncodeError(f"{name}: the stage's result is no JSON object and cannot carry them")
            merged.append(None)
        else:
            merged.append(_merged(before[k], after[place], named))
    lines = encode_each_line(merged, name).rows
    return Encoded(_without(_replaced(encoded, rows[carrying], lines), errors), errors)


_RAW_FIELDS: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _merged(before: object, after: object, named: frozenset[str]) -> dict[str, object]:
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    return {key: after.get(key, carried) for key, carried in before.items() if key in after or key not in named} | after


def _replaced(slices: Slices, rows: Index, replacements: Slices) -> Slices:
    if not len(rows):
        return slices
    place = np.arange(len(slices))
    place[rows] = len(slices) + np.arange(len(rows))
    return Slices.concatenated([slices, replacements]).take(place)


def _without(slices: Slices, errors: Mapping[int, Exception]) -> Slices:
    """The same rows, those in error null."""
    if not errors:
        return slices
    size = slices.size.copy()
    size[list(errors)] = NULL_SIZE
    return Slices(slices.buffer, slices.start, size)


def _rows_of_non_finite(values: Sequence[object], encoded: EncodedLines) -> list[int]:
    """Rows whose object holds NaN or an infinity, for which msgspec has silently written `null`."""
    suspects: list[int] = np.flatnonzero(encoded.may_hold_null).tolist()
    return [suspects[place] for place in places_of_non_finite([values[row] for row in suspects])]


def _rows_with_long_digit_runs(values: Slices) -> list[int]:
    marks = np.empty(len(values), np.uint8)
    if not mark_long_digit_runs(values.buffer, values.start, values.size, marks):
        return []
    return np.flatnonzero(marks).tolist()
