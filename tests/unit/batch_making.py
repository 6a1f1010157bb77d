"""Record batches for tests, written and read one byte at a time: slow, plain, and independent of the compiled codec."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from crc32c import crc32c

from millstream.connectors.kafka.compression import Compression, compress, decompress
from millstream.connectors.kafka.record_batch import BatchBuilder, FetchedRecords
from millstream.processor.columns import OutputRecords, Slices
from millstream.processor.headers import encode_headers
from millstream.processor.partitions import TopicPartition

PARTITION = TopicPartition("events", 3)
HEADER = struct.Struct(">qiibIhiqqqhii")
COMMIT, ABORT = 1, 0
TRANSACTIONAL, CONTROL, APPEND_TIME = 16, 32, 8

Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class Row:
    """One record, with its offset from the batch's first."""

    delta: int = 0
    timestamp: int = 1_700_000_000_000
    key: bytes | None = b"key"
    value: bytes | None = b"value"
    headers: tuple[Header, ...] = ()


def varint(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    written = b""
    while raw > 0x7F:
        written += bytes([raw & 0x7F | 0x80])
        raw >>= 7
    return written + bytes([raw])


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(row: Row, base_timestamp: int) -> bytes:
    body = b"\0" + varint(row.timestamp - base_timestamp) + varint(row.delta) + sized(row.key) + sized(row.value)
    body += varint(len(row.headers)) + b"".join(sized(k.encode()) + sized(v) for k, v in row.headers)
    return varint(len(body)) + body


def batch(
    rows: Sequence[Row],
    *,
    base_offset: int = 0,
    last_delta: int | None = None,
    attributes: int = 0,
    compression: Compression = Compression.NONE,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    payload: bytes | None = None,
    count: int | None = None,
) -> bytes:
    """A batch as a broker stores it; the last arguments override what follows from `rows`."""
    base_timestamp = rows[0].timestamp if rows else -1
    if payload is None:
        payload = compress(compression, b"".join(record(row, base_timestamp) for row in rows))
    if last_delta is None:
        last_delta = rows[-1].delta if rows else 0
    if max_timestamp is None:
        max_timestamp = max((row.timestamp for row in rows), default=-1)
    header = HEADER.pack(
        base_offset,
        len(payload) + HEADER.size - 12,
        0,
        2,
        0,
        attributes | compression,
        last_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        0,
        0,
        len(rows) if count is None else count,
    )
    return with_crc(header + payload)


def with_crc(data: bytes) -> bytes:
    """The first batch in `data` with the CRC that fits its bytes."""
    return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]


def with_base_offset(data: bytes | memoryview, base_offset: int) -> bytes:
    return struct.pack(">q", base_offset) + bytes(data[8:])


def marker(kind: int, *, base_offset: int, producer_id: int) -> bytes:
    """The control batch that ends a transaction."""
    end = Row(key=struct.pack(">hh", 0, kind), value=struct.pack(">hi", 0, 0))
    return batch([end], base_offset=base_offset, attributes=TRANSACTIONAL | CONTROL, producer_id=producer_id)


def rows_of(fetched: FetchedRecords) -> list[tuple[int, int, bytes | None, bytes | None, bytes | None]]:
    """Offset, timestamp, key, value and header section of each record."""
    records = fetched.records
    return list(
        zip(
            records.offset.tolist(),
            records.timestamp.tolist(),
            records.key.to_list(),
            records.value.to_list(),
            records.headers.to_list(),
            strict=True,
        )
    )


def expected(rows: Sequence[Row], base_offset: int = 0) -> list[tuple[int, int, bytes | None, bytes | None, bytes]]:
    return [(base_offset + r.delta, r.timestamp, r.key, r.value, encode_headers(r.headers)) for r in rows]


def numbered(rows: Sequence[Row]) -> list[Row]:
    """The rows with deltas 0, 1, 2 and so on."""
    return [replace(row, delta=i) for i, row in enumerate(rows)]


def output(rows: Sequence[Row], topic: str = "out") -> OutputRecords:
    count = len(rows)
    return OutputRecords(
        topic,
        Slices.from_list([row.key for row in rows]),
        Slices.from_list([row.value for row in rows]),
        Slices.from_list([encode_headers(row.headers) for row in rows]),
        np.array([row.timestamp for row in rows], np.int64),
        np.zeros(count, np.int32),
        np.arange(count, dtype=np.int32),
    )


def built(rows: Sequence[Row], *, batch_bytes_max: int = 1 << 20, compression: Compression = Compression.NONE) -> bytes:
    """What a builder makes of the rows, with the offsets that a broker would give."""
    builder = BatchBuilder(batch_bytes_max=batch_bytes_max, compression=compression)
    builder.append(output(rows), np.arange(len(rows)))
    data, offset = b"", 0
    for sealed in builder.seal():
        wire = sealed.stamped(producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False)
        data += with_base_offset(wire, offset)
        offset += sealed.record_count
    return data


class MalformedError(Exception):
    """The plain reader's verdict on a payload."""


class PlainReader:
    """Reads the records of one batch one byte at a time; the compiled parser must agree with it on every input."""

    def __init__(self, data: bytes) -> None:
        header = HEADER.unpack_from(data)
        (self._base_offset, _, _, _, _, self._attributes, self._delta_max) = header[:7]
        (self._base_timestamp, self._max_timestamp, _, _, _, self._count) = header[7:]
        self._data = data[HEADER.size :]
        if self._count:
            self._data = decompress(Compression(self._attributes & 7), self._data, bytes_max=1 << 20)
        self._position = 0
        self._end = len(self._data)

    def rows(self) -> list[tuple[int, int, bytes | None, bytes | None, bytes]]:
        """All records, or MalformedError."""
        if self._delta_max < 0 or not 0 <= self._count * 7 <= len(self._data):
            raise MalformedError
        rows: list[tuple[int, int, bytes | None, bytes | None, bytes]] = []
        delta_before = -1
        for _ in range(self._count):
            length = self._varint(5)
            self._end = self._position + length
            if length < 0 or self._end > len(self._data):
                raise MalformedError
            self._take(1)
            timestamp = _wrapped(self._base_timestamp + self._varint(10))
            delta = self._varint(5)
            if not delta_before < delta <= self._delta_max:
                raise MalformedError
            delta_before = delta
            key, value = self._sized(), self._sized()
            headers = self._headers()
            if self._position != self._end:
                raise MalformedError
            self._end = len(self._data)
            stamp = self._max_timestamp if self._attributes & APPEND_TIME else timestamp
            rows.append((self._base_offset + delta, stamp, key, value, headers))
        if self._position != len(self._data):
            raise MalformedError
        return rows

    def _take(self, count: int) -> bytes:
        if count < 0 or count > self._end - self._position:
            raise MalformedError
        self._position += count
        return self._data[self._position - count : self._position]

    def _varint(self, bytes_max: int) -> int:
        raw = 0
        for i in range(bytes_max):
            (byte,) = self._take(1)
            raw |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                if raw >= 1 << 64:
                    raise MalformedError
                return (raw >> 1) ^ -(raw & 1)
        raise MalformedError

    def _sized(self) -> bytes | None:
        size = self._varint(5)
        return None if size == -1 else self._take(size)

    def _headers(self) -> bytes:
        start = self._position
        count = self._varint(5)
        if count < 0:
            raise MalformedError
        for _ in range(count):
            if self._sized() is None:
                raise MalformedError
            self._sized()
        return self._data[start : self._position]


def _wrapped(number: int) -> int:
    """As 64-bit arithmetic has it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
