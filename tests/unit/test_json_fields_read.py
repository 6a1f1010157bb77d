"""Reading JSON fields: the columns hold what msgspec would have decoded, whatever the bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from json_field_cases import (
    BOOL,
    FLOAT64,
    INT64,
    OPTIONAL_FIELDS,
    REQUIRED_FIELDS,
    SAMPLES,
    STRING,
    damaged,
    documents,
    expected,
    numbers,
    oracle,
    values_read,
)

from millstream.processor.codecs.json_fields import Field, FieldReader, FieldType
from millstream.processor.columns import Slices
from millstream.processor.errors import DecodeError


def assert_reads_as_msgspec(fields: Sequence[Field], rows: Sequence[bytes | None]) -> None:
    read = FieldReader(fields).read(Slices.from_list(rows))
    decoder = oracle(fields)
    for row, document in enumerate(rows):
        assert _bits(values_read(fields, read, row)) == _bits(expected(decoder, document)), document
    assert all(type(error) is DecodeError for error in read.errors.values())


def _bits(values: list[object] | None) -> list[object] | None:
    """Floats by their bits, so that -0.0 is not 0.0."""
    return values and [struct.pack("d", value) if isinstance(value, float) else value for value in values]


@given(st.lists(st.one_of(documents(), st.none()), min_size=1, max_size=5))
@settings(max_examples=150, deadline=None)
def test_any_document_is_read_as_msgspec_reads_it(rows: list[bytes | None]) -> None:
    assert_reads_as_msgspec(OPTIONAL_FIELDS, rows)
    assert_reads_as_msgspec(REQUIRED_FIELDS, rows)


@pytest.mark.parametrize("sample", SAMPLES)
def test_documents_cut_off_or_damaged_anywhere_are_accepted_only_where_msgspec_does(sample: bytes) -> None:
    rows = list(damaged(sample))
    assert_reads_as_msgspec(OPTIONAL_FIELDS, rows)
    assert_reads_as_msgspec(REQUIRED_FIELDS, rows)


@given(documents(), st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=3)), min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_documents_with_random_bytes_in_them_are_accepted_only_where_msgspec_does(
    document: bytes, changes: list[tuple[int, bytes]]
) -> None:
    for place, replacement in changes:
        document = document[:place] + replacement + document[place + 1 :]
    assert_reads_as_msgspec(OPTIONAL_FIELDS, [document])


@given(st.lists(numbers, min_size=1, max_size=20))
@settings(max_examples=150, deadline=None)
def test_floats_are_rounded_as_python_rounds_them(texts: list[str]) -> None:
    texts = [text for text in texts if abs(float(text)) != float("inf")]
    read = FieldReader([Field("x", FLOAT64)]).read(Slices.from_list([f'{{"x":{text}}}'.encode() for text in texts]))
    column = read.columns["x"]
    assert isinstance(column, np.ndarray)
    # An integer has no sign of zero.
    wanted = [float(int(text)) if text.lstrip("-").isdigit() else float(text) for text in texts]
    assert column.tobytes() == np.array(wanted).tobytes()


def test_floats_next_to_a_halfway_point_are_rounded_as_python_rounds_them() -> None:
    generator = np.random.default_rng(7)
    floats = generator.integers(0, 0x7FE0_0000_0000_0000, 20_000).view(np.float64)
    texts = [
        f"{value:.{digits}e}" for value, digits in zip(floats, generator.integers(14, 19, len(floats)), strict=True)
    ]
    texts += ["9007199254740993.0", "9007199254740992.9", "1.7976931348623157e308", "2.2250738585072011e-308", "5e-324"]
    texts += ["0.0", "-0.0", "0e99", "-0e-400", "0.000000000000000000000000000000000000001", "1e22", "1e23", "1e-400"]
    read = FieldReader([Field("x", FLOAT64)]).read(Slices.from_list([f'{{"x":{text}}}'.encode() for text in texts]))
    column = read.columns["x"]
    assert isinstance(column, np.ndarray)
    assert column.tobytes() == np.array([float(text) for text in texts]).tobytes()


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (b"9223372036854775807", 2**63 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b"9223372036854775808", None),
        (b"-9223372036854775809", None),
        (b"18446744073709551616", None),
        (b"18446744073709551617", None),
        (b"1" + b"0" * 200, None),
        (b"-0", 0),
        (b"1.0", None),
        (b"1e2", None),
    ],
)
def test_integers_are_exact_or_refused_and_never_wrapped(number: bytes, value: int | None) -> None:
    read = FieldReader([Field("n", INT64)]).read(Slices.from_list([b'{"n":' + number + b"}", b'{"n":7}']))
    column = read.columns["n"]
    assert isinstance(column, np.ndarray)
    assert column.tolist() == [value or 0, 7]
    assert (0 in read.errors) == (value is None)
    if value is None and number.lstrip(b"-").isdigit():
        assert "beyond 64 bits" in str(read.errors[0])


@given(st.binary(max_size=12))
@settings(max_examples=200, deadline=None)
def test_strings_that_are_not_utf8_are_refused(raw: bytes) -> None:
    assert_reads_as_msgspec([Field("s", STRING)], [b'{"s":"' + raw + b'"}', b'{"s":"\\n' + raw + b'"}'])


def test_every_two_and_three_byte_sequence_is_judged_as_python_judges_it() -> None:
    followers = (0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0)
    tails = [b""] + [bytes([a]) for a in followers] + [bytes([a, b]) for a in followers for b in followers]
    tails += [bytes([a, b, c]) for a in followers for b in followers for c in (0x80, 0xBF, 0xC0)]
    rows: list[bytes | None] = [b'{"s":"' + bytes([lead]) + t + b'"}' for lead in range(0x80, 0x100) for t in tails]
    assert_reads_as_msgspec([Field("s", STRING)], rows)


@pytest.mark.parametrize("depth", [59, 60, 61, 62, 300])
def test_nesting_is_followed_to_any_depth_that_msgspec_follows(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    tail = b',"count":5}'
    rows = [
        b'{"x":' + deep + tail,
        b'{"x":' + nested + tail,
        b'{"x":' + deep[:-1] + tail,
        b'{"x":' + deep + b"]" + tail,
    ]
    assert_reads_as_msgspec(OPTIONAL_FIELDS, rows)


def test_hostile_nesting_is_an_error_of_its_row() -> None:
    rows = [b'{"x":' + b"[" * 500_000 + b"]" * 500_000 + b"}", b'{"count":1}']
    read = FieldReader(OPTIONAL_FIELDS).read(Slices.from_list(rows))
    assert list(read.errors) == [0]
    assert "nested too deeply" in str(read.errors[0])


def test_a_row_never_borrows_from_the_bytes_around_it() -> None:
    whole = b'{"count":12,"amount":3.25e1,"paid":true,"s":"ab\\u00e9","x":[{}]}'
    rows = [(start, end) for start in range(len(whole) + 1) for end in range(start, len(whole) + 1)]
    starts, ends = np.array(rows, np.int32).T
    read = FieldReader(OPTIONAL_FIELDS).read(Slices(np.frombuffer(whole, np.uint8), starts, ends - starts))
    accepted = [whole[start:end] for row, (start, end) in enumerate(rows) if row not in read.errors]
    assert accepted == [whole, b"{}"]


def test_the_last_of_several_fields_with_one_name_wins_and_all_have_to_fit() -> None:
    assert_reads_as_msgspec(
        OPTIONAL_FIELDS,
        [
            b'{"count":1,"count":2}',
            b'{"count":1,"count":null}',
            b'{"count":"no","count":2}',
            b'{"count":1,"x":1,"x":"y"}',
        ],
    )


def test_names_spelled_with_escapes_are_recognised() -> None:
    read = FieldReader([Field("amount", INT64)]).read(
        Slices.from_list([b'{"\\u0061mount":3}', b'{"x\\n":1,"amount":4}'])
    )
    column = read.columns["amount"]
    assert isinstance(column, np.ndarray)
    assert column.tolist() == [3, 4]


def test_one_bad_row_never_takes_its_neighbours_along() -> None:
    rows = [
        b'{"amount":1,"n\xc3\xa9v":"a"}',
        b"{",
        None,
        b'{"amount":"1","n\xc3\xa9v":"b"}',
        b'{"amount":2,"n\xc3\xa9v":"\\n"}',
    ]
    read = FieldReader(REQUIRED_FIELDS).read(Slices.from_list(rows))
    assert sorted(read.errors) == [1, 2, 3]
    strings = read.columns["név"]
    assert isinstance(strings, Slices)
    assert strings.to_list() == [b"a", b"", b"", b"", b"\n"]


def test_errors_name_the_field_and_never_show_the_record() -> None:
    rows = [
        b'{"secret":"Zebra"}',
        b'{"amount":"Zebra","n\xc3\xa9v":""}',
        b'{"amount":null,"n\xc3\xa9v":"Zebra"}',
        b'{"Zebra"',
        None,
    ]
    errors = FieldReader(REQUIRED_FIELDS).read(Slices.from_list(rows)).errors
    assert ["amount" in str(errors[row]) for row in range(3)] == [True, True, True]
    assert "tombstone" in str(errors[4])
    assert not any("Zebra" in str(error) for error in errors.values())


def test_rows_taken_from_columns_keep_their_values_masks_and_errors() -> None:
    rows = [b'{"count":1}', b"{", b'{"n\xc3\xa9v":"x"}', b'{"count":4,"paid":true}']
    read = FieldReader(OPTIONAL_FIELDS).read(Slices.from_list(rows))
    for chosen in (np.array([3, 1, 2]), np.array([False, True, True, True])):
        taken = read.take(chosen)
        order = np.arange(4)[chosen].tolist()
        assert [values_read(OPTIONAL_FIELDS, taken, i) for i in range(3)] == [
            values_read(OPTIONAL_FIELDS, read, row) for row in order
        ]
        assert sorted(taken.errors) == [order.index(1)]


def test_ordinary_documents_are_read_without_asking_msgspec() -> None:
    ordinary = [
        *(sample for sample in SAMPLES if b"\\u00eb" not in sample),
        '{ "név" : "grüße €😀", "amount": 0.8444218515250481, "x": [{"a": [1, -2.5e-7, "\\n\\u00e9"]}]}'.encode(),
        b'{"amount":1.7976931348623157e-290,"count":-9223372036854775807,"paid":null}',
        b'\n{"amount":-3,"n\xc3\xa9v":"","zero":0.0}\r\n',
    ]
    read = FieldReader(OPTIONAL_FIELDS).read(Slices.from_list(ordinary))
    assert not read.errors
    assert read.scan.unsure == 0


def test_an_empty_batch_has_empty_columns() -> None:
    read = FieldReader(OPTIONAL_FIELDS).read(Slices.from_list([]))
    assert [len(read.columns[field.name]) for field in OPTIONAL_FIELDS] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        (int, INT64),
        (float, FLOAT64),
        (bool, BOOL),
        (str, STRING),
        (np.float64, FLOAT64),
        (np.int64, INT64),
        (np.bool_, BOOL),
        ("f8", FLOAT64),
        ("i8", INT64),
        (np.dtype(np.float64), FLOAT64),
    ],
)
def test_annotations_name_column_types(annotation: object, kind: FieldType) -> None:
    assert FieldType.from_annotation(annotation) is kind


@pytest.mark.parametrize("annotation", [None, bytes, list, np.float32, "i4", "U3", "nonsense", object, dict[str, int]])
def test_other_annotations_are_refused_with_what_is_allowed(annotation: object) -> None:
    with pytest.raises(ValueError, match="int, float, bool or str"):
        FieldType.from_annotation(annotation)


@pytest.mark.parametrize("name", ["", 'a"b', "a\\b", "a\nb", "\ud800"])
def test_names_that_cannot_be_columns_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="field"):
        Field(name, INT64)


def test_two_fields_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="more than once: a"):
        FieldReader([Field("a", INT64), Field("b", INT64), Field("a", FLOAT64)])
