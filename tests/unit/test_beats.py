"""A beat survives the way, also that of a newer version; anything else is no beat, and no harm."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from millstream.processor.beats import VERSION, Beat, decode_beat, encode_beat


@given(node=st.text(min_size=1, max_size=80), seq=st.integers(0, 2**63 - 1))
def test_what_is_said_is_heard(node: str, seq: int) -> None:
    assert decode_beat(encode_beat(node, seq)) == Beat(VERSION, node, seq)


def test_a_beat_is_small() -> None:
    assert len(encode_beat("machine-0123abcd", 10**6)) < 32


def test_a_newer_version_may_say_more() -> None:
    assert decode_beat(msgspec.msgpack.encode([2, "n", 7, {"more": True}, "still more"])) == Beat(2, "n", 7)


@given(data=st.binary(max_size=40))
def test_anything_else_is_no_beat(data: bytes) -> None:
    beat = decode_beat(data)
    assert beat is None or isinstance(beat, Beat)


def test_nothing_and_other_types_are_no_beats() -> None:
    assert decode_beat(b"") is None
    assert decode_beat(msgspec.msgpack.encode(["1", "n", 7])) is None
    assert decode_beat(msgspec.json.encode({"node": "n"})) is None
    assert decode_beat(b"\x93\x01\xa2\xff\xff\x07") is None
