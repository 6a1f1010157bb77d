"""Fields that a type does not name are dropped, kept byte for byte, or refused at any depth, as chosen."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.processor.codecs.fidelity import Fidelity
from millstream.processor.codecs.json_values import JsonCodec, merge_unknown_fields
from millstream.processor.codecs.resolve import codec_for
from millstream.processor.columns import Slices

KEEP = Fidelity(unknown_fields="keep")
REFUSE = Fidelity(unknown_fields="refuse")


class Inner(msgspec.Struct):
    a: int = 0


class Cat(msgspec.Struct, tag="cat"):
    inner: Inner | None = None


class Dog(msgspec.Struct, tag="dog", rename={"good": "is good"}):
    good: bool = True


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    a: int = 0


class Arrayed(msgspec.Struct, array_like=True):
    a: int
    inner: Inner


class Tree(msgspec.Struct):
    children: list[Tree] = []


@dataclass
class Data:
    many: list[Inner]


class Typed(TypedDict, total=False):
    by_name: dict[str, Inner]


class Pair(NamedTuple):
    first: Inner
    second: int = 0


def merged(
    original: list[bytes | None], encoded: list[bytes | None], *named: str
) -> tuple[list[bytes | None], list[int]]:
    result = merge_unknown_fields(Slices.from_list(original), Slices.from_list(encoded), frozenset(named))
    return result.values.to_list(), sorted(result.errors)


def test_carried_fields_keep_every_byte_and_the_originals_order() -> None:
    original = (
        b'{"big": 123456789012345678901234567890.000, "a": 1, "x":[ 1e2,\n\t"\\u0041" ],"dropped":0, "z":{"k":NULL}}'
    )
    original = original.replace(b"NULL", b"null")
    rows, errors = merged([original], [b'{"a":2,"new":3}'], "a", "dropped")
    assert rows == [
        b'{"big":123456789012345678901234567890.000,"a":2,"x":[ 1e2,\n\t"\\u0041" ],"z":{"k":null},"new":3}'
    ]
    assert errors == []


def test_rows_without_unknown_fields_and_tombstones_stay_as_they_are() -> None:
    original = [b'{"b":1,"a":1}', None, b'{"a":1,"u":9}', b'{"a":1,"u":9}', b'{"a":1, "u":[]}']
    encoded = [b'{"a":1, "b":2}', b'{"a":1}', None, b'{"a":5}', b'{"a":1,"u":"mine"}']
    rows, errors = merged(original, encoded, "a", "b")
    assert rows == [b'{"a":1, "b":2}', b'{"a":1}', None, b'{"a":5,"u":9}', b'{"a":1,"u":"mine"}']
    assert errors == []


def test_what_cannot_carry_fields_is_an_error_of_its_row_alone() -> None:
    original = [b'{"u":1}', b'{"a":1}', b"[1]", b'{"u":', b'{"u":2}']
    encoded = [b"[1]", b"[1]", b'{"a":1}', b'{"a":1}', b"{}"]
    rows, errors = merged(original, encoded, "a")
    assert rows == [None, b"[1]", None, None, b'{"u":2}']
    assert errors == [0, 2, 3]


def test_the_last_of_a_carried_field_that_stands_twice_is_carried() -> None:
    assert merged([b'{"u":1,"a":1,"u":2}'], [b'{"a":1}'], "a") == ([b'{"u":2,"a":1}'], [])


fields = st.dictionaries(
    st.sampled_from("abcdefg\u00e9") | st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=5
)


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.tuples(fields, fields), max_size=6), named=st.sets(st.sampled_from("abcdefg")))
def test_merging_is_what_a_reader_would_expect(
    rows: list[tuple[dict[str, Any], dict[str, Any]]], named: set[str]
) -> None:
    original = [json.dumps(before).encode() for before, _ in rows]
    encoded = [json.dumps(after).encode() for _, after in rows]
    got, errors = merged(original, encoded, *named)
    expected = [{key: value for key, value in before.items() if key not in named} | after for before, after in rows]
    assert [json.loads(row or b"0") for row in got] == expected
    assert errors == []
    for (before, _), row in zip(rows, got, strict=True):
        kept = [key for key in json.loads(row or b"0") if key in before]
        if not named.issuperset(before):
            assert kept == [key for key in before if key in kept]


def test_a_keeping_codec_knows_the_fields_that_its_type_names() -> None:
    def named(type_: Any) -> frozenset[str] | None:
        codec = codec_for(type_, fidelity=KEEP)
        assert isinstance(codec, JsonCodec)
        return codec.named_fields

    assert named(Dog) == {"type", "is good"}
    assert named(Cat | None) == {"type", "inner"}
    assert named(Data) == {"many"}
    assert named(Typed) == {"by_name"}
    assert named(object) is None
    assert named(dict[str, int]) is None


@pytest.mark.parametrize("type_", [Cat | Dog, list[Inner], int, Pair, Arrayed, Strict])
def test_keeping_is_refused_for_types_that_do_not_say_what_is_named(type_: Any) -> None:
    with pytest.raises(ValueError, match=r"unknown_fields|unknown fields"):
        codec_for(type_, fidelity=KEEP)


@pytest.mark.parametrize(
    ("type_", "good", "bad"),
    [
        (Inner, b'{"a":1}', b'{"a":1,"u":1}'),
        (Strict, b'{"a":1}', b'{"a":1,"u":1}'),
        (Cat, b'{"type":"cat","inner":{"a":1}}', b'{"type":"cat","inner":{"a":1,"u":2}}'),
        (Cat, b'{"inner":null}', b'{"inner":null,"u":2}'),
        (Cat | Dog, b'{"type":"dog","is good":false}', b'{"type":"dog","good":false}'),
        (Cat | Dog | list[int] | str, b"[1]", b'{"type":"dog","inner":null}'),
        (Cat | Dog | list[int] | str, b'"text"', b'{"type":"cat","is good":true}'),
        (Data, b'{"many":[{"a":1},{}]}', b'{"many":[{"a":1},{"b":1}]}'),
        (Data, b'{"many":[]}', b'{"many":[],"u":1}'),
        (Typed, b'{"by_name":{"x":{"a":1},"y":{}}}', b'{"by_name":{"x":{"a":1},"y":{"z":1}}}'),
        (Pair, b'[{"a":1},5]', b'[{"b":1},5]'),
        (Arrayed, b'[1,{"a":1}]', b"[1,{},7]"),
        (tuple[int, Inner], b'[1,{"a":1}]', b'[1,{"b":1}]'),
        (dict[str, Inner | None], b'{"k":null}', b'{"k":{"u":null}}'),
        (list[Strict | list[Inner]], b'[{"a":1},[{"a":1}]]', b'[{"a":1},[{"u":1}]]'),
    ],
)
def test_unknown_fields_are_refused_at_any_depth(type_: Any, good: bytes, bad: bytes) -> None:
    codec = codec_for(type_, fidelity=REFUSE)
    decoded = codec.decode(Slices.from_list([good, bad, None, good]))
    assert list(decoded.errors) == [1]
    assert "field" in str(decoded.errors[1]) or "length" in str(decoded.errors[1])
    expected = msgspec.json.decode(good, type=type_)
    assert decoded.values == [expected, None, None, expected]


def test_refusing_needs_a_declaration_where_a_type_contains_itself() -> None:
    with pytest.raises(ValueError, match="forbid_unknown_fields=True"):
        codec_for(Tree, fidelity=REFUSE)


def test_message_pack_says_which_choices_it_cannot_offer() -> None:
    with pytest.raises(ValueError, match='format="json"'):
        codec_for(Inner, "msgpack", fidelity=KEEP)
    with pytest.raises(ValueError, match="forbid_unknown_fields=True"):
        codec_for(Inner, "msgpack", fidelity=REFUSE)
    strict = codec_for(Strict, "msgpack", fidelity=REFUSE)
    rows = [msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode({"a": 1, "u": 1})]
    assert list(strict.decode(Slices.from_list(rows)).errors) == [1]
