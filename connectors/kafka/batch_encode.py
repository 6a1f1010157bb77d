"""Columns to record batches.

A builder takes records for one partition as the stages yield them and writes them into the running batch at once;
what only the commit knows (producer id, epoch, sequence) is stamped into the header then. So at a commit there is
nothing left to do per record.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import overload

import numpy as np
from crc32c import crc32c

from millstream.connectors.kafka.batch_kernels import (
    BATCH_FULL,
    COUNT,
    CRC_END,
    FIRST_TIMESTAMP,
    HEADER_BYTES,
    LAST_TIMESTAMP,
    LENGTH_END,
    MAGIC,
    NEEDED_BYTES,
    NEEDS_ROOM,
    OUT_OF_BUFFER,
    POSITION,
    RECORD_TOO_LARGE,
    STATE_FIELDS,
    TRANSACTIONAL,
    WRITTEN,
    write_records,
)
from millstream.connectors.kafka.compression import Compression, compress
from millstream.processor.columns import Bytes, Index, Int32s, Int64s, OutputRecords, Slices
from millstream.processor.errors import RecordTooLargeError

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC = struct.Struct(">I")
_CRC_START = CRC_END - _CRC.size
_BASE_OFFSET = 0  # the broker sets it
_NO_LEADER_EPOCH = -1

_FIRST_BUFFER_BYTES = 4096
_BUFFER_BYTES_MAX = int(np.iinfo(np.int32).max)


Sizes = Int32s | Int64s


@overload
def record_bytes(key_size: int, value_size: int, headers_size: int) -> int: ...
@overload
def record_bytes(key_size: Sizes, value_size: Sizes, headers_size: Sizes) -> Int64s: ...
def record_bytes(key_size: int | Sizes, value_size: int | Sizes, headers_size: int | Sizes) -> int | Int64s:
    """The exact size of an unpacked batch that holds one record, for one record or for arrays of them.

    A size of -1 is null. `headers_size` includes the count of headers, as the columns do.
    """
    key, value, headers = (np.asarray(size, np.int64) for size in (key_size, value_size, headers_size))
    fixed = 3  # attributes, timestamp delta 0, offset delta 0
    body = fixed + _sized_bytes(key) + _sized_bytes(value) + np.maximum(headers, 1)
    total = HEADER_BYTES + _varint_bytes(body) + body
    return total if total.ndim else int(total)


def _sized_bytes(size: Int64s) -> Int64s:
    return _varint_bytes(size) + np.maximum(size, 0)


def _varint_bytes(number: Int64s) -> Int64s:
    """How many bytes the zigzag varint of a number from -1 to 2^31 - 1 takes."""
    return np.searchsorted(_VARINT_STEPS, number, side="right").astype(np.int64) + 1


# The smallest numbers that take another byte: one bit of each varint is the sign, seven come with each byte.
_VARINT_STEPS = np.array([1 << 6, 1 << 13, 1 << 20, 1 << 27], np.int64)


class BatchBuilder:
    """Collects the records for one partition into batches of at most `batch_bytes_max` bytes each.

    The bound counts the records before they are packed, so that no batch can pass the topic's `max.message.bytes`
    whatever its records do when they are packed.
    """

    def __init__(self, *, batch_bytes_max: int, compression: Compression = Compression.NONE) -> None:
        if not HEADER_BYTES < batch_bytes_max <= _BUFFER_BYTES_MAX:
            raise ValueError(f"batch_bytes_max is {batch_bytes_max}; set {HEADER_BYTES + 1} to {_BUFFER_BYTES_MAX}")
        self._batch_bytes_max = batch_bytes_max
        self._compression = compression
        self._first_buffer_bytes = min(_FIRST_BUFFER_BYTES, batch_bytes_max)
        self._finished: list[SealedBatch] = []
        self._running: Bytes
        self._state: Int64s
        self._open_batch()

    @property
    def record_count(self) -> int:
        """The records that were appended since the last `seal`."""
        return int(self._state[COUNT]) + sum(batch.record_count for batch in self._finished)

    @property
    def byte_count(self) -> int:
        """The bytes of all batches, finished ones as they will be sent; 0 without records."""
        running = int(self._state[POSITION]) if self._state[COUNT] else 0
        return running + sum(batch.byte_count for batch in self._finished)

    def append(self, out: OutputRecords, rows: Index) -> None:
        """Write the chosen rows of `out`, in the order of `rows`; all of them, or none if this raises.

        Raises RecordTooLargeError for a record that no batch can hold, and ValueError for rows that are not there
        or point outside their buffer.
        """
        finished_before = len(self._finished)
        running_before = self._running
        state_before = self._state.copy()
        try:
            self._write(out, rows)
        except BaseException:
            # What was written since lies behind the old position, in this buffer or in others.
            del self._finished[finished_before:]
            self._running, self._state = running_before, state_before
            raise

    def seal(self) -> list[SealedBatch]:
        """All records since the last call as batches, in order. The builder is then empty and can be used again."""
        self._finish_batch()
        finished, self._finished = self._finished, []
        return finished

    def _write(self, out: OutputRecords, rows: Index) -> None:
        rows = np.ascontiguousarray(rows, np.int64)
        columns = (
            np.ascontiguousarray(out.timestamp, np.int64),
            *_column(out.key),
            *_column(out.value),
            *_column(out.headers),
        )
        done = 0
        while True:
            done, outcome = write_records(self._running, self._state, self._batch_bytes_max, rows, done, *columns)
            if outcome == WRITTEN:
                return
            if outcome == NEEDS_ROOM:
                self._grow(int(self._state[NEEDED_BYTES]))
            elif outcome == BATCH_FULL:
                self._finish_batch()
            else:
                raise _write_error(outcome, out, int(rows[done]), self._batch_bytes_max)

    def _grow(self, needed_bytes: int) -> None:
        room = min(max(needed_bytes, 2 * len(self._running)), self._batch_bytes_max)
        position = int(self._state[POSITION])
        grown = np.empty(room, np.uint8)
        grown[:position] = self._running[:position]
        self._running = grown

    def _open_batch(self) -> None:
        self._running = np.empty(self._first_buffer_bytes, np.uint8)
        self._state = np.zeros(STATE_FIELDS, np.int64)
        self._state[POSITION] = HEADER_BYTES

    def _finish_batch(self) -> None:
        state = self._state
        if not state[COUNT]:
            return
        whole = self._running[: state[POSITION]]
        wire, compression = _packed(whole, self._compression)
        self._finished.append(
            SealedBatch(
                record_count=int(state[COUNT]),
                first_timestamp=int(state[FIRST_TIMESTAMP]),
                last_timestamp=int(state[LAST_TIMESTAMP]),
                compression=compression,
                _wire=wire,
            )
        )
        # The next batch is probably about as large; after a single large one, the buffers of small ones shrink again.
        self._first_buffer_bytes = min(len(self._running), max(_FIRST_BUFFER_BYTES, 2 * len(whole)))
        self._open_batch()


def _column(slices: Slices) -> tuple[Bytes, Int32s, Int32s]:
    """The arrays of a column in the one form that the kernel is compiled for."""
    buffer = slices.buffer
    if buffer.flags.writeable:
        buffer = buffer.view()
        buffer.flags.writeable = False
    return (
        np.ascontiguousarray(buffer),
        np.ascontiguousarray(slices.start, np.int32),
        np.ascontiguousarray(slices.size, np.int32),
    )


def _write_error(outcome: int, out: OutputRecords, row: int, batch_bytes_max: int) -> Exception:
    if outcome == RECORD_TOO_LARGE:
        size = record_bytes(int(out.key.size[row]), int(out.value.size[row]), int(out.headers.size[row]))
        return RecordTooLargeError(
            f"a record for topic {out.topic} takes {size} bytes; a batch there may have {batch_bytes_max} "
            f"(raise the topic's max.message.bytes, or write smaller records)"
        )
    assert outcome == OUT_OF_BUFFER, outcome
    return ValueError(f"row {row} of {len(out)} for topic {out.topic} is not there or points outside its buffer")


def _packed(batch: Bytes, kind: Compression) -> tuple[Bytes, Compression]:
    """The batch with its records packed, or as it is where packing would not make it smaller."""
    if kind is Compression.NONE:
        return batch, kind
    packed = compress(kind, batch[HEADER_BYTES:].data)
    if len(packed) >= len(batch) - HEADER_BYTES:
        return batch, Compression.NONE
    wire = np.empty(HEADER_BYTES + len(packed), np.uint8)
    wire[HEADER_BYTES:] = np.frombuffer(packed, np.uint8)
    return wire, kind


@dataclass(slots=True)
class SealedBatch:
    """A batch that is complete but for who sends it."""

    record_count: int
    first_timestamp: int
    last_timestamp: int
    compression: Compression
    _wire: Bytes = field(repr=False)
    _stamp: tuple[int, int, int, bool] | None = field(default=None, repr=False)

    @property
    def byte_count(self) -> int:
        """The size of the batch as it will be sent."""
        return len(self._wire)

    def stamped(self, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool) -> memoryview:
        """The batch as it is sent, read-only.

        The same stamp gives the same bytes each time. Another stamp leaves earlier answers as they are.
        """
        stamp = (producer_id, producer_epoch, base_sequence, transactional)
        if self._stamp != stamp:
            if self._stamp is not None:
                self._wire = self._wire.copy()
            self._write_header(producer_id, producer_epoch, base_sequence, transactional)
            self._stamp = stamp
        return self._wire.data.toreadonly()

    def _write_header(self, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool) -> None:
        whole = self._wire.data
        _HEADER.pack_into(
            whole,
            0,
            _BASE_OFFSET,
            len(whole) - LENGTH_END,
            _NO_LEADER_EPOCH,
            MAGIC,
            0,
            self.compression | (TRANSACTIONAL if transactional else 0),
            self.record_count - 1,
            self.first_timestamp,
            self.last_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            self.record_count,
        )
        _CRC.pack_into(whole, _CRC_START, crc32c(whole[CRC_END:]))
