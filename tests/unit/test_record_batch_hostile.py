"""Whatever the bytes: no crash, no over-read, no unbounded memory; one error for the batch, and what came before it."""

from __future__ import annotations

import os
import random
import re
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from batch_making import PARTITION, Row, batch, expected, numbered, rows_of, varint, with_base_offset, with_crc
from hostile_batches import (
    check_agrees_with_plain_reader,
    check_sane,
    decode_hostile,
    garbage,
    mutated_batch,
    write_hostile,
)

from millstream.connectors.kafka.compression import Compression, compress
from millstream.connectors.kafka.record_batch import FetchedRecords, decode_batches

ROWS = numbered([Row(value=b"a" * 20), Row(key=None), Row(headers=(("h", b"1"),))])
FIRST = batch(ROWS, base_offset=10)
SECOND = batch(ROWS, base_offset=13)
THIRD = batch(ROWS, base_offset=16)
EXPECTED_FIRST = expected(ROWS, 10)


def decode(data: bytes, fetch_offset: int = 10, **bounds: int) -> FetchedRecords:
    fetched = decode_batches(data, PARTITION, fetch_offset=fetch_offset, **bounds)
    check_sane(fetched, fetch_offset)
    return fetched


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The compiler allocates more than the bounds that are tested here, so it comes first."""
    decode(FIRST)


@pytest.fixture
def dice() -> random.Random:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    return random.Random(seed)


@pytest.mark.parametrize("flipped", [0x01, 0x80, 0xFF])
def test_a_changed_byte_anywhere_in_what_the_crc_covers_is_found(flipped: int) -> None:
    for position in range(17, len(SECOND)):
        damaged = bytearray(SECOND)
        damaged[position] ^= flipped

        fetched = decode(FIRST + bytes(damaged) + THIRD)

        assert rows_of(fetched) == EXPECTED_FIRST
        assert fetched.next_offset == 13
        assert fetched.corrupt is not None
        assert fetched.corrupt.base_offset == 13
        assert "CRC" in fetched.corrupt.reason
        assert fetched.corrupt.next_offset == 16


@pytest.mark.parametrize("flipped", [0x01, 0x80, 0xFF])
def test_a_changed_byte_before_the_crc_never_costs_the_records_before_it(flipped: int) -> None:
    for position in range(17):
        damaged = bytearray(SECOND)
        damaged[position] ^= flipped

        fetched = decode(FIRST + bytes(damaged) + THIRD)

        assert rows_of(fetched)[:3] == EXPECTED_FIRST
        if position == 16:
            assert fetched.corrupt is not None
            assert "format" in fetched.corrupt.reason


def test_reading_can_go_on_after_the_damaged_batch() -> None:
    damaged = SECOND[:-1] + b"!"
    data = FIRST + damaged + THIRD

    corrupt = decode(data).corrupt
    assert corrupt is not None
    assert corrupt.next_offset is not None
    rest = decode(data[len(FIRST) + len(damaged) :], corrupt.next_offset)

    assert rows_of(rest) == expected(ROWS, 16)


def test_a_damaged_last_offset_does_not_send_the_reader_past_the_next_batch() -> None:
    damaged = bytearray(SECOND)
    struct.pack_into(">i", damaged, 23, 1_000_000)

    followed = decode(FIRST + bytes(damaged) + THIRD).corrupt
    alone = decode(FIRST + bytes(damaged)).corrupt

    assert followed is not None
    assert followed.next_offset == 16
    assert alone is not None
    assert alone.next_offset is None


def test_damage_that_would_not_let_the_reader_move_on_has_no_next_offset() -> None:
    corrupt = decode(SECOND[:-1] + b"!", fetch_offset=16).corrupt

    assert corrupt is not None
    assert corrupt.next_offset is None


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_other_formats_are_named(magic: int) -> None:
    old = FIRST[:16] + bytes([magic]) + FIRST[17:]

    corrupt = decode(old).corrupt

    assert corrupt is not None
    assert "not in format 2" in corrupt.reason
    assert corrupt.next_offset is None


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48, (64 << 20) - 11, 2**31 - 1])
def test_impossible_lengths_are_damage_not_an_incomplete_batch(length: int) -> None:
    lying = FIRST + SECOND[:8] + struct.pack(">i", length) + SECOND[12:]

    fetched = decode(lying)

    assert rows_of(fetched) == EXPECTED_FIRST
    assert fetched.corrupt is not None
    assert "length" in fetched.corrupt.reason


@pytest.mark.parametrize("offset", [-1, -(2**63), 2**63 - 1, 0, 12])
def test_offsets_that_do_not_go_on_are_damage(offset: int) -> None:
    fetched = decode(FIRST + with_base_offset(SECOND, offset))

    assert rows_of(fetched) == EXPECTED_FIRST
    assert fetched.next_offset == 13
    assert fetched.corrupt is not None
    assert "offset" in fetched.corrupt.reason


@pytest.mark.parametrize("kind", Compression)
@pytest.mark.parametrize("count", [-1, -(2**31), 2, 4, 1000, 2**31 - 1])
def test_counts_that_lie_are_found_before_anything_is_allocated(kind: Compression, count: int) -> None:
    lying = batch(ROWS, base_offset=13, compression=kind, count=count)

    tracemalloc.start()
    try:
        fetched = decode(FIRST + lying)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert rows_of(fetched) == EXPECTED_FIRST
    assert fetched.corrupt is not None
    assert fetched.corrupt.base_offset == 13
    assert fetched.corrupt.next_offset == 16
    assert peak < 1 << 20


@pytest.mark.parametrize("kind", [5, 6, 7])
def test_an_unknown_compression_is_damage(kind: int) -> None:
    corrupt = decode(batch(ROWS, base_offset=10, attributes=kind)).corrupt

    assert corrupt is not None
    assert "compression" in corrupt.reason


@pytest.mark.parametrize("kind", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_a_batch_that_unpacks_to_too_much_is_damage_and_memory_stays_bounded(kind: Compression) -> None:
    bomb = batch([Row()], base_offset=13, compression=kind, payload=compress(kind, bytes(50_000_000)))

    tracemalloc.start()
    try:
        fetched = decode(FIRST + bomb + THIRD, batch_bytes_max=4 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert rows_of(fetched) == EXPECTED_FIRST
    assert fetched.corrupt is not None
    assert fetched.corrupt.base_offset == 13
    assert fetched.corrupt.next_offset == 14
    assert peak < 16 << 20


def test_many_batches_that_together_unpack_to_too_much_are_read_bit_by_bit() -> None:
    rows = [Row(value=bytes(1_000_000))]
    data = b"".join(batch(rows, base_offset=i, compression=Compression.ZSTD) for i in range(10))

    offsets, next_offset = [], 0
    for _ in range(4):
        fetched = decode(data, next_offset, batch_bytes_max=3_100_000)
        assert fetched.corrupt is None
        assert len(fetched.records.value.buffer) <= 3_100_000
        offsets += fetched.records.offset.tolist()
        next_offset = fetched.next_offset

    assert offsets == list(range(10))
    assert next_offset == 10


def test_damage_behind_the_point_where_decoding_ended_early_is_told_when_it_is_reached() -> None:
    rows = [Row(value=bytes(1_000_000))]
    data = b"".join(batch(rows, base_offset=i, compression=Compression.ZSTD) for i in range(2))
    data += batch(rows, base_offset=2)[:-1] + b"!"

    early = decode(data, 0, batch_bytes_max=1_100_000)
    late = decode(data, 1, batch_bytes_max=1_100_000)

    assert early.corrupt is None
    assert early.next_offset == 1
    assert late.corrupt is not None
    assert late.next_offset == 2


@pytest.mark.parametrize("kind", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_a_batch_that_cannot_be_unpacked_ends_decoding_there(kind: Compression) -> None:
    broken = batch(ROWS, base_offset=13, compression=kind, payload=compress(kind, bytes(500))[:-4])

    fetched = decode(FIRST + broken + THIRD)

    assert rows_of(fetched) == EXPECTED_FIRST
    assert fetched.corrupt is not None
    assert kind.name.lower() in fetched.corrupt.reason
    assert fetched.corrupt.next_offset == 16


# Records whose length is right and of which one field lies: timestamp delta, offset delta, key, value, headers.
LYING_RECORDS = {
    "a timestamp of 10 bytes that overflow": (b"\x80" * 9 + b"\x02", b"\0", b"\x01", b"\x01", b"\0"),
    "a timestamp of 11 bytes": (b"\x80" * 10 + b"\0", b"\0", b"\x01", b"\x01", b"\0"),
    "an offset of 6 bytes": (b"\0", b"\x80" * 5 + b"\0", b"\x01", b"\x01", b"\0"),
    "an offset before the first": (b"\0", varint(-1), b"\x01", b"\x01", b"\0"),
    "an offset after the last": (b"\0", varint(1), b"\x01", b"\x01", b"\0"),
    "a key size of -2": (b"\0", b"\0", varint(-2), b"\x01", b"\0"),
    "a key size of -2^31": (b"\0", b"\0", varint(-(2**31)), b"\x01", b"\0"),
    "a key that leaves the record": (b"\0", b"\0", varint(4), b"\x01", b"\0"),
    "a key of 2 GiB": (b"\0", b"\0", varint(2**31 - 1), b"\x01", b"\0"),
    "a value size of -2": (b"\0", b"\0", b"\x01", varint(-2), b"\0"),
    "a value that leaves the record": (b"\0", b"\0", b"\x01", varint(2), b"\0"),
    "a value of 2 GiB": (b"\0", b"\0", b"\x01", varint(2**31 - 1), b"\0"),
    "a header count of -1": (b"\0", b"\0", b"\x01", b"\x01", varint(-1)),
    "more headers than bytes": (b"\0", b"\0", b"\x01", b"\x01", varint(2) + b"\0\x01"),
    "2^31 headers": (b"\0", b"\0", b"\x01", b"\x01", varint(2**31 - 1)),
    "a header without a key": (b"\0", b"\0", b"\x01", b"\x01", varint(1) + b"\x01\x01"),
    "a header key that leaves the record": (b"\0", b"\0", b"\x01", b"\x01", varint(1) + varint(2) + b"k"),
    "a header value size of -2": (b"\0", b"\0", b"\x01", b"\x01", varint(1) + b"\0" + varint(-2)),
    "a header value that leaves the record": (b"\0", b"\0", b"\x01", b"\x01", varint(1) + b"\0" + varint(1)),
    "bytes after its headers": (b"\0", b"\0", b"\x01", b"\x01", b"\0\0"),
}


@pytest.mark.parametrize("fields", LYING_RECORDS.values(), ids=LYING_RECORDS)
@pytest.mark.parametrize("after", [b"", THIRD], ids=["alone", "with a batch behind it"])
def test_a_record_of_which_one_field_lies_is_damage(fields: tuple[bytes, ...], after: bytes) -> None:
    body = b"\0" + b"".join(fields)
    lying = batch([Row()], base_offset=13, last_delta=0, payload=varint(len(body)) + body)

    fetched = decode(FIRST + lying + after)

    assert rows_of(fetched) == EXPECTED_FIRST
    assert fetched.corrupt is not None
    assert fetched.corrupt.base_offset == 13
    assert fetched.corrupt.next_offset == 14


@pytest.mark.parametrize("length", [-1, 0, 5, 100, 2**31 - 1])
def test_a_record_whose_length_lies_is_damage(length: int) -> None:
    body = b"\0\0\0\x01\x01\0"
    lying = batch([Row()], base_offset=13, payload=varint(length) + body)

    fetched = decode(FIRST + lying + THIRD)

    assert rows_of(fetched) == EXPECTED_FIRST
    assert fetched.corrupt is not None
    assert fetched.corrupt.base_offset == 13


def test_of_several_damaged_batches_the_first_is_told() -> None:
    unparsable = with_crc(SECOND[:61] + b"\x7f" + SECOND[62:])
    wrong_crc = THIRD[:-1] + b"!"

    corrupt = decode(FIRST + unparsable + wrong_crc).corrupt

    assert corrupt is not None
    assert corrupt.base_offset == 13


def test_reasons_never_show_what_the_records_hold() -> None:
    secret = [Row(key=b"secret", value=b"secret")]
    for position in range(61, len(batch(secret))):
        damaged = bytearray(batch(secret))
        damaged[position] ^= 0x11
        for data in (bytes(damaged), with_crc(bytes(damaged))):
            assert "secret" not in str(decode(data, 0).corrupt)


def test_the_compiled_parser_agrees_with_a_plain_one_on_batches_that_lie(dice: random.Random) -> None:
    for _ in range(1500):
        check_agrees_with_plain_reader(mutated_batch(dice))


def test_any_mixture_of_good_and_lying_batches_is_read_sanely(dice: random.Random) -> None:
    damaged = sum(decode_hostile(dice).corrupt is not None for _ in range(1500))

    assert 0 < damaged < 1500


def test_garbage_is_read_sanely(dice: random.Random) -> None:
    for _ in range(2000):
        check_sane(decode_batches(garbage(dice), PARTITION, fetch_offset=3), 3)


def test_columns_that_lie_are_written_or_refused(dice: random.Random) -> None:
    taken = sum(write_hostile(dice) for _ in range(1000))

    assert 0 < taken < 2000


def test_nothing_outside_a_buffer_is_touched(tmp_path: Path) -> None:
    """The same attacks on kernels that were compiled to raise for each access outside an array."""
    program = Path(__file__).with_name("hostile_batches.py")
    seed = np.random.default_rng().integers(1 << 32)
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}

    run = subprocess.run(
        [sys.executable, str(program), str(seed), "1500"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert run.returncode == 0, f"seed {seed}\n{run.stderr}"
    assert re.fullmatch(r"\d+ of 1500 damaged\n", run.stdout), run.stdout
