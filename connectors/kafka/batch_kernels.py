"""The compiled part of the record-batch codec: walks batches, parses records, writes records.

Every kernel is given bytes that may be hostile. The rule that keeps it within its buffer: a position is compared
with its end before each read or write, a length with what is left before it is believed, and ends only ever come
from the length of the buffer. Sums cannot overflow, because lengths have 35 bits at most.

A batch's header becomes one row of an int64 matrix with the columns below.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millstream.processor.columns import Bytes, Index, Int32s, Int64s
from millstream.processor.kernels import borrowing_kernel

Int64Matrix = npt.NDArray[np.int64]
Int32Matrix = npt.NDArray[np.int32]

# Columns of the matrix of headers. START and END enclose the whole batch; they are equal where damage hides its end.
START, END, BASE_OFFSET, LAST_OFFSET, ATTRIBUTES, BASE_TIMESTAMP, MAX_TIMESTAMP = 0, 1, 2, 3, 4, 5, 6
PRODUCER_ID, RECORD_COUNT, CRC, PAYLOAD_START, PAYLOAD_END = 7, 8, 9, 10, 11
HEADER_COLUMNS = 12

# Bits of a batch's attributes.
COMPRESSION_BITS = 0b111
COMPRESSION_MAX = 4
APPEND_TIME = 1 << 3
TRANSACTIONAL = 1 << 4
CONTROL = 1 << 5

HEADER_BYTES = 61
PREFIX_BYTES = 17  # up to and including the magic byte
LENGTH_END = 12  # the length field counts what follows it
CRC_END = 21  # the CRC covers what follows it
RECORD_BYTES_MIN = 7
MAGIC = 2
OFFSET_MAX = 1 << 62

# Why a batch is not believed; `FAULTS` has the words.
FINE = 0
(
    BAD_LENGTH,
    BAD_MAGIC,
    BAD_OFFSET,
    BAD_OFFSET_RANGE,
    BAD_ORDER,
    BAD_COMPRESSION,
    BAD_COUNT,
    BAD_RECORD_LENGTH,
    BAD_FIELD,
    BAD_KEY,
    BAD_VALUE,
    BAD_HEADERS,
    BAD_RECORD_END,
    BAD_RECORD_OFFSET,
    BAD_PAYLOAD_END,
) = range(1, 16)
FAULTS = {
    BAD_LENGTH: "its length is impossible",
    BAD_MAGIC: "it is not in format 2; formats 0 and 1 (before Kafka 0.11) are not supported",
    BAD_OFFSET: "its offset is impossible",
    BAD_OFFSET_RANGE: "its last offset is before its first",
    BAD_ORDER: "its offsets do not follow those of the batch before it",
    BAD_COMPRESSION: "its compression is unknown",
    BAD_COUNT: "it claims more records than its bytes can hold",
    BAD_RECORD_LENGTH: "a record's length is impossible",
    BAD_FIELD: "a record's timestamp or offset is malformed",
    BAD_KEY: "a record's key length is impossible",
    BAD_VALUE: "a record's value length is impossible",
    BAD_HEADERS: "a record's headers are malformed",
    BAD_RECORD_END: "a record's length differs from what its fields take",
    BAD_RECORD_OFFSET: "a record's offset is out of order or out of the batch's range",
    BAD_PAYLOAD_END: "bytes are left over after its last record",
}


@borrowing_kernel
def _byte(data: Bytes, position: int) -> int:
    """A byte as a signed 64-bit number: mixed with unsigned ones, such numbers would turn into floats."""
    return int(np.int64(data[position]))


@borrowing_kernel
def _big_endian(data: Bytes, position: int, size: int) -> int:
    """A signed big-endian integer of up to 8 bytes."""
    value = 0
    for i in range(size):
        value = (value << 8) | _byte(data, position + i)
    unused = 64 - 8 * size
    return (value << unused) >> unused


@borrowing_kernel
def _batch_end(data: Bytes, position: int, batch_bytes_max: int) -> tuple[int, int]:
    """Where the batch at `position` ends, -1 if that is not within `data`; and a fault, or FINE."""
    if len(data) - position < PREFIX_BYTES:
        return -1, FINE
    length = _big_endian(data, position + 8, 4)
    if data[position + PREFIX_BYTES - 1] != MAGIC:
        return position, BAD_MAGIC
    if length < HEADER_BYTES - LENGTH_END or length + LENGTH_END > batch_bytes_max:
        return position, BAD_LENGTH
    end = position + LENGTH_END + length
    if end > len(data):
        return -1, FINE
    return end, FINE


@borrowing_kernel
def _header_fault(headers: Int64Matrix, row: int, offset_before: int) -> int:
    """What is impossible about a header, or FINE."""
    if headers[row, BASE_OFFSET] < 0 or headers[row, BASE_OFFSET] > OFFSET_MAX:
        return BAD_OFFSET
    if headers[row, LAST_OFFSET] < headers[row, BASE_OFFSET]:
        return BAD_OFFSET_RANGE
    if headers[row, BASE_OFFSET] <= offset_before:
        return BAD_ORDER
    compression = headers[row, ATTRIBUTES] & COMPRESSION_BITS
    if compression > COMPRESSION_MAX:
        return BAD_COMPRESSION
    count = headers[row, RECORD_COUNT]
    payload_bytes = headers[row, PAYLOAD_END] - headers[row, PAYLOAD_START]
    if count < 0 or (compression == 0 and count * RECORD_BYTES_MIN > payload_bytes):
        return BAD_COUNT
    # A batch that compaction has emptied is a header alone, packed or not; it is not looked into any further.
    if count == 0 and payload_bytes > 0:
        return BAD_PAYLOAD_END
    return FINE


@borrowing_kernel
def count_batches(data: Bytes, batch_bytes_max: int) -> int:
    """How many rows `walk_batches` needs at most: one for each complete batch up to the first that is faulty."""
    count = 0
    position = 0
    while True:
        end, fault = _batch_end(data, position, batch_bytes_max)
        if end < 0:
            return count
        count += 1
        if fault != FINE:
            return count
        position = end


@borrowing_kernel
def walk_batches(data: Bytes, batch_bytes_max: int, headers: Int64Matrix) -> tuple[int, int]:
    """Read the headers of all complete batches, in order; an incomplete one at the end is left out.

    `headers` has the rows that `count_batches` answered. Answers how many of them are filled, and the fault of the
    last one, or FINE: the walk ends at the first faulty header.
    """
    position = 0
    offset_before = -1
    for row in range(len(headers)):
        end, fault = _batch_end(data, position, batch_bytes_max)
        headers[row, START] = position
        headers[row, END] = end
        headers[row, BASE_OFFSET] = _big_endian(data, position, 8)
        if fault != FINE:
            return row + 1, fault
        headers[row, CRC] = _big_endian(data, position + 17, 4) & 0xFFFFFFFF
        headers[row, ATTRIBUTES] = _big_endian(data, position + 21, 2)
        headers[row, LAST_OFFSET] = headers[row, BASE_OFFSET] + _big_endian(data, position + 23, 4)
        headers[row, BASE_TIMESTAMP] = _big_endian(data, position + 27, 8)
        headers[row, MAX_TIMESTAMP] = _big_endian(data, position + 35, 8)
        headers[row, PRODUCER_ID] = _big_endian(data, position + 43, 8)
        headers[row, RECORD_COUNT] = _big_endian(data, position + 57, 4)
        headers[row, PAYLOAD_START] = position + HEADER_BYTES
        headers[row, PAYLOAD_END] = end
        fault = _header_fault(headers, row, offset_before)
        if fault != FINE:
            return row + 1, fault
        offset_before = headers[row, LAST_OFFSET]
        position = end
    return len(headers), FINE


@borrowing_kernel
def _varint(buffer: Bytes, position: int, end: int, bytes_max: int) -> tuple[int, int]:
    """The zigzag varint at `position` and where it ends; -1 for the end if it is too long or leaves the buffer."""
    if position < 0 or position >= end:
        return 0, -1
    byte = _byte(buffer, position)
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value = byte & 0x7F
    for i in range(1, bytes_max):
        if position + i >= end:
            return 0, -1
        byte = _byte(buffer, position + i)
        if i == 9 and byte > 1:
            return 0, -1
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), position + i + 1
    return 0, -1


@borrowing_kernel
def _headers_end(buffer: Bytes, position: int, end: int) -> int:
    """Where the header section at `position` ends; -1 if it is malformed."""
    count, position = _varint(buffer, position, end, 5)
    if position < 0 or count < 0 or 2 * count > end - position:
        return -1
    for _ in range(count):
        size, position = _varint(buffer, position, end, 5)
        if position < 0 or size < 0 or size > end - position:
            return -1
        position += size
        size, position = _varint(buffer, position, end, 5)
        if position < 0 or size < -1 or size > end - position:
            return -1
        position += max(size, 0)
    return position


@borrowing_kernel
def parse_records(
    buffer: Bytes, headers: Int64Matrix, chosen: Index, longs: Int64Matrix, ints: Int32Matrix
) -> tuple[int, int, int]:
    """Parse the records of the chosen batches, one after the other, into columns.

    `longs` is int64[2, n] for offset and timestamp; `ints` is int32[6, n] for start and size of key, value and
    headers, where n is the chosen batches' counts together. Answers how many records stand in the columns, how many
    batches they come from, and the fault of the batch after those, or FINE.
    """
    done = 0
    for place in range(len(chosen)):
        batch = chosen[place]
        base_offset = headers[batch, BASE_OFFSET]
        base_timestamp = headers[batch, BASE_TIMESTAMP]
        max_timestamp = headers[batch, MAX_TIMESTAMP]
        append_time = (headers[batch, ATTRIBUTES] & APPEND_TIME) != 0
        position = headers[batch, PAYLOAD_START]
        payload_end = headers[batch, PAYLOAD_END]
        delta_max = headers[batch, LAST_OFFSET] - base_offset
        delta_before = -1
        for row in range(done, done + headers[batch, RECORD_COUNT]):
            length, position = _varint(buffer, position, payload_end, 5)
            if position < 0 or length < RECORD_BYTES_MIN - 1 or length > payload_end - position:
                return done, place, BAD_RECORD_LENGTH
            end = position + length
            # One byte of attributes, which no version uses.
            timestamp_delta, position = _varint(buffer, position + 1, end, 10)
            if position < 0:
                return done, place, BAD_FIELD
            delta, position = _varint(buffer, position, end, 5)
            if position < 0:
                return done, place, BAD_FIELD
            if delta <= delta_before or delta > delta_max:
                return done, place, BAD_RECORD_OFFSET
            delta_before = delta
            key_size, position = _varint(buffer, position, end, 5)
            if position < 0 or key_size < -1 or key_size > end - position:
                return done, place, BAD_KEY
            ints[0, row] = position
            ints[1, row] = key_size
            position += max(key_size, 0)
            value_size, position = _varint(buffer, position, end, 5)
            if position < 0 or value_size < -1 or value_size > end - position:
                return done, place, BAD_VALUE
            ints[2, row] = position
            ints[3, row] = value_size
            position += max(value_size, 0)
            headers_start = position
            position = _headers_end(buffer, position, end)
            if position < 0:
                return done, place, BAD_HEADERS
            if position != end:
                return done, place, BAD_RECORD_END
            ints[4, row] = headers_start
            ints[5, row] = end - headers_start
            longs[0, row] = base_offset + delta
            longs[1, row] = max_timestamp if append_time else base_timestamp + timestamp_delta
        if position != payload_end:
            return done, place, BAD_PAYLOAD_END
        done += headers[batch, RECORD_COUNT]
    return done, len(chosen), FINE


# What a running batch is, as the writing kernel sees it.
POSITION, COUNT, FIRST_TIMESTAMP, LAST_TIMESTAMP, NEEDED_BYTES = 0, 1, 2, 3, 4
STATE_FIELDS = 5

# Why the writing kernel stopped.
WRITTEN, NEEDS_ROOM, BATCH_FULL, RECORD_TOO_LARGE, OUT_OF_BUFFER = 0, 1, 2, 3, 4


@borrowing_kernel
def _varint_size(value: int) -> int:
    rest = (value << 1) ^ (value >> 63)
    size = 1
    while rest & ~0x7F:
        # Shifted without its sign: the deltas of far-apart timestamps take all 64 bits.
        rest = (rest >> 7) & 0x01FFFFFFFFFFFFFF
        size += 1
    return size


@borrowing_kernel
def _write_varint(target: Bytes, position: int, value: int) -> int:
    rest = (value << 1) ^ (value >> 63)
    while rest & ~0x7F:
        target[position] = (rest & 0x7F) | 0x80
        rest = (rest >> 7) & 0x01FFFFFFFFFFFFFF
        position += 1
    target[position] = rest
    return position + 1


@borrowing_kernel
def _write_bytes(target: Bytes, position: int, source: Bytes, start: int, size: int) -> int:
    # Both are true whenever there is something to copy. Said aloud, they spare the compiler the handling of negative
    # positions for each byte, and let it copy in vectors: 90 bytes in 4 ns instead of 57.
    if position >= 0 and start >= 0:
        for i in range(size):
            target[position + i] = source[start + i]
    return position + max(size, 0)


@borrowing_kernel
def _within(buffer: Bytes, start: int, size: int) -> bool:
    return size <= 0 or (start >= 0 and start <= len(buffer) - size)


@borrowing_kernel
def write_records(
    target: Bytes,
    state: Int64s,
    batch_bytes_max: int,
    rows: Index,
    first: int,
    timestamp: Int64s,
    key: Bytes,
    key_start: Int32s,
    key_size: Int32s,
    value: Bytes,
    value_start: Int32s,
    value_size: Int32s,
    headers: Bytes,
    headers_start: Int32s,
    headers_size: Int32s,
) -> tuple[int, int]:
    """Append the rows from `rows[first]` on to the batch in `target`, whose `state` is brought up to date.

    Answers how many of `rows` are written now, and why it stopped there. `state[NEEDED_BYTES]` is then the size
    that `target` must have for the next record.
    """
    position = state[POSITION]
    count = state[COUNT]
    for place in range(first, len(rows)):
        row = rows[place]
        if row < 0 or row >= len(timestamp):
            return place, OUT_OF_BUFFER
        key_bytes = max(key_size[row], -1)
        value_bytes = max(value_size[row], -1)
        headers_bytes = max(headers_size[row], 0)
        if not (
            _within(key, key_start[row], key_bytes)
            and _within(value, value_start[row], value_bytes)
            and _within(headers, headers_start[row], headers_bytes)
        ):
            return place, OUT_OF_BUFFER
        timestamp_delta = timestamp[row] - state[FIRST_TIMESTAMP] if count > 0 else 0
        # A section of no bytes at all means no headers; on the wire that is a count of 0, which takes one.
        length = 1 + _varint_size(timestamp_delta) + _varint_size(count) + max(headers_bytes, 1)
        length += _varint_size(key_bytes) + max(key_bytes, 0) + _varint_size(value_bytes) + max(value_bytes, 0)
        end = position + _varint_size(length) + length
        if end > batch_bytes_max:
            return place, BATCH_FULL if count > 0 else RECORD_TOO_LARGE
        if end > len(target):
            state[NEEDED_BYTES] = end
            return place, NEEDS_ROOM
        position = _write_varint(target, position, length)
        target[position] = 0
        position = _write_varint(target, position + 1, timestamp_delta)
        position = _write_varint(target, position, count)
        position = _write_varint(target, position, key_bytes)
        position = _write_bytes(target, position, key, key_start[row], key_bytes)
        position = _write_varint(target, position, value_bytes)
        position = _write_bytes(target, position, value, value_start[row], value_bytes)
        if headers_bytes > 0:
            position = _write_bytes(target, position, headers, headers_start[row], headers_bytes)
        else:
            target[position] = 0
            position += 1
        if count == 0:
            state[FIRST_TIMESTAMP] = timestamp[row]
        if count == 0 or timestamp[row] > state[LAST_TIMESTAMP]:
            state[LAST_TIMESTAMP] = timestamp[row]
        count += 1
        state[POSITION] = position
        state[COUNT] = count
    return len(rows), WRITTEN
