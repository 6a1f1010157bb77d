"""Batches that lie, from a seed; and what must hold of whatever is decoded from them.

Run as a program it decodes many of them and says how many. With NUMBA_BOUNDSCHECK=1 in its environment the kernels are
compiled so that any access outside an array raises IndexError, which is what the test that starts it looks for.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import struct
import sys
from collections.abc import Sequence

import numpy as np
from batch_making import (
    ABORT,
    APPEND_TIME,
    PARTITION,
    TRANSACTIONAL,
    MalformedError,
    PlainReader,
    Row,
    batch,
    marker,
    numbered,
    output,
    record,
    rows_of,
    varint,
    with_crc,
)

from millstream.connectors.kafka.compression import Compression, DecompressionError, compress
from millstream.connectors.kafka.placement import place
from millstream.connectors.kafka.record_batch import BatchBuilder, FetchedRecords, decode_batches
from millstream.processor.columns import OutputRecords, Slices
from millstream.processor.errors import RecordTooLargeError
from millstream.processor.headers import decode_headers
from millstream.processor.kernels import borrowing_kernel

BATCH_BYTES_MAX = 1 << 20
ROWS = numbered(
    [
        Row(value=b"v" * 70),
        Row(key=None, value=b""),
        Row(key=b"", value=None, headers=(("a", b"1"), ("b", None), ("", b""))),
        Row(timestamp=1_500_000_000_000, value=b"v" * 200),
        Row(key=b"k" * 130, headers=(("c" * 70, b"x" * 70),)),
    ]
)
# Bytes that mean something in a varint: ends, continuations, -1, the largest and the smallest.
TELLING = (0x00, 0x01, 0x02, 0x03, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
SPLICES = (b"\xff" * 10, b"\xff" * 9 + b"\x01", b"\x80" * 5, b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f", b"\x01")
NUMBERS = (-(2**31), -2, -1, 0, 1, 6, 2**16, 2**31 - 1)
HEADER_FIELDS = (23, 57)  # last offset delta and record count
PAYLOAD = 61


def mutated_payload(dice: random.Random) -> bytes:
    """The records of a batch with one to three changes."""
    payload = bytearray(b"".join(record(row, ROWS[0].timestamp) for row in ROWS))
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(payload))
        match dice.randrange(4):
            case 0 | 1:
                payload[at] = dice.choice(TELLING)
            case 2:
                payload[at : at + dice.randint(0, 8)] = dice.choice(SPLICES)
            case 3:
                del payload[at : at + dice.randint(1, 30)]
        if not payload:
            payload = bytearray(b"\0")
    return bytes(payload)


def crafted_payload(dice: random.Random) -> bytes:
    """One or two records of fields that each may lie, of a length that mostly does not."""
    payload = b""
    for delta in range(dice.randint(1, 2)):
        body = b"\0" + varint(dice.choice((0, 0, -1, 2**63 - 1, -(2**63)))) + varint(dice.choice((delta, delta, -1, 9)))
        body += crafted_field(dice) + crafted_field(dice)
        count = dice.choice((0, 0, 1, 2, -1, 2**31 - 1))
        body += varint(count) + b"".join(crafted_field(dice) for _ in range(dice.randint(0, 4)))
        length = len(body) + dice.choice((0, 0, 0, -1, 1, 100))
        payload += varint(length) + body
    return payload


def crafted_field(dice: random.Random) -> bytes:
    """A size and as many bytes, or not."""
    size = dice.randint(0, 3)
    claimed = dice.choice((size, size, size, size + 1, -1, -2, 90, 2**31 - 1, -(2**31)))
    return varint(claimed) + dice.randbytes(size)


def mutated_batch(dice: random.Random) -> bytes:
    """A batch whose CRC fits, and which lies within it: in its records, packed or not, or in its header."""
    kind = dice.choice([Compression.NONE, Compression.NONE, *Compression])
    attributes = dice.choice([0, 0, APPEND_TIME, TRANSACTIONAL])
    payload = dice.choice((mutated_payload, crafted_payload))(dice)
    count = dice.choice((1, 2)) if len(payload) < 100 else None
    packed = bytearray(compress(kind, payload))
    if kind is not Compression.NONE and dice.random() < 0.2:
        packed[dice.randrange(len(packed))] = dice.randrange(256)
    data = bytearray(
        batch(
            ROWS,
            base_offset=100,
            attributes=attributes,
            compression=kind,
            payload=bytes(packed),
            producer_id=7,
            count=count,
        )
    )
    if dice.random() < 0.3:
        struct.pack_into(">i", data, dice.choice(HEADER_FIELDS), dice.choice(NUMBERS))
    if dice.random() < 0.1:
        struct.pack_into(">q", data, dice.choice((27, 35)), dice.choice((-(2**63), 2**63 - 1, -1)))
    return with_crc(bytes(data))


def mutated_marker(dice: random.Random) -> bytes:
    """A control batch that aborts, or seems to."""
    data = bytearray(marker(ABORT, base_offset=200, producer_id=7))
    for _ in range(dice.randint(0, 2)):
        data[dice.randrange(PAYLOAD, len(data))] = dice.choice(TELLING)
    return with_crc(bytes(data))


def check_sane(fetched: FetchedRecords, fetch_offset: int) -> None:
    """What holds of every answer, whatever the bytes were."""
    records = fetched.records
    assert fetched.next_offset >= fetch_offset
    assert fetched.corrupt is None or fetched.corrupt.next_offset is None or fetched.corrupt.next_offset > fetch_offset
    offsets = records.offset.tolist()
    assert all(before < after for before, after in itertools.pairwise(offsets))
    if offsets:
        assert fetch_offset <= offsets[0]
        assert offsets[-1] < fetched.next_offset
    for column in (records.key, records.value, records.headers):
        assert len(column) == len(records)
        given = column.size >= 0
        starts, ends = column.start[given], column.start[given].astype(np.int64) + column.size[given]
        assert np.all(starts >= 0)
        assert np.all(ends <= len(column.buffer))
        assert np.all(column.size >= -1)
    assert np.all(records.headers.size >= 1)


def check_agrees_with_plain_reader(data: bytes) -> None:
    """The compiled parser and the plain one take and refuse the same batches, and read the same."""
    fetched = decode_batches(data, PARTITION, fetch_offset=0, batch_bytes_max=BATCH_BYTES_MAX)
    check_sane(fetched, 0)
    try:
        rows = PlainReader(data).rows()
    except (MalformedError, DecompressionError):
        assert fetched.corrupt is not None
        assert rows_of(fetched) == []
    else:
        assert fetched.corrupt is None, fetched.corrupt
        assert rows_of(fetched) == rows


def decode_hostile(dice: random.Random) -> FetchedRecords:
    """Decode a good batch, a lying one, a marker and another good one."""
    good, late = batch(ROWS[:2], base_offset=90, producer_id=8), batch(ROWS[:2], base_offset=300)
    data = good + mutated_batch(dice) + mutated_marker(dice) + late
    if dice.random() < 0.3:
        data = data[: dice.randrange(len(data))]
    fetch_offset = dice.choice((0, 91, 102, 500))
    aborted = dice.choice(((), [(7, 0)], [(7, 150), (8, 90)]))
    fetched = decode_batches(
        data, PARTITION, fetch_offset=fetch_offset, aborted=aborted, batch_bytes_max=BATCH_BYTES_MAX
    )
    check_sane(fetched, fetch_offset)
    for section in fetched.records.headers.to_list():
        assert section is not None
        try:
            decode_headers(section)
        except ValueError as error:
            # Sections are well formed; only what keys may hold is not the parser's business.
            if "not UTF-8" not in str(error):
                raise
    return fetched


def garbage(dice: random.Random) -> bytes:
    """Bytes that mean nothing, in half of the cases behind a plausible beginning."""
    data = dice.randbytes(dice.randrange(200))
    if dice.random() < 0.5:
        data = struct.pack(">qiib", dice.randrange(1000), dice.randrange(-5, 250), 0, 2) + data
    return data


def lying_slices(dice: random.Random, rows: int) -> Slices:
    """A column of which some rows may point anywhere."""
    numbers = (-(2**31), -2, -1, 0, 1, 9, 10, 11, 2**31 - 1)
    start = [dice.choice(numbers) for _ in range(rows)]
    size = [dice.choice(numbers) for _ in range(rows)]
    return Slices(np.zeros(10, np.uint8), np.array(start, np.int32), np.array(size, np.int32))


def write_hostile(dice: random.Random) -> int:
    """Write and place columns that may point anywhere; how many were taken."""
    rows = dice.randint(1, 3)
    key, value, headers = (lying_slices(dice, rows) for _ in range(3))
    zeros = np.zeros(rows, np.int32)
    times = np.array([dice.choice((-(2**63), -1, 0, 2**63 - 1)) for _ in range(rows)], np.int64)
    builder = BatchBuilder(batch_bytes_max=dice.choice((75, 100, 10_000)))
    if dice.random() < 0.5:
        builder.append(output(ROWS[1:2]), np.arange(1))
    taken = 0
    chosen = np.array([dice.choice((0, 0, rows - 1, rows, -1)) for _ in range(dice.randint(1, 3))])
    with contextlib.suppress(ValueError, RecordTooLargeError):
        builder.append(OutputRecords("out", key, value, headers, times, zeros, zeros), chosen)
        taken += 1
    with contextlib.suppress(ValueError):
        place(key, zeros, 3)
        taken += 1
    return taken


def write_growing(dice: random.Random) -> None:
    """Write a record that ends near the end of a builder's first buffer, so that it has to grow or just fits."""
    builder = BatchBuilder(batch_bytes_max=10_000)
    builder.append(output([Row(value=bytes(dice.randint(3980, 4080)))]), np.arange(1))
    assert builder.record_count == 1


@borrowing_kernel
def _reads_past_its_end(data: np.ndarray) -> int:
    return int(data[len(data)])


def bounds_are_checked() -> bool:
    """True where kernels raise for what is outside; without this the run would prove nothing."""
    try:
        _reads_past_its_end(np.zeros(1, np.uint8))
    except IndexError:
        return True
    return False


def main(arguments: Sequence[str]) -> None:
    """Decode and write as much as asked for, from the seed given."""
    seed, count = map(int, arguments)
    assert bounds_are_checked()
    dice = random.Random(seed)
    damaged = 0
    for _ in range(count):
        check_agrees_with_plain_reader(mutated_batch(dice))
        damaged += decode_hostile(dice).corrupt is not None
        check_sane(decode_batches(garbage(dice), PARTITION, fetch_offset=3), 3)
        write_hostile(dice)
        write_growing(dice)
    print(f"{damaged} of {count} damaged")


if __name__ == "__main__":
    main(sys.argv[1:])
