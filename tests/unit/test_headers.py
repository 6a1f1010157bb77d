"""Header sections say what was put in, and never more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.processor.headers import NO_HEADERS, decode_headers, encode_headers

headers = st.lists(st.tuples(st.text(max_size=80), st.none() | st.binary(max_size=200)), max_size=80)


@settings(max_examples=60, deadline=None)
@given(headers)
def test_headers_come_back_as_they_were(headers: list[tuple[str, bytes | None]]) -> None:
    assert decode_headers(encode_headers(headers)) == headers


def test_no_headers_are_one_byte() -> None:
    assert encode_headers([]) == NO_HEADERS
    assert decode_headers(NO_HEADERS) == []


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (b"", "cut off"),
        (b"\x01", "claims -1 headers"),
        (b"\xff\xff\xff\xff\x0f", "claims -2147483648 headers"),
        (b"\xfe\xff\xff\xff\x0f", "claims 2147483647 headers"),
        (b"\x80\x80\x80\x80\x80\x00", "too long"),
        (b"\x02\x01\x00", "no key"),
        (b"\x02\x03\x00", "claims -2 bytes"),
        (b"\x02\x04a", "claims 2 bytes where 1 are left"),
        (b"\x02", "claims 1 headers"),
        (b"\x02\x02a\x06b", "claims 3 bytes"),
        (b"\x02\x02\xff\x00", "not UTF-8 at byte 0"),
        (b"\x00\x00", "left over"),
    ],
)
def test_malformed_sections_are_refused_with_the_reason(section: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_headers(section)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_headers_or_a_value_error(section: bytes) -> None:
    try:
        headers = decode_headers(section)
    except ValueError:
        return
    assert decode_headers(encode_headers(headers)) == headers


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogate"):
        encode_headers([("\ud800", b"")])
