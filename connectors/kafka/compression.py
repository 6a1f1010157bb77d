"""Packing and unpacking what stands in a record batch, with a bound on what comes out.

The bytes to unpack come from a broker and may be damaged or hostile: a few kilobytes can claim to be gigabytes.
So everything is unpacked into memory of a given size, and what does not fit is an error. Several frames or
members one after the other are unpacked as one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum

import cramjam

# Levels are measured, not the libraries' defaults (which trade a fifth of the size for several times the time).
# On JSON events of 85 bytes: gzip 1 packs at 3 times the speed of 4 and 7 times that of 6 for 1.1-1.2 times the
# bytes; lz4 1 at 5 times the speed of 4 for 1.2 times; zstd 1 at 1.5 times the speed of 3 for fewer bytes.
_GZIP_LEVEL = 1
_LZ4_LEVEL = 1
_ZSTD_LEVEL = 1

# Java clients frame snappy this way: magic, version and lowest compatible version, then blocks of 32 KiB at most,
# each after its packed size. Streams may follow each other, each with its own magic.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_SIZE = struct.Struct(">i")

# The first room for an unpacked payload, in relation to its packed size; it doubles until the payload fits.
_FIRST_ROOM = 6


class Compression(IntEnum):
    """How the records of a batch are packed: bits 0 to 2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class DecompressionError(ValueError):
    """The packed bytes are damaged, or unpack to more than was allowed."""


def compress(kind: Compression, data: bytes | memoryview) -> bytes:
    """`data`, packed in the way that Java clients read."""
    match kind:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data, level=_GZIP_LEVEL))
        case Compression.SNAPPY:
            return _compress_xerial(memoryview(data))
        case Compression.LZ4:
            return _compress_lz4(data)
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))


def decompress(kind: Compression, data: bytes | memoryview, *, bytes_max: int) -> bytes:
    """`data`, unpacked.

    Raises DecompressionError where it is damaged, or would unpack to more than `bytes_max` bytes; never holds
    much more than `bytes_max` in memory.
    """
    room = first_room(len(data), bytes_max)
    while True:
        output = memoryview(bytearray(room))
        try:
            return bytes(output[: decompress_into(kind, data, output)])
        except DecompressionError:
            if room == bytes_max:
                raise
        room = min(2 * room, bytes_max)


def first_room(packed_bytes: int, bytes_max: int) -> int:
    """How much room to try first for that many packed bytes: usually enough, and not more than `bytes_max`."""
    return min(max(_FIRST_ROOM * packed_bytes, 1), bytes_max)


def decompress_into(kind: Compression, data: bytes | memoryview, output: memoryview) -> int:
    """Unpack `data` into the beginning of `output`; how many bytes that took.

    Raises DecompressionError where `data` is damaged or does not fit; `output` is then undefined.
    """
    try:
        return _UNPACKERS[kind](data, output)
    except cramjam.DecompressionError as error:
        # The library does not tell the two apart by type.
        raise DecompressionError(f"{kind.name.lower()} data is damaged or unpacks to too much: {error}") from None


def _copy(data: bytes | memoryview, output: memoryview) -> int:
    if len(data) > len(output):
        raise DecompressionError(f"{len(data)} bytes do not fit into {len(output)}")
    output[: len(data)] = data
    return len(data)


def _decompress_snappy(data: bytes | memoryview, output: memoryview) -> int:
    if bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
        return _decompress_xerial(memoryview(data), output)
    return _decompress_snappy_block(data, output)


def _decompress_snappy_block(data: bytes | memoryview, output: memoryview) -> int:
    return int(cramjam.snappy.decompress_raw_into(data, output))


def _decompress_xerial(data: memoryview, output: memoryview) -> int:
    position = filled = 0
    while position < len(data):
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        block, position = _xerial_block(data, position)
        filled += _decompress_snappy_block(block, output[filled:])
    if position != len(data):
        raise DecompressionError("snappy data ends within its header")
    return filled


def _xerial_block(data: memoryview, position: int) -> tuple[memoryview, int]:
    """The block at `position`, and where the next one starts."""
    start = position + _BLOCK_SIZE.size
    if start > len(data):
        raise DecompressionError("snappy data ends within a block's size")
    (size,) = _BLOCK_SIZE.unpack_from(data, position)
    if not 0 < size <= len(data) - start:
        raise DecompressionError(f"a snappy block claims {size} bytes where {len(data) - start} are left")
    return data[start : start + size], start + size


def _compress_xerial(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(data: bytes | memoryview) -> bytes:
    # Java clients read independent blocks only, hence not the one-call function.
    compressor = cramjam.lz4.Compressor(level=_LZ4_LEVEL, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))  # it takes nothing else
    return bytes(compressor.finish())


_UNPACKERS: Mapping[Compression, Callable[[bytes | memoryview, memoryview], int]] = {
    Compression.NONE: _copy,
    Compression.GZIP: cramjam.gzip.decompress_into,
    Compression.SNAPPY: _decompress_snappy,
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}
