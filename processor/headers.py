"""A record's headers as the bytes that stand in a record batch: a count, then key and value of each.

Columns carry header sections as they are; only a stage that looks at headers takes one apart. Counts and sizes are
zigzag varints; a value of size -1 is null.
"""

from __future__ import annotations

from collections.abc import Sequence

_SIZE_MAX = 2**31 - 1
_VARINT_BYTES_MAX = 5
_HEADER_BYTES_MIN = 2

NO_HEADERS = b"\x00"


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """The section for these headers, in order; keys may repeat. Raises ValueError for what cannot be a header."""
    if not headers:
        return NO_HEADERS
    section = bytearray(_varint(len(headers)))
    for key, value in headers:
        name = _key_bytes(key)
        section += _varint(len(name)) + name
        if value is None:
            section += _varint(-1)
        else:
            section += _varint(len(value))
            section += value
    return bytes(section)


def decode_headers(section: bytes) -> list[tuple[str, bytes | None]]:
    """The headers of a section, in order. Raises ValueError where the section is malformed."""
    count, position = _read_varint(section, 0)
    if count < 0 or count * _HEADER_BYTES_MIN > len(section) - position:
        raise ValueError(f"a header section of {len(section)} bytes claims {count} headers")
    headers = []
    for _ in range(count):
        key, position = _read_sized(section, position)
        if key is None:
            raise ValueError("a header has no key")
        value, position = _read_sized(section, position)
        headers.append((_key_text(key), value))
    if position != len(section):
        raise ValueError(f"{len(section) - position} bytes are left over after the last header")
    return headers


def _key_bytes(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise ValueError("a header key holds a lone surrogate, which UTF-8 cannot express") from None


def _key_text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"a header key of {len(key)} bytes is not UTF-8 at byte {error.start}") from None


def _varint(number: int) -> bytes:
    if number > _SIZE_MAX:
        raise ValueError(f"{number} is more than a header section can count or hold")
    rest = number << 1 if number >= 0 else -2 * number - 1
    written = bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)


def _read_varint(section: bytes, position: int) -> tuple[int, int]:
    """The number at `position`, and where it ends."""
    raw = 0
    for i, byte in enumerate(section[position : position + _VARINT_BYTES_MAX]):
        raw |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position + i + 1
    raise ValueError(f"the number at byte {position} of a header section is cut off or too long")


def _read_sized(section: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = _read_varint(section, position)
    if size == -1:
        return None, position
    if not 0 <= size <= len(section) - position:
        raise ValueError(f"a header claims {size} bytes where {len(section) - position} are left")
    return section[position : position + size], position + size
