"""Writing JSON fields: the result decodes to the original with the new values, and no other byte has changed."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from json_field_cases import BOOL, FLOAT64, INT64, SAMPLES, STRING, damaged, documents, expected, oracle, values

from millstream.processor.codecs import json_field_kernels, json_splice_kernels
from millstream.processor.codecs.json_fields import Field, FieldReader, FieldWriter
from millstream.processor.codecs.json_splice import spliced
from millstream.processor.columns import Slices
from millstream.processor.errors import EncodeError

FIELDS = (Field("amount", FLOAT64), Field("count", INT64), Field("név", STRING, required=False), Field("paid", BOOL))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
new_values = st.tuples(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**63), 2**63 - 1),
    st.one_of(st.none(), texts),
    st.booleans(),
)


def columns_of(rows: list[tuple[float, int, str | None, bool]]) -> dict[str, Any]:
    amount, count, name, paid = zip(*rows, strict=True)
    return {
        "amount": np.array(amount, np.float64),
        "count": np.array(count, np.int64),
        "név": list(name),
        "paid": np.array(paid, np.bool_),
    }


def written(document: bytes, new: dict[str, Any], writer: FieldWriter) -> bytes | None:
    encoded = writer.write(Slices.from_list([document]), new)
    assert not encoded.errors
    return encoded.values[0]


@given(st.lists(st.tuples(documents(), new_values), min_size=1, max_size=4), st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_document_decodes_to_itself_with_the_new_values(
    rows: list[tuple[bytes, tuple[float, int, str | None, bool]]], share_the_scan: bool
) -> None:
    originals = Slices.from_list([document for document, _ in rows])
    located = [field.name for field in FIELDS]
    scanned = FieldReader([Field("paid", BOOL, required=False)], located=located).read(originals)
    columns = columns_of([new for _, new in rows])
    result = FieldWriter(FIELDS).write(originals, columns, scanned=scanned if share_the_scan else None)
    assert not result.errors
    for row, (document, (amount, count, name, paid)) in enumerate(rows):
        text = result.values[row]
        assert text is not None
        new = {"amount": amount, "count": count, "név": name, "paid": paid}
        assert json.loads(text) == json.loads(document) | new


@given(documents(distinct_keys=True), new_values)
@settings(max_examples=100, deadline=None)
def test_no_other_byte_changes(document: bytes, new: tuple[float, int, str | None, bool]) -> None:
    text = written(document, columns_of([new]), FieldWriter(FIELDS))
    assert text is not None
    old = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    # Everything that was there is put back, so what is left is what was appended.
    restored = spliced(text, {name: bytes(raw) for name, raw in old.items()})
    closing = document.rindex(b"}")
    assert restored.startswith(document[:closing])
    assert restored.endswith(document[closing:])
    appended = restored[closing : len(restored) - len(document) + closing]
    added = [field.name for field in FIELDS if field.name not in old]
    assert list(json.loads(b"{" + appended.removeprefix(b",") + b"}")) == added
    assert appended.startswith(b",") == (bool(old) and bool(added))


@given(documents(), values)
@settings(max_examples=100, deadline=None)
def test_the_slow_way_gives_the_same_bytes_as_the_kernels(document: bytes, value: str) -> None:
    count = len(value)
    text = written(document, {"count": np.array([count])}, FieldWriter([Field("count", INT64)]))
    assert text == spliced(document, {"count": str(count).encode()})


@pytest.mark.parametrize("sample", SAMPLES)
def test_damaged_originals_are_errors_exactly_where_msgspec_refuses_them(sample: bytes) -> None:
    rows = list(damaged(sample))
    result = FieldWriter([Field("count", INT64)]).write(Slices.from_list(rows), {"count": np.arange(len(rows))})
    decoder, counts = oracle([]), oracle([Field("count", INT64)])
    for row, document in enumerate(rows):
        try:
            decoder.decode(document)
        except msgspec.DecodeError:
            assert type(result.errors[row]) is EncodeError
            assert result.values[row] is None
        else:
            text = result.values[row]
            assert text is not None
            assert expected(counts, text) == [row]


@pytest.mark.parametrize(
    ("document", "result"),
    [
        (b"{}", b'{"count":5}'),
        (b" { \n} ", b' { \n"count":5} '),
        (b'{"a":1}', b'{"a":1,"count":5}'),
        (b'{"a":1 }\n', b'{"a":1 ,"count":5}\n'),
        (b'{"count" : {"x":[1,"}"]} ,"a":1}', b'{"count" : 5 ,"a":1}'),
        (b'{"a":{"count":1}}', b'{"a":{"count":1},"count":5}'),
        (b'{"count":1,"count":2}', b'{"count":5,"count":5}'),
        (b'{"c\\u006funt":"\\"","a":1}', b'{"c\\u006funt":5,"a":1}'),
    ],
)
def test_a_field_is_replaced_in_place_or_appended(document: bytes, result: bytes) -> None:
    assert written(document, {"count": np.array([5])}, FieldWriter([Field("count", INT64)])) == result


def test_a_row_in_error_never_takes_its_neighbours_along() -> None:
    originals = Slices.from_list([b'{"a":1}', None, b"[]", b'{"b":1', b"{}", b'{"a":2}'])
    amounts = np.array([1.5, 2.5, 3.5, 4.5, math.nan, 6.5])
    result = FieldWriter([Field("amount", FLOAT64)]).write(originals, {"amount": amounts})
    assert sorted(result.errors) == [1, 2, 3, 4]
    assert all(type(error) is EncodeError for error in result.errors.values())
    assert result.values.to_list() == [b'{"a":1,"amount":1.5}', None, None, None, None, b'{"a":2,"amount":6.5}']


def test_what_json_cannot_say_is_refused_or_null_as_declared() -> None:
    originals = Slices.from_list([b"{}"] * 4)
    column = {"x": np.array([1.0, math.nan, math.inf, -math.inf])}
    refused = FieldWriter([Field("x", FLOAT64)]).write(originals, column)
    assert sorted(refused.errors) == [1, 2, 3]
    nulls = FieldWriter([Field("x", FLOAT64)], fidelity_non_finite="null").write(originals, column)
    assert not nulls.errors
    assert nulls.values.to_list() == [b'{"x":1.0}', b'{"x":null}', b'{"x":null}', b'{"x":null}']


def test_what_is_not_valid_becomes_null_unless_it_is_required() -> None:
    originals = Slices.from_list([b'{"x":9}', b"{}"])
    valid = {"x": np.array([False, True])}
    column = {"x": np.array([math.nan, 2.0])}
    optional = FieldWriter([Field("x", FLOAT64, required=False)]).write(originals, column, valid=valid)
    assert not optional.errors
    assert optional.values.to_list() == [b'{"x":null}', b'{"x":2.0}']
    required = FieldWriter([Field("x", FLOAT64)]).write(originals, column, valid=valid)
    assert "has no value" in str(required.errors[0])
    assert required.values.to_list() == [None, b'{"x":2.0}']


@given(st.lists(st.one_of(st.none(), st.binary(max_size=8), texts.map(str.encode)), min_size=1, max_size=6))
@settings(max_examples=100, deadline=None)
def test_strings_are_escaped_as_json_wants_them_or_refused(strings: list[bytes | None]) -> None:
    writer = FieldWriter([Field("s", STRING, required=False)])
    result = writer.write(Slices.from_list([b"{}"] * len(strings)), {"s": Slices.from_list(strings)})
    for row, string in enumerate(strings):
        try:
            wanted = None if string is None else string.decode()
        except UnicodeDecodeError:
            assert "not UTF-8" in str(result.errors[row])
        else:
            assert json.loads(result.values[row] or b"") == {"s": wanted}


def test_a_string_with_lone_surrogates_is_an_error_of_its_row() -> None:
    result = FieldWriter([Field("s", STRING)]).write(Slices.from_list([b"{}"] * 2), {"s": ["\ud800", "b"]})
    assert list(result.errors) == [0]
    assert result.values.to_list() == [None, b'{"s":"b"}']


def test_values_read_are_written_back_as_they_were() -> None:
    fields = (Field("count", INT64, False), Field("amount", FLOAT64, False), Field("név", STRING, False))
    originals = Slices.from_list([*SAMPLES, b'{"n\xc3\xa9v":null,"amount":1e-7,"count":-9223372036854775808}'])
    read = FieldReader(fields).read(originals)
    assert not read.errors
    result = FieldWriter(fields).write(originals, read.columns, valid=read.valid, scanned=read)
    assert not result.errors
    again = FieldReader(fields).read(result.values)
    for field in fields:
        one, other = read.columns[field.name], again.columns[field.name]
        assert again.valid[field.name].tolist() == read.valid[field.name].tolist()
        if isinstance(one, Slices) and isinstance(other, Slices):
            assert one.to_list() == other.to_list()
        elif isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
            assert one.tolist() == other.tolist()
        else:
            pytest.fail("a field's column changed its kind")


def test_rows_taken_from_a_read_are_written_without_scanning_again() -> None:
    originals = Slices.from_list([b'{"a":1,"b":5}', b"[", b'{"a":3}', b'{"\\u0061":4}'])
    read = FieldReader([Field("a", INT64)], located=["b"]).read(originals)
    good = np.array([3, 0, 2])
    taken = read.take(good)
    assert not taken.errors
    result = FieldWriter([Field("b", INT64)]).write(originals.take(good), {"b": taken.columns["a"]}, scanned=taken)
    assert result.values.to_list() == [b'{"\\u0061":4,"b":4}', b'{"a":1,"b":1}', b'{"a":3,"b":3}']


def test_a_scan_of_other_rows_is_refused() -> None:
    originals = Slices.from_list([b'{"a":1}', b'{"a":2}'])
    read = FieldReader([Field("a", INT64)]).read(originals)
    with pytest.raises(ValueError, match="take the same rows"):
        FieldWriter([Field("a", INT64)]).write(originals.take(np.array([1, 0])), {"a": np.arange(2)}, scanned=read)


@pytest.mark.parametrize(
    ("field", "column", "message"),
    [
        (Field("x", INT64), np.array([1.5, 2.5]), "holds float64 where int64 is declared"),
        (Field("x", FLOAT64), np.array([1j, 2j]), "holds complex128 where float64 is declared"),
        (Field("x", BOOL), np.array([1, 0]), "holds int64 where bool is declared"),
        (Field("x", FLOAT64), ["1", "2"], "one-dimensional array of float64"),
        (Field("x", STRING), np.array([1, 2]), "where string is declared"),
        (Field("x", INT64), np.array([1]), "has 1 rows; the batch has 2"),
        (Field("x", INT64), np.array([[1], [2]]), "one-dimensional"),
    ],
)
def test_columns_of_another_type_or_length_are_refused(field: Field, column: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FieldWriter([field]).write(Slices.from_list([b"{}", b"{}"]), {"x": column})


@pytest.mark.parametrize("given", [{}, {"a": np.arange(1), "b": np.arange(1)}, {"b": np.arange(1)}])
def test_the_columns_have_to_be_those_declared(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="were declared to be written"):
        FieldWriter([Field("a", INT64)]).write(Slices.from_list([b"{}"]), given)


def test_numbers_of_other_widths_are_written_exactly_or_refused() -> None:
    originals = Slices.from_list([b"{}"] * 2)
    wide = FieldWriter([Field("x", INT64)]).write(originals, {"x": np.array([0, 2**64 - 1], np.uint64)})
    assert wide.values.to_list() == [b'{"x":0}', b'{"x":18446744073709551615}']
    strided = FieldWriter([Field("x", INT64)]).write(originals, {"x": np.arange(4, dtype=">i4")[::2]})
    assert strided.values.to_list() == [b'{"x":0}', b'{"x":2}']
    whole = FieldWriter([Field("x", FLOAT64)]).write(originals, {"x": np.array([3, 2**53 + 1])})
    assert whole.values[0] == b'{"x":3.0}'
    assert "beyond what float64 holds" in str(whole.errors[1])


def test_each_kernel_is_compiled_once_whatever_arrays_come() -> None:
    fields = (Field("a", INT64), Field("s", STRING))
    reader, writer = FieldReader(fields), FieldWriter(fields)
    read_only = Slices.from_list([b'{"a":1,"s":"x"}', b'{"a":2,"s":"y"}'])
    writeable = read_only.gathered()
    strided = Slices(writeable.buffer, writeable.start[::-1], writeable.size[::-1])
    for rows in (read_only, writeable, strided, read_only.take(np.array([1]))):
        read = reader.read(rows)
        for scanned in (None, read, read.take(np.arange(len(rows))[::-1])):
            chosen = rows if scanned is None else scanned.scan.values
            columns = dict(read.columns) if scanned is None else dict(scanned.columns)
            writer.write(chosen, columns, scanned=scanned)
    splicing = (json_splice_kernels.quote, json_splice_kernels.splice_layout, json_splice_kernels.splice)
    for kernel in (json_field_kernels.scan, *splicing):
        assert len(getattr(kernel, "signatures", ())) == 1


def test_an_empty_batch_stays_empty() -> None:
    result = FieldWriter(FIELDS).write(
        Slices.from_list([]),
        {"amount": np.zeros(0), "count": np.zeros(0, np.int64), "név": [], "paid": np.zeros(0, bool)},
    )
    assert len(result.values) == 0
