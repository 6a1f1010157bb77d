"""Raw bytes, text, MessagePack, and the choice of a codec by type and format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.processor.codecs.fidelity import Fidelity
from millstream.processor.codecs.resolve import codec_for
from millstream.processor.columns import Slices
from millstream.processor.errors import DecodeError, EncodeError

rows_of_bytes = st.lists(st.none() | st.binary(max_size=12), max_size=10)


class Event(msgspec.Struct):
    name: str
    value: float


@given(rows=rows_of_bytes)
def test_raw_values_pass_untouched_both_ways(rows: list[bytes | None]) -> None:
    codec = codec_for(bytes)
    decoded = codec.decode(Slices.from_list(rows))
    assert decoded.values == rows
    assert not decoded.errors
    encoded = codec.encode(decoded.values)
    assert encoded.values.to_list() == rows
    assert not encoded.errors


def test_raw_values_may_be_any_bytes_like_object_and_nothing_else() -> None:
    words = np.array([1, 2], "<u2")
    encoded = codec_for(None).encode([b"a", bytearray(b"b"), memoryview(b"c"), words.data, None, "text", {"a": 1}])
    assert encoded.values.to_list() == [b"a", b"b", b"c", b"\x01\x00\x02\x00", None, None, None]
    assert list(encoded.errors) == [5, 6]
    assert all(isinstance(error, EncodeError) for error in encoded.errors.values())
    assert 'format="text"' in str(encoded.errors[5])
    assert 'format="json"' in str(encoded.errors[6])


@given(rows=rows_of_bytes | st.lists(st.text(max_size=6).map(str.encode), max_size=10))
def test_text_decodes_as_each_row_does_alone(rows: list[bytes | None]) -> None:
    decoded = codec_for(str).decode(Slices.from_list(rows))
    for i, row in enumerate(rows):
        try:
            assert decoded.values[i] == (None if row is None else row.decode())
            assert i not in decoded.errors
        except UnicodeDecodeError:
            assert decoded.values[i] is None
            assert isinstance(decoded.errors[i], DecodeError)


@given(rows=rows_of_bytes)
def test_invalid_utf8_comes_back_as_the_same_bytes_where_that_was_chosen(rows: list[bytes | None]) -> None:
    codec = codec_for(str, fidelity=Fidelity(invalid_utf8="preserve"))
    decoded = codec.decode(Slices.from_list(rows))
    assert not decoded.errors
    encoded = codec.encode(decoded.values)
    assert encoded.values.to_list() == rows
    assert not encoded.errors


def test_text_that_is_no_text_is_an_error_of_its_row() -> None:
    encoded = codec_for(str).encode(["é", "\ud800", 5, None, "", b"bytes"])
    assert encoded.values.to_list() == ["é".encode(), None, None, None, b"", None]
    assert list(encoded.errors) == [1, 2, 5]


msgpack_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=4),
    max_leaves=10,
)


@settings(deadline=None)
@given(values=st.lists(msgpack_values, max_size=6))
def test_message_pack_round_trips(values: list[Any]) -> None:
    codec = codec_for(object, "msgpack")
    encoded = codec.encode(values)
    assert not encoded.errors
    decoded = codec.decode(encoded.values)
    assert decoded.values == values
    assert not decoded.errors


@settings(deadline=None)
@given(rows=st.lists(st.none() | st.binary(max_size=8), max_size=8))
def test_message_pack_decodes_as_each_row_does_alone(rows: list[bytes | None]) -> None:
    decoded = codec_for(object, "msgpack").decode(Slices.from_list(rows))
    for i, row in enumerate(rows):
        try:
            alone = None if row is None else msgspec.msgpack.decode(row)
            good = row is None or alone is not None
        except Exception:
            alone, good = None, False
        assert (i in decoded.errors) != good
        assert repr(decoded.values[i]) == repr(alone) or isinstance(alone, msgspec.msgpack.Ext)


def test_message_pack_keeps_nan_infinity_and_extensions_and_refuses_big_integers() -> None:
    codec = codec_for(object, "msgpack")
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    encoded = codec.encode([[math.inf], {"a": 2**64}, None, msgspec.msgpack.Ext(5, b"x"), deep, "\ud800", object()])
    assert list(encoded.errors) == [1, 4, 5, 6]
    assert "64 bits" in str(encoded.errors[1])
    decoded = codec.decode(encoded.values)
    assert decoded.values[:3] == [[math.inf], None, None]
    extension = decoded.values[3]
    assert isinstance(extension, msgspec.msgpack.Ext)
    assert (extension.code, extension.data) == (5, b"x")
    nan = codec.decode(codec.encode([math.nan]).values).values[0]
    assert isinstance(nan, float)
    assert math.isnan(nan)


def test_hostile_message_pack_is_an_error_of_its_row() -> None:
    good = msgspec.msgpack.encode(Event("a", 1.5))
    rows = [good, b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", good[:-1], good + b"\x00", b"", b"\xc0", None, good]
    decoded = codec_for(Event, "msgpack").decode(Slices.from_list(rows))
    assert list(decoded.errors) == [1, 2, 3, 4, 5, 6]
    assert decoded.values == [Event("a", 1.5), *[None] * 7, Event("a", 1.5)]


def test_a_message_pack_nil_is_refused_or_read_as_a_tombstone_but_never_by_accident() -> None:
    nil = Slices.from_list([b"\xc0", None])
    assert list(codec_for(object, "msgpack").decode(nil).errors) == [0]
    assert not codec_for(object, "msgpack", fidelity=Fidelity(null_documents="tombstone")).decode(nil).errors


@dataclass
class Plain:
    a: int


class Untagged(msgspec.Struct):
    b: int


class Custom:
    pass


@pytest.mark.parametrize(
    ("type_", "format_", "expected"),
    [
        (bytes, None, "raw"),
        (None, None, "raw"),
        (bytes, "raw", "raw"),
        (str, None, "text"),
        (str, "text", "text"),
        (str, "json", "json"),
        (dict, None, "json"),
        (list, "json", "json"),
        (object, None, "json"),
        (Any, None, "json"),
        (Any, "msgpack", "msgpack"),
        (dict, "msgpack", "msgpack"),
        (Event, None, "json"),
        (Event, "msgpack", "msgpack"),
        (Plain, None, "json"),
        (list[Event], None, "json"),
        (Event | None, None, "json"),
        (dict[str, object], None, "json"),
        (int, None, "json"),
        (np.dtype("<i8"), None, "fixed"),
        (np.dtype([("a", "<f4")]), "fixed", "fixed"),
    ],
)
def test_type_and_format_choose_the_codec(type_: object, format_: str | None, expected: str) -> None:
    codec = codec_for(type_, format_)
    assert codec.format == expected
    assert codec.name.startswith(expected)


@pytest.mark.parametrize(
    ("type_", "format_", "match"),
    [
        (bytes, "json", "bytes stay as they are"),
        (None, "msgpack", "bytes stay as they are"),
        (dict, "raw", "for type bytes"),
        (Event, "text", "for type str"),
        (int, "fixed", "for a NumPy dtype"),
        (np.dtype("<i8"), "json", "msgspec.Struct"),
        (bytes, "yaml", "'yaml' is unknown; choose one of 'raw', 'text'"),
        (Event | Untagged, None, "tag=True"),
        (Custom, None, "no way to make a Custom"),
        (list[Custom], None, "no way to make a Custom"),
        (complex, None, "no way to make a complex"),
        (np.float64, None, r"np.dtype\('<f8'\)"),
        ("Event", None, "cannot be decoded"),
        (5, None, "cannot be decoded"),
        ([int], None, "cannot be decoded"),
        (np.dtype(object), None, "Python objects"),
        (np.dtype([("a", "<i4"), ("b", "U3")]), None, "kind U"),
        (np.dtype("S"), None, "no bytes"),
        (np.dtype(("<i4", (2,))), None, "wrap it into a field"),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(type_: object, format_: str | None, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        codec_for(type_, format_)


def test_a_fidelity_that_does_not_exist_is_refused_in_one_message() -> None:
    with pytest.raises(ValueError, match=r"non_finite='zero'.*big_integers=True"):
        Fidelity(non_finite="zero", big_integers=True)  # type: ignore[arg-type]
