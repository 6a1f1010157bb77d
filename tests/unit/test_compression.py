"""Packed bytes come back, other clients read them, and a few bytes cannot fill the memory."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import aiokafka.codec
import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.connectors.kafka.compression import Compression, DecompressionError, compress, decompress

PACKED = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
DATA = b"".join(b'{"user": %d, "amount": %d}' % (i, i * i % 977) for i in range(5000))

AIOKAFKA_PACK = {
    Compression.GZIP: aiokafka.codec.gzip_encode,
    Compression.SNAPPY: aiokafka.codec.snappy_encode,
    Compression.LZ4: aiokafka.codec.lz4_encode,
    Compression.ZSTD: aiokafka.codec.zstd_encode,
}
AIOKAFKA_UNPACK = {
    Compression.GZIP: aiokafka.codec.gzip_decode,
    Compression.SNAPPY: aiokafka.codec.snappy_decode,
    Compression.LZ4: aiokafka.codec.lz4_decode,
    Compression.ZSTD: aiokafka.codec.zstd_decode,
}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(Compression), st.binary(max_size=200), st.integers(0, 2000))
def test_anything_comes_back_as_it_was(kind: Compression, piece: bytes, times: int) -> None:
    data = piece * times

    assert decompress(kind, compress(kind, data), bytes_max=len(data)) == data
    assert decompress(kind, memoryview(compress(kind, memoryview(data))), bytes_max=len(data) + 1) == data


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("data", [b"x", DATA], ids=["one byte", "many blocks"])
def test_aiokafka_reads_ours_and_we_read_aiokafkas(kind: Compression, data: bytes) -> None:
    assert bytes(AIOKAFKA_UNPACK[kind](compress(kind, data))) == data
    assert decompress(kind, bytes(AIOKAFKA_PACK[kind](data)), bytes_max=len(data)) == data


def test_raw_snappy_is_read_too() -> None:
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(DATA)), bytes_max=len(DATA)) == DATA


def test_snappy_is_written_in_the_framing_of_java_clients() -> None:
    packed = compress(Compression.SNAPPY, DATA)

    assert packed[:16] == b"\x82SNAPPY\x00" + b"\0\0\0\x01" + b"\0\0\0\x01"
    first_block = int.from_bytes(packed[16:20], "big")
    assert cramjam.snappy.decompress_raw_len(packed[20 : 20 + first_block]) == 32 * 1024


def test_lz4_blocks_are_independent_as_java_clients_need() -> None:
    flags = compress(Compression.LZ4, DATA)[4]

    assert flags & 0b0010_0000


@pytest.mark.parametrize("kind", PACKED)
def test_several_frames_one_after_the_other_are_read_as_one(kind: Compression) -> None:
    packed = compress(kind, DATA) + compress(kind, b"middle") + compress(kind, DATA)

    assert decompress(kind, packed, bytes_max=1 << 20) == DATA + b"middle" + DATA


@pytest.mark.parametrize("kind", Compression)
def test_exactly_the_bound_is_allowed_and_one_byte_more_is_not(kind: Compression) -> None:
    packed = compress(kind, DATA)

    assert decompress(kind, packed, bytes_max=len(DATA)) == DATA
    with pytest.raises(DecompressionError):
        decompress(kind, packed, bytes_max=len(DATA) - 1)


def bombs() -> dict[str, tuple[Compression, bytes]]:
    zeros = bytes(200_000_000)
    return {
        "gzip": (Compression.GZIP, gzip.compress(zeros, 9)),
        "gzip members": (Compression.GZIP, gzip.compress(zeros[:2_000_000], 9) * 100),
        "snappy": (Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(zeros))),
        "snappy that lies": (Compression.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(100)),
        "xerial": (Compression.SNAPPY, compress(Compression.SNAPPY, zeros)),
        "lz4": (Compression.LZ4, compress(Compression.LZ4, zeros)),
        "lz4 frames": (Compression.LZ4, compress(Compression.LZ4, zeros[:2_000_000]) * 100),
        "zstd": (Compression.ZSTD, bytes(cramjam.zstd.compress(zeros, level=19))),
        "zstd frames": (Compression.ZSTD, compress(Compression.ZSTD, zeros[:2_000_000]) * 100),
    }


def test_bombs_are_refused_without_being_unpacked() -> None:
    for name, (kind, packed) in bombs().items():
        tracemalloc.start()
        try:
            with pytest.raises(DecompressionError):
                decompress(kind, packed, bytes_max=1 << 20)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 4 << 20, name


@pytest.mark.parametrize("kind", PACKED)
def test_cut_off_data_is_refused_wherever_it_is_cut(kind: Compression) -> None:
    packed = compress(kind, DATA)
    # Snappy frames have no end mark: cut between blocks, what is there is all there is.
    whole_blocks = _xerial_block_ends(packed) if kind is Compression.SNAPPY else {}

    for end in [*range(30), *range(30, len(packed), 211), len(packed) - 1]:
        try:
            unpacked = decompress(kind, packed[:end], bytes_max=len(DATA))
        except DecompressionError:
            continue
        assert end in whole_blocks, end
        assert unpacked == DATA[: whole_blocks[end]]


def _xerial_block_ends(packed: bytes) -> dict[int, int]:
    ends, position, blocks = {16: 0}, 16, 0
    while position < len(packed):
        position += 4 + int.from_bytes(packed[position : position + 4], "big")
        blocks += 1
        ends[position] = blocks * 32 * 1024
    return ends


@pytest.mark.parametrize("kind", PACKED)
def test_damaged_data_is_an_error_or_stays_within_the_bound(kind: Compression) -> None:
    seed = 20
    dice = random.Random(seed)
    packed = compress(kind, DATA[:3000])
    for _ in range(400):
        damaged = bytearray(packed)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        try:
            unpacked = decompress(kind, bytes(damaged), bytes_max=10_000)
        except DecompressionError:
            continue
        assert len(unpacked) <= 10_000


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(PACKED), st.binary(max_size=60))
def test_garbage_is_an_error_or_stays_within_the_bound(kind: Compression, garbage: bytes) -> None:
    try:
        assert len(decompress(kind, garbage, bytes_max=1000)) <= 1000
    except DecompressionError:
        pass
