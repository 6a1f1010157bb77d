"""JSON documents, sound and broken, and what msgspec makes of them: shared by the tests of the JSON fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from millstream.processor.codecs.json_fields import Field, FieldColumns, FieldType
from millstream.processor.columns import Slices

INT64, FLOAT64, BOOL, STRING = FieldType.INT64, FieldType.FLOAT64, FieldType.BOOL, FieldType.STRING

OPTIONAL_FIELDS = (
    Field("count", INT64, required=False),
    Field("amount", FLOAT64, required=False),
    Field("paid", BOOL, required=False),
    Field("név", STRING, required=False),
)
REQUIRED_FIELDS = (Field("amount", FLOAT64), Field("név", STRING))

SAMPLES = (
    b'{"user":"u81644","amount":255.45,"count":1700000000000,"paid":true}',
    ' { "név" : "Zo\\u00eb \\"x\\"" ,\n"amount":\t-1.5e-3,"n":{"a":[1,{"b":null}],"c":[]} , "paid":false } '.encode(),
    b'{"count":-12,"x":[[],{},[true,false,null,"\\ud83d\\ude00",0.5E+2]],"amount":0}',
    '{"név":"grüße €😀","count":9223372036854775807,"amount":123456789012345678,"q":"\\\\\\/\\b"}'.encode(),
    b'{"x":[[],{}],"y":{"a":{},"b":[]},"paid":false}',
    b"{}",
)
TELLING_BYTES = b'{}[]",:\\ \n\t\x00\x1f0123456789-+.eEtrufalsn/\x7f\xc3\xa9\xff'

_spaces = st.sampled_from(["", "", "", " ", "\n", "\t ", "\r\n "])
_pieces = st.one_of(
    st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"], exclude_characters='"\\'), max_size=8),
    st.sampled_from(
        ["\\n", '\\"', "\\\\", "\\/", "\\u0041", "\\u00e9", "\\uD83D\\uDE00", "\\u0000", "{", "]", ",", ":"]
    ),
)
strings = st.lists(_pieces, max_size=4).map(lambda pieces: '"' + "".join(pieces) + '"')
numbers = st.one_of(
    st.from_regex(
        r"-?(0|[1-9][0-9]{0,21})(\.[0-9]{1,21})?([eE][+-]?[0-9]{1,3})?",
        fullmatch=True,
        alphabet=st.characters(max_codepoint=127),
    ),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(2**65), 2**65).map(str),
)
_scalars = st.one_of(numbers, strings, st.sampled_from(["true", "false", "null"]))
_names = st.sampled_from(
    ['"count"', '"amount"', '"paid"', '"név"', '"n\\u00e9v"', '"\\u0061mount"', '"amoun"', '"amount2"']
)


def _joined(parts: Sequence[str], first: str, last: str, space: str) -> str:
    return first + space + f"{space},{space}".join(parts) + space + last


def _containers(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.tuples(strings, _spaces, values).map(lambda m: f"{m[0]}{m[1]}:{m[1]}{m[2]}")
    return st.one_of(
        st.builds(_joined, st.lists(values, max_size=4), st.just("["), st.just("]"), _spaces),
        st.builds(_joined, st.lists(members, max_size=4), st.just("{"), st.just("}"), _spaces),
    )


values = st.recursive(_scalars, _containers, max_leaves=8)


def documents(*, distinct_keys: bool = False) -> st.SearchStrategy[bytes]:
    """Well-formed objects, in which declared names are common."""
    members = st.tuples(st.one_of(_names, _names, strings), _spaces, st.one_of(_scalars, values))
    unique = {"unique_by": lambda m: msgspec.json.decode(m[0])} if distinct_keys else {}
    texts = st.lists(members.map(tuple), max_size=6, **unique).map(lambda ms: [f"{k}{s}:{s}{v}" for k, s, v in ms])
    return st.builds(
        lambda parts, space, around: (around + _joined(parts, "{", "}", space) + around).encode(),
        texts,
        _spaces,
        _spaces,
    )


def damaged(sample: bytes) -> Iterator[bytes]:
    """The sample cut off at every place, and with every byte left out, doubled, and replaced by each telling one."""
    for place in range(len(sample)):
        yield sample[:place]
        yield sample[place:]
        yield sample[:place] + sample[place + 1 :]
        yield sample[: place + 1] + sample[place:]
        for byte in TELLING_BYTES:
            yield sample[:place] + bytes([byte]) + sample[place + 1 :]


def oracle(fields: Sequence[Field]) -> msgspec.json.Decoder[Any]:
    """msgspec's strict decoder for a Struct with these fields."""
    types = {INT64: int, FLOAT64: float, BOOL: bool, STRING: str}
    attributes: list[Any] = [
        (f"f{i}", types[f.type]) if f.required else (f"f{i}", types[f.type] | None, None) for i, f in enumerate(fields)
    ]
    names = {f"f{i}": f.name for i, f in enumerate(fields)}
    return msgspec.json.Decoder(msgspec.defstruct("Oracle", attributes, rename=names, kw_only=True))


def expected(decoder: msgspec.json.Decoder[Any], document: bytes | None) -> list[object] | None:
    """The fields' values, text as bytes, or None where the document has to be refused."""
    if document is None:
        return None
    try:
        decoded = msgspec.structs.astuple(decoder.decode(document))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if any(type(value) is int and not -(2**63) <= value < 2**63 for value in decoded):
        return None
    return [value.encode() if isinstance(value, str) else value for value in decoded]


def values_read(fields: Sequence[Field], read: FieldColumns, row: int) -> list[object] | None:
    """What `FieldReader` made of a row, in the form of `expected`."""
    found: list[object] = []
    for field in fields:
        column = read.columns[field.name]
        value = column[row] if isinstance(column, Slices) else column[row].item()
        absent = not field.required and not read.valid[field.name][row]
        if row in read.errors:
            assert value in (0, b""), "a row in error holds nothing"
            assert field.required or absent, "a row in error is not valid"
        found.append(None if absent else value)
        assert not absent or not value, "what is not valid holds nothing"
    return None if row in read.errors else found
