"""Kafka's primitive types, written and read by hand.

aiokafka's own encoder walks a schema for each request, about 1 ms of CPU for one transaction's three requests; these
few functions cost microseconds. Only *flexible* request versions are spoken (compact strings and arrays, tagged
fields), which every broker with Transactions V2 knows.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class ProtocolError(ValueError):
    """An answer that does not follow the protocol: cut short, or with lengths that lie."""


class Writer:
    """Collects the parts of one request; `finish` joins them."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []

    def finish(self) -> bytes:
        """All that was written, in order."""
        return b"".join(self._parts)

    def boolean(self, value: bool) -> None:
        self._parts.append(b"\x01" if value else b"\x00")

    def int8(self, value: int) -> None:
        self._parts.append(value.to_bytes(1, "big", signed=True))

    def int16(self, value: int) -> None:
        self._parts.append(_INT16.pack(value))

    def int32(self, value: int) -> None:
        self._parts.append(_INT32.pack(value))

    def int64(self, value: int) -> None:
        self._parts.append(_INT64.pack(value))

    def unsigned_varint(self, value: int) -> None:
        self._parts.append(unsigned_varint(value))

    def string(self, value: str | None) -> None:
        """A compact string; None is null."""
        if value is None:
            self._parts.append(b"\x00")
            return
        raw = value.encode()
        self._parts.append(unsigned_varint(len(raw) + 1) + raw)

    def plain_string(self, value: str) -> None:
        """A string with a two-byte length, as request headers have it."""
        raw = value.encode()
        self._parts.append(_INT16.pack(len(raw)) + raw)

    def blob(self, chunks: Iterable[bytes | memoryview]) -> None:
        """Compact bytes, made of chunks that are not copied before `finish`."""
        chunks = list(chunks)
        self._parts.append(unsigned_varint(sum(len(chunk) for chunk in chunks) + 1))
        self._parts.extend(chunks)

    def uuid(self, value: uuid.UUID) -> None:
        self._parts.append(value.bytes)

    def array_size(self, size: int | None) -> None:
        """The count before the elements of a compact array; None is a null array."""
        self._parts.append(unsigned_varint(0 if size is None else size + 1))

    def array(self, items: Iterable[T], write: Callable[[Writer, T], None]) -> None:
        """A compact array, each item written by `write`."""
        listed = list(items)
        self.array_size(len(listed))
        for item in listed:
            write(self, item)

    def no_tags(self) -> None:
        """The tagged fields at the end of a structure: none."""
        self._parts.append(b"\x00")


def unsigned_varint(value: int) -> bytes:
    """Seven bits a byte, lowest first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Reader:
    """Reads one answer from its bytes. Every method raises ProtocolError rather than read past the end."""

    __slots__ = ("_position", "_view")

    def __init__(self, data: bytes) -> None:
        self._view = memoryview(data)
        self._position = 0

    def _take(self, size: int) -> memoryview:
        end = self._position + size
        if size < 0 or end > len(self._view):
            raise ProtocolError(f"{size} bytes wanted at {self._position}, the answer has {len(self._view)} in all")
        taken = self._view[self._position : end]
        self._position = end
        return taken

    def boolean(self) -> bool:
        return self._take(1)[0] != 0

    def int8(self) -> int:
        return int.from_bytes(self._take(1), "big", signed=True)

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def unsigned_varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ProtocolError(f"a varint of more than five bytes at {self._position}")

    def string(self) -> str:
        """A compact string that may not be null."""
        value = self.nullable_string()
        if value is None:
            raise ProtocolError(f"a null string at {self._position}")
        return value

    def nullable_string(self) -> str | None:
        size = self.unsigned_varint()
        return None if size == 0 else str(self._take(size - 1), "utf-8", "replace")

    def nullable_blob(self) -> memoryview | None:
        """Compact bytes, without copying them."""
        size = self.unsigned_varint()
        return None if size == 0 else self._take(size - 1)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=bytes(self._take(16)))

    def array(self, read: Callable[[Reader], T]) -> list[T]:
        """A compact array; a null one reads as empty."""
        size = self.unsigned_varint() - 1
        # Every element takes a byte at least, so a count beyond the rest of the answer is a lie.
        if size > len(self._view) - self._position:
            raise ProtocolError(f"an array of {size} at {self._position}, the answer has {len(self._view)} bytes")
        return [read(self) for _ in range(size)]

    def only(self, read: Callable[[Reader], T]) -> T:
        """The element of a compact array that must have exactly one."""
        found = self.array(read)
        if len(found) != 1:
            raise ProtocolError(f"{len(found)} answers at {self._position} where one thing was asked for")
        return found[0]

    def skip_tags(self) -> None:
        """Tagged fields are optional by definition; all are passed over."""
        for _ in range(self.unsigned_varint()):
            self.unsigned_varint()
            self._take(self.unsigned_varint())

    def tags(self) -> dict[int, memoryview]:
        """Tagged fields by number."""
        found = {}
        for _ in range(self.unsigned_varint()):
            tag = self.unsigned_varint()
            found[tag] = self._take(self.unsigned_varint())
        return found
