"""Record batches of few records in plain Python, for the ledger and the beats.

The agent reads and writes these and must stay light; `record_batch.py` has the codec for records by the million. Both
follow the same rules, and the tests hold them against each other. Keys, headers and timestamps are checked and dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from millstream.connectors.kafka.compression import Compression, DecompressionError, compress, decompress
from millstream.processor.errors import CorruptBatchError
from millstream.processor.membership_log import Entry

UNPACKED_BYTES_MAX: Final = 16 * 1024 * 1024

_HEADER = struct.Struct(">qiibIhiqqqhii")
_HEADER_BYTES = _HEADER.size
_LENGTH_END = 12  # the length field counts what follows it
_CRC_AT = 17
_CRC_END = 21  # the CRC covers what follows it
_PREFIX_BYTES = 17  # up to and including the magic byte
_MAGIC = 2
_CRC = struct.Struct(">I")

_LENGTH = struct.Struct(">i")
_LENGTH_AT = 8

# A record whose lengths take a byte each: attributes, two deltas, no key, the value with its length, no headers.
_LONE_FRAME_BYTES = 6
_LONE_BYTES_MIN = 1 + _LONE_FRAME_BYTES
_LONE_RECORD_BYTES_MAX = 63

_COMPRESSION_BITS = 0b111
_APPEND_TIME = 1 << 3
_TRANSACTIONAL = 1 << 4
_CONTROL = 1 << 5
_OFFSET_MAX = 1 << 62
_RECORD_BYTES_MIN = 7
_RECORD_BYTES_MAX = 20  # what a record of ours takes beside its value

# A topic takes 1 MiB by default. A single record that is larger may still fit when it is packed.
_BATCH_BYTES = 512 * 1024
_PACKED_FROM_BYTES = 64 * 1024

# A control record's key is its version and its type, int16 each; this is the type of an abort, of version 0.
_ABORT_KEY = b"\0\0\0\0"


def encode(values: Sequence[bytes]) -> bytes:
    """One batch with a record for each value: no keys, no timestamps, no producer; packed where it is large.

    Records without a time are also taken from a machine whose clock is an hour ahead.
    """
    payload = b"".join(_record(delta, value) for delta, value in enumerate(values))
    kind = Compression.NONE if len(payload) < _PACKED_FROM_BYTES else Compression.ZSTD
    packed = compress(kind, payload)
    count = len(values)
    length = _HEADER_BYTES - _LENGTH_END + len(packed)
    header = _HEADER.pack(0, length, -1, _MAGIC, 0, kind, count - 1, -1, -1, -1, -1, -1, count)
    batch = bytearray(header + packed)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_END:]))
    return bytes(batch)


def encode_all(values: Sequence[bytes]) -> list[bytes]:
    """As many batches as keep each within what a topic takes by default, in order."""
    batches: list[bytes] = []
    part: list[bytes] = []
    size = 0
    for value in values:
        if part and size + len(value) > _BATCH_BYTES:
            batches.append(encode(part))
            part, size = [], 0
        part.append(value)
        size += len(value) + _RECORD_BYTES_MAX
    return [*batches, encode(part)] if part else batches


def _record(delta: int, value: bytes) -> bytes:
    # Attributes 0, timestamp delta 0; then the offset delta, a null key, the value, no headers.
    body = b"\0\0" + _zigzag(delta) + b"\x01" + _zigzag(len(value)) + value + b"\0"
    return _zigzag(len(body)) + body


def _zigzag(number: int) -> bytes:
    """The varint of a number that is not negative."""
    number <<= 1
    if number < 0x80:
        return bytes((number,))
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


@dataclass(frozen=True, slots=True)
class Decoded:
    """The records with a value, at or after the offset that was asked for, and where to fetch next."""

    entries: Sequence[Entry]
    next_offset: int


def decode(
    data: bytes | memoryview,
    *,
    fetch_offset: int,
    aborted: Sequence[tuple[int, int]] = (),
    unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
) -> Decoded:
    """All complete batches in `data`, which was fetched at `fetch_offset`.

    `aborted` names the aborted transactions by producer id and first offset; their records are left out, and so are
    control records. Ends before a batch that is damaged, lies about itself or is larger than `unpacked_bytes_max`;
    raises CorruptBatchError where there is nothing before that one.
    """
    view = memoryview(data)
    entries: list[Entry] = []
    transactions = _Aborted(aborted)
    position, next_offset, offset_before = 0, fetch_offset, -1
    while (lone := _lone_at(view, position, next_offset)) is not None:
        entries.append(lone)
        next_offset = lone.offset + 1
        offset_before = lone.offset
        position += _LENGTH_END + _LENGTH.unpack_from(view, position + _LENGTH_AT)[0]
    while (header := _header_at(view, position)) is not None:
        try:
            _check(header, view, offset_before, unpacked_bytes_max)
            records = _records(header, view, transactions, fetch_offset, unpacked_bytes_max)
        except _MalformedError as error:
            if next_offset > fetch_offset:
                break
            raise CorruptBatchError(str(error), base_offset=header.base_offset, next_offset=None) from error
        entries += records
        offset_before = header.last_offset
        next_offset = max(next_offset, offset_before + 1)
        position = header.end
    return Decoded(entries, next_offset)


def _lone_at(view: memoryview, position: int, offset_min: int) -> Entry | None:
    """The one small record of a sound batch such as `encode` makes; None where there is anything else.

    A hundred nodes' beats are two thousand of these a second, and this takes a quarter of what the rest of this
    module takes for one. Whatever it does not know is looked at anew.
    """
    if len(view) - position < _HEADER_BYTES + _LONE_BYTES_MIN:
        return None
    offset, length, _, magic, crc, attributes, last, _, _, _, _, _, count = _HEADER.unpack_from(view, position)
    end = position + _LENGTH_END + length
    at = position + _HEADER_BYTES
    record_bytes = end - at - 1
    value_bytes = record_bytes - _LONE_FRAME_BYTES
    if (
        (magic, attributes & ~_APPEND_TIME, last, count) != (_MAGIC, 0, 0, 1)
        or value_bytes < 0
        or record_bytes > _LONE_RECORD_BYTES_MAX
        or end > len(view)
        or not offset_min <= offset <= _OFFSET_MAX
        or view[at : at + 6] != bytes((record_bytes << 1, 0, 0, 0, 1, value_bytes << 1))
        or view[end - 1] != 0
        or crc32c(view[position + _CRC_END : end]) != crc
    ):
        return None
    return Entry(offset, bytes(view[at + 6 : end - 1]))


class _MalformedError(Exception):
    """Why a batch is not believed."""


class _Header(NamedTuple):
    start: int
    end: int
    base_offset: int
    last_offset: int
    magic: int
    crc: int
    attributes: int
    producer_id: int
    record_count: int


def _header_at(view: memoryview, position: int) -> _Header | None:
    """The header at `position`; None where no complete batch is left."""
    left = len(view) - position
    if left < _PREFIX_BYTES:
        return None
    magic = view[position + _PREFIX_BYTES - 1]
    base_offset, length = struct.unpack_from(">qi", view, position)
    if magic != _MAGIC or length < _HEADER_BYTES - _LENGTH_END:
        # It has no end that could be believed.
        return _Header(position, position, base_offset, base_offset, magic, 0, 0, -1, 0)
    if left < _LENGTH_END + length:
        return None
    fields = _HEADER.unpack_from(view, position)
    return _Header(
        start=position,
        end=position + _LENGTH_END + length,
        base_offset=base_offset,
        last_offset=base_offset + fields[6],
        magic=magic,
        crc=fields[4],
        attributes=fields[5],
        producer_id=fields[9],
        record_count=fields[12],
    )


def _check(header: _Header, view: memoryview, offset_before: int, bytes_max: int) -> None:
    if header.magic != _MAGIC:
        raise _MalformedError(f"it is in format {header.magic}; only format 2 (Kafka 0.11 and later) is supported")
    size = header.end - header.start
    if not 0 < size <= bytes_max:
        raise _MalformedError("its length is impossible")
    if crc32c(view[header.start + _CRC_END : header.end]) != header.crc:
        raise _MalformedError("its CRC does not match its bytes")
    if not 0 <= header.base_offset <= _OFFSET_MAX or header.last_offset < header.base_offset:
        raise _MalformedError("its offsets are impossible")
    if header.base_offset <= offset_before:
        raise _MalformedError("its offsets do not follow those of the batch before it")
    compression = header.attributes & _COMPRESSION_BITS
    if compression > max(Compression):
        raise _MalformedError("its compression is unknown")
    payload_bytes = size - _HEADER_BYTES
    if header.record_count < 0 or (compression == 0 and header.record_count * _RECORD_BYTES_MIN > payload_bytes):
        raise _MalformedError("it claims more records than its bytes can hold")
    # A batch that compaction has emptied is a header alone.
    if header.record_count == 0 and payload_bytes:
        raise _MalformedError("bytes are left over after its last record")


class _Aborted:
    """Which producers' batches belong to an aborted transaction, as the reading goes on."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._waiting = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
        self._producers: set[int] = set()

    def begin(self, last_offset: int) -> None:
        """Reading has come to a batch that ends at `last_offset`."""
        while self._waiting and self._waiting[-1][1] <= last_offset:
            self._producers.add(self._waiting.pop()[0])

    def end(self, producer_id: int) -> None:
        """The producer's transaction was aborted here."""
        self._producers.discard(producer_id)

    def holds(self, producer_id: int) -> bool:
        """Whether what the producer writes in a transaction is dropped."""
        return producer_id in self._producers


