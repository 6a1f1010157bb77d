"""JSON values: a batch decodes and encodes exactly as its rows would one by one, whatever the rows are."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, NamedTuple, TypedDict

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.processor.codecs.fidelity import Fidelity
from millstream.processor.codecs.resolve import codec_for
from millstream.processor.columns import Slices
from millstream.processor.errors import DecodeError, EncodeError
from millstream.processor.interfaces import Decoded


class Payment(msgspec.Struct):
    user: str
    amount: float = 0.0
    count: int = 0
    inner: Payment | None = None


class Opened(msgspec.Struct, tag=True):
    account: int


class Closed(msgspec.Struct, tag=True):
    account: int
    reason: str | None = None


@dataclass
class Point:
    x: float
    y: float


class Row(TypedDict):
    a: int


class Pair(NamedTuple):
    first: int
    second: str


class Positive(msgspec.Struct):
    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError(f"{self.value} is negative")
        if self.value == 0:
            raise KeyError(f"{self.value} is zero")


TYPES: list[Any] = [
    object,
    dict,
    list,
    Payment,
    Opened | Closed,
    Point,
    Row,
    Pair,
    list[Payment],
    int,
    float,
    str,
    Positive,
]

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
documents = json_values.filter(lambda value: value is not None)
blanks = st.text(" \t\r\n", max_size=2)

VALID_TEXTS = [
    b'{"user":"ann","amount":1.5,"count":3}',
    b'{"user":"ben","inner":{"user":"kid"}}',
    b'{"type":"Opened","account":1}',
    b'{"type":"Closed","account":2,"reason":"x"}',
    b'{"x":1,"y":2.5}',
    b'{"a":1}',
    b'{"value":-1}',
    b'{"value":0}',
    b'{"value":7}',
    b'[1,"two"]',
    b'[{"user":"a"},{"user":"b"}]',
    b'"text \\" } ] \\\\"',
    b"12",
    b"-0.5e3",
    b"true",
    b"null",
    b" \n{ } ",
    b"\t[\n]\r",
]
# Fragments that complete each other when they are joined carelessly.
STRADDLING_TEXTS = [
    b'{"a":1,',
    b'"b":2}{"c":3}',
    b"[1",
    b"2],5",
    b"1]",
    b"[",
    b"]",
    b"{",
    b"}",
    b'{"a":',
    b"1}",
    b'{"a"',
    b":1}",
    b'"',
    b'"a',
    b'a"',
    b'"a":1}',
    b'{"a":"}',
    b'"}',
    b"1 2",
    b"{}{}",
    b"[][]",
    b'"a""b"',
    b"1e",
    b"tru",
    b"tre",
    b"e",
    b"-",
    b".5",
    b",",
    b"",
    b" ",
    b"\n",
    b"[1,2\n]",
    b'["a\nb"]',
    b"[NaN]",
    b"Infinity",
    b'"\\',
    b'"\\u12',
    b'"\xff"',
    b'"\\ud800"',
    b"\xef\xbb\xbf{}",
    b"[0,",
    b'{"a":[1,{"b":',
    b"\x00",
    b"1" * 5000,
    b"1e999",
]

cut_documents = st.lists(documents, min_size=1, max_size=3).flatmap(
    lambda values: st.lists(st.integers(0, 60), max_size=4).map(
        lambda cuts: _cut(b",".join(json.dumps(value).encode() for value in values), cuts)
    )
)
good_texts = st.builds(
    lambda before, value, after: (before + json.dumps(value, ensure_ascii=False) + after).encode(),
    blanks,
    documents,
    blanks,
)
row_texts = st.sampled_from([None, *VALID_TEXTS, *STRADDLING_TEXTS]) | good_texts
batches = st.lists(st.one_of(row_texts.map(lambda row: [row]), cut_documents), max_size=12).map(
    lambda parts: [row for part in parts for row in part]
)


def _cut(text: bytes, cuts: list[int]) -> list[bytes]:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(borders)]


def assert_as_row_by_row(rows: list[bytes | None], type_: Any, decoded: Decoded) -> None:
    """The oracle is `msgspec.json.decode` on each row alone."""
    assert len(decoded.values) == len(rows)
    for i, row in enumerate(rows):
        try:
            expected = None if row is None else msgspec.json.decode(row, type=Any if type_ is object else type_)
            good = row is None or expected is not None
        except Exception:
            expected, good = None, False
        assert decoded.values[i] == expected, (i, rows)
        assert (i not in decoded.errors) == good, (i, rows)
    assert all(isinstance(error, DecodeError) for error in decoded.errors.values())


@pytest.mark.parametrize("type_", TYPES, ids=str)
@settings(max_examples=30, deadline=None)
@given(rows=batches)
def test_a_batch_decodes_as_its_rows_do_alone(type_: Any, rows: list[bytes | None]) -> None:
    assert_as_row_by_row(rows, type_, codec_for(type_, "json").decode(Slices.from_list(rows)))


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.text('{}[],:"1e \n\\-', max_size=6).map(str.encode), max_size=10))
def test_no_arrangement_of_brackets_quotes_and_commas_moves_a_value_to_another_row(rows: list[bytes | None]) -> None:
    assert_as_row_by_row(rows, object, codec_for(object).decode(Slices.from_list(rows)))


def test_every_pair_of_straddling_rows_decodes_as_its_rows_do_alone() -> None:
    texts = [*VALID_TEXTS, *STRADDLING_TEXTS]
    codec = codec_for(object)
    for first in texts:
        rows: list[bytes | None] = []
        for second in texts:
            rows += [first, second, b"{}"]
        assert_as_row_by_row(rows, object, codec.decode(Slices.from_list(rows)))
        for second in texts:
            pair: list[bytes | None] = [first, second]
            assert_as_row_by_row(pair, object, codec.decode(Slices.from_list(pair)))


def test_no_two_rows_of_up_to_three_tokens_exchange_values() -> None:
    tokens = [b"{", b"}", b"[", b"]", b",", b":", b'"a"', b"1"]
    rows = [b" ".join(row) for length in (1, 2, 3) for row in product(tokens, repeat=length)]
    good = {row for row in rows if yields(row, 1)}
    # Only these pairs can mislead: together they yield two values, and yet not one each.
    misleading = [
        (first, second)
        for first in rows
        if first[:1] in b'{["1'
        for second in rows
        if not (first in good and second in good) and yields(first + b"\n" + second + b"\n", 2)
    ]
    assert len(misleading) > 50
    batch: list[bytes | None] = []
    for pair in misleading:
        batch += pair
        assert_as_row_by_row(list(pair), object, codec_for(object).decode(Slices.from_list(pair)))
    assert_as_row_by_row(batch, object, codec_for(object).decode(Slices.from_list(batch)))


def yields(text: bytes, count: int) -> bool:
    try:
        return len(msgspec.json.Decoder().decode_lines(text)) == count
    except msgspec.DecodeError:
        return False


@settings(max_examples=100, deadline=None)
@given(values=st.lists(documents, max_size=8))
def test_untyped_values_are_those_of_the_standard_library(values: list[Any]) -> None:
    texts = [json.dumps(value).encode() for value in values]
    decoded = codec_for(object).decode(Slices.from_list(texts))
    assert decoded.values == [json.loads(text) for text in texts]
    assert not decoded.errors


@settings(max_examples=100, deadline=None)
@given(values=st.lists(json_values, max_size=8))
def test_what_is_encoded_means_the_same_to_the_standard_library(values: list[Any]) -> None:
    encoded = codec_for(object).encode(values)
    assert not encoded.errors
    rows = encoded.values.to_list()
    assert [None if row is None else json.loads(row) for row in rows] == values
    assert [row is None for row in rows] == [value is None for value in values]


@pytest.mark.parametrize("bad_row", [0, 1, 4095, 4096, 5000, 9_999])
@pytest.mark.parametrize("bad", [b'{"user":5}', b'{"user":"x"', b'{"user":"x"}{"user":"y"}', b"", b"[", b"[" * 100_000])
def test_one_bad_row_among_many_is_the_only_error(bad: bytes, bad_row: int) -> None:
    rows: list[bytes | None] = [b'{"user":"u%d","count":%d}' % (i, i) for i in range(10_000)]
    rows[bad_row] = bad
    decoded = codec_for(Payment).decode(Slices.from_list(rows))
    assert list(decoded.errors) == [bad_row]
    assert decoded.values[bad_row] is None
    assert all(value == Payment(f"u{i}", 0.0, i) for i, value in enumerate(decoded.values) if i != bad_row)


def test_tombstones_decode_to_none_wherever_they_stand() -> None:
    rows = [None, b"[1]", None, None, b"[2]", None]
    decoded = codec_for(list).decode(Slices.from_list(rows))
    assert decoded == Decoded([None, [1], None, None, [2], None])
    assert codec_for(list).encode(decoded.values).values.to_list() == rows


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_an_empty_batch_and_a_batch_of_tombstones_are_fine(type_: Any) -> None:
    codec = codec_for(type_, "json")
    for rows in ([], [None], [None, None]):
        assert codec.decode(Slices.from_list(rows)) == Decoded(list(rows))
        encoded = codec.encode(rows)
        assert (encoded.values.to_list(), encoded.errors) == (rows, {})


def test_rows_may_overlap_repeat_and_leave_gaps_in_the_buffer() -> None:
    buffer = np.frombuffer(b'xx[[1],{"a":2}]yy', np.uint8)
    slices = Slices(buffer, np.array([2, 3, 7, 3], np.int32), np.array([13, 3, 7, 3], np.int32))
    assert codec_for(object).decode(slices).values == [[[1], {"a": 2}], [1], {"a": 2}, [1]]


def test_integers_of_any_size_keep_every_digit_both_ways() -> None:
    text = b'{"a":%d,"b":[%d,-%d]}' % (2**64, 10**400, 10**400)
    codec = codec_for(dict)
    decoded = codec.decode(Slices.from_list([text]))
    assert decoded.values == [{"a": 2**64, "b": [10**400, -(10**400)]}]
    assert codec.encode(decoded.values).values.to_list() == [text]


def test_big_integers_can_be_refused_both_ways() -> None:
    codec = codec_for(object, fidelity=Fidelity(big_integers="refuse"))
    fits = [2**64 - 1, -(2**63), "1" * 30, {"k": [2**64 - 1]}, 1.5e300, 0.12345678901234567890123]
    refused = [2**64, -(2**63) - 1, {"a": [1, {"b": 10**30}]}, [[10**25]]]
    decoded = codec.decode(Slices.from_list([json.dumps(value).encode() for value in fits + refused]))
    assert decoded.values == [*fits, None, None, None, None]
    assert list(decoded.errors) == [6, 7, 8, 9]
    encoded = codec.encode([*fits, *refused, {10**30: 1}])
    assert list(encoded.errors) == [6, 7, 8, 9, 10]
    assert [row is None for row in encoded.values.to_list()] == [False] * 6 + [True] * 5


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_has_no_words_for_are_refused_wherever_they_hide(number: float) -> None:
    clean = [
        {"a": None, "b": "null", "numbers": [1.5]},
        Payment("null", 1.0),
        "null",
        [None],
    ]
    hidden = [
        {"a": [1, {"b": (None, number)}]},
        Payment("x", number),
        Payment("x", 1.0, 0, Payment("y", number)),
        Point(1.0, number),
        [Pair(number, "x")],  # type: ignore[arg-type]
        {number},
        number,
    ]
    encoded = codec_for(object).encode([*clean, None, *hidden])
    assert list(encoded.errors) == [5, 6, 7, 8, 9, 10, 11]
    assert all(isinstance(error, EncodeError) and "NaN" in str(error) for error in encoded.errors.values())
    rows = encoded.values.to_list()
    assert rows[:4] == [msgspec.json.encode(value) for value in clean]
    assert rows[4:] == [None] * 8


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(
        st.recursive(
            st.none() | st.floats() | st.sampled_from(["null", "nu", "number", 1]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=6,
        ),
        max_size=8,
    )
)
def test_exactly_the_values_that_strict_json_refuses_are_refused(values: list[Any]) -> None:
    encoded = codec_for(object).encode(values)
    for i, value in enumerate(values):
        try:
            json.dumps(value, allow_nan=False)
            assert i not in encoded.errors
        except ValueError:
            assert i in encoded.errors


@pytest.mark.parametrize("big", [0, 2**70])
def test_a_nan_among_many_empty_fields_is_found(big: int) -> None:
    values = [Payment(f"u{i}", math.nan if i in (17, 400, 401) else 1.0, big) for i in range(1000)]
    encoded = codec_for(Payment).encode(values)
    assert list(encoded.errors) == [17, 400, 401]
    rows = encoded.values.to_list()
    assert [row for row, value in enumerate(rows) if value is None] == [17, 400, 401]
    assert rows[999] == msgspec.json.encode(values[999])


def test_non_finite_numbers_become_null_only_where_that_was_chosen() -> None:
    codec = codec_for(object, fidelity=Fidelity(non_finite="null"))
    encoded = codec.encode([{"a": math.nan}, [math.inf]])
    assert (encoded.values.to_list(), encoded.errors) == ([b'{"a":null}', b"[null]"], {})


def test_objects_that_cannot_be_written_leave_their_neighbours_alone() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    bad: list[Any] = [
        object(),
        {"a": {1, complex(1, 2)}},
        "\ud800",
        {"\udfff": 1},
        {(1, 2): 3},
        deep,
        10**5000,
        np.float64(1),
    ]
    values = [value for i, one in enumerate(bad) for value in ({"ok": i}, one, None, Payment(f"p{i}"))]
    encoded = codec_for(object).encode(values)
    assert list(encoded.errors) == list(range(1, len(values), 4))
    assert all(isinstance(error, EncodeError) for error in encoded.errors.values())
    assert "object" in str(encoded.errors[1])
    rows = encoded.values.to_list()
    for i, value in enumerate(values):
        assert rows[i] == (None if value is None or i in encoded.errors else msgspec.json.encode(value))


@pytest.mark.parametrize("bad_row", [0, 4096, 9_999])
def test_one_unwritable_object_among_many_is_the_only_error(bad_row: int) -> None:
    values: list[Any] = [{"i": i} for i in range(10_000)]
    values[bad_row] = {"i": object()}
    encoded = codec_for(dict).encode(values)
    assert list(encoded.errors) == [bad_row]
    assert encoded.values[bad_row] is None
    assert all(row == b'{"i":%d}' % i for i, row in enumerate(encoded.values.to_list()) if i != bad_row)


def test_raw_json_with_newlines_stays_in_its_row() -> None:
    values = [msgspec.Raw(b"[1,\n2]"), {"a": msgspec.Raw(b"\n\n3\n")}, {"b": 1}]
    encoded = codec_for(object).encode([*values, None, "x"])
    assert encoded.values.to_list() == [b"[1,\n2]", b'{"a":\n\n3\n}', b'{"b":1}', None, b'"x"']


def test_deep_json_is_an_error_of_its_row() -> None:
    rows = [b"{}", b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000, b"[]"]
    decoded = codec_for(object).decode(Slices.from_list(rows))
    assert decoded.values == [{}, None, None, None, []]
    assert list(decoded.errors) == [1, 2, 3]


def test_a_json_null_is_refused_or_read_as_a_tombstone_but_never_by_accident() -> None:
    values = Slices.from_list([b"null", b" null\n", b'{"a":null}', None])
    decoded = codec_for(object).decode(values)
    assert decoded.values == [None, None, {"a": None}, None]
    assert list(decoded.errors) == [0, 1]
    tombstones = codec_for(object, fidelity=Fidelity(null_documents="tombstone"))
    assert not tombstones.decode(values).errors
    assert list(codec_for(Payment | None).decode(values).errors) == [0, 1, 2]


SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (Opened | Closed, b'{"type":"s3cr3t","account":1}'),
        (Payment, b'{"user":["s3cr3t"]}'),
        (dict[str, int], b'{"s3cr3t":"s3cr3t"}'),
        (object, b'{"a": s3cr3t}'),
        (object, b"{} s3cr3t"),
        (object, b'"s3cr3t'),
        (object, b'"s3cr3t\xff"'),
    ],
)
def test_messages_hold_nothing_of_the_value(type_: Any, text: bytes) -> None:
    error = codec_for(type_).decode(Slices.from_list([text])).errors[0]
    assert SECRET not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None


def test_messages_of_a_types_own_checks_are_left_out() -> None:
    decoded = codec_for(Positive).decode(Slices.from_list([b'{"value":-77}', b'{"value":0}', b'{"value":1}']))
    assert decoded.values == [None, None, Positive(1)]
    assert "77" not in str(decoded.errors[0])
    assert "ValueError" in str(decoded.errors[0])
    assert "KeyError" in str(decoded.errors[1])


def test_messages_name_the_field_and_the_expected_type() -> None:
    decoded = codec_for(Payment).decode(Slices.from_list([b'{"user":"x","inner":{"user":1}}', b"{}"]))
    assert str(decoded.errors[0]) == "json Payment: Expected `str`, got `int` - at `$.inner.user`"
    assert str(decoded.errors[1]) == "json Payment: Object missing required field `user`"