def _records(header: _Header, view: memoryview, aborted: _Aborted, fetch_offset: int, bytes_max: int) -> list[Entry]:
    """The batch's records that are somebody's: not aborted, not of the broker, with a value."""
    aborted.begin(header.last_offset)
    if not header.record_count:
        return []
    if header.attributes & _CONTROL:
        if aborted.holds(header.producer_id):
            _end_transaction(header, view, aborted)
        return []
    if header.last_offset < fetch_offset or (header.attributes & _TRANSACTIONAL and aborted.holds(header.producer_id)):
        return []
    payload: bytes | memoryview = view[header.start + _HEADER_BYTES : header.end]
    if compression := header.attributes & _COMPRESSION_BITS:
        try:
            payload = decompress(Compression(compression), payload, bytes_max=bytes_max)
        except DecompressionError as error:
            raise _MalformedError(str(error)) from error
    return [
        Entry(header.base_offset + delta, value)
        for delta, _, value in _parse(payload, header.record_count, header.last_offset - header.base_offset)
        if value is not None and header.base_offset + delta >= fetch_offset
    ]


def _end_transaction(header: _Header, view: memoryview, aborted: _Aborted) -> None:
    if header.attributes & _COMPRESSION_BITS:
        raise _MalformedError("it is a packed control batch, which no broker writes")
    payload = view[header.start + _HEADER_BYTES : header.end]
    _, key, _ = _parse(payload, header.record_count, header.last_offset - header.base_offset)[0]
    if key is None or len(key) < len(_ABORT_KEY):
        raise _MalformedError("it is a control batch without a type")
    if key[2:4] == _ABORT_KEY[2:4]:
        aborted.end(header.producer_id)


_Record = tuple[int, bytes | None, bytes | None]


def _parse(payload: bytes | memoryview, count: int, delta_max: int) -> list[_Record]:
    """Offset delta, key and value of each record."""
    if count * _RECORD_BYTES_MIN > len(payload):
        raise _MalformedError("it claims more records than its bytes can hold")
    records: list[_Record] = []
    position, delta_before = 0, -1
    for _ in range(count):
        length, position = _varint(payload, position, len(payload), 5)
        if not _RECORD_BYTES_MIN - 1 <= length <= len(payload) - position:
            raise _MalformedError("a record's length is impossible")
        end = position + length
        _, position = _varint(payload, position + 1, end, 10)
        delta, position = _varint(payload, position, end, 5)
        if not delta_before < delta <= delta_max:
            raise _MalformedError("a record's offset is out of order or out of the batch's range")
        delta_before = delta
        key, position = _sized(payload, position, end)
        value, position = _sized(payload, position, end)
        if _headers_end(payload, position, end) != end:
            raise _MalformedError("a record's length differs from what its fields take")
        position = end
        records.append((delta, key, value))
    if position != len(payload):
        raise _MalformedError("bytes are left over after its last record")
    return records


def _varint(data: bytes | memoryview, position: int, end: int, bytes_max: int) -> tuple[int, int]:
    """The zigzag varint at `position`, and where it ends."""
    raw = shift = 0
    for at in range(position, min(end, position + bytes_max)):
        byte = data[at]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >= 1 << 64:
                break
            return (raw >> 1) ^ -(raw & 1), at + 1
        shift += 7
    raise _MalformedError("a number in a record is malformed")


def _sized(data: bytes | memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    """The bytes at `position` with their length before them, None where that is -1; and where they end."""
    size, position = _varint(data, position, end, 5)
    if not -1 <= size <= end - position:
        raise _MalformedError("a length in a record is impossible")
    if size < 0:
        return None, position
    return bytes(data[position : position + size]), position + size


def _headers_end(data: bytes | memoryview, position: int, end: int) -> int:
    count, position = _varint(data, position, end, 5)
    if not 0 <= 2 * count <= end - position:
        raise _MalformedError("a record's headers are malformed")
    for _ in range(count):
        name, position = _sized(data, position, end)
        if name is None:
            raise _MalformedError("a record's headers are malformed")
        _, position = _sized(data, position, end)
    return position
