"""Fetched bytes to columns.

A fetch response holds whole record batches, one after the other, and perhaps the beginning of another one. One
kernel walks their headers, Python checks each batch's CRC and unpacks what is packed, one kernel parses the records
of all of them. The columns point into the fetched bytes themselves, unless something had to be unpacked.

A batch is decoded as a whole or not at all: the first one that is damaged ends it, and everything before it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c

from millstream.connectors.kafka.aborted import aborted_batches
from millstream.connectors.kafka.arena import Arena, ArenaFullError
from millstream.connectors.kafka.batch_kernels import (
    ATTRIBUTES,
    BAD_COUNT,
    BASE_OFFSET,
    COMPRESSION_BITS,
    CONTROL,
    CRC,
    CRC_END,
    END,
    FAULTS,
    FINE,
    HEADER_COLUMNS,
    LAST_OFFSET,
    PAYLOAD_END,
    PAYLOAD_START,
    RECORD_BYTES_MIN,
    RECORD_COUNT,
    START,
    Int32Matrix,
    Int64Matrix,
    count_batches,
    parse_records,
    walk_batches,
)
from millstream.connectors.kafka.compression import Compression, DecompressionError, first_room
from millstream.processor.columns import Bools, Bytes, Index, Int64s, Records, Slices
from millstream.processor.errors import CorruptBatchError
from millstream.processor.partitions import TopicPartition

BATCH_BYTES_MAX = 64 * 1024 * 1024

# Columns hold positions as int32.
_BUFFER_BYTES_MAX = int(np.iinfo(np.int32).max)

# A control record's key is its version and its type, int16 each. The other type is 1, a commit.
_CONTROL_KEY_BYTES = 4
_ABORT = 0


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """What one partition's part of a fetch response holds.

    `records` are the user's: at or after the offset that was asked for, not aborted, no control records. Their keys,
    values and headers share one read-only buffer. `next_offset` is where to fetch next, also when nothing was for the
    user; it is the offset asked for when there was no complete batch. `corrupt` is the first damaged batch: everything
    before it is in `records`, and `next_offset` does not pass it.
    """

    records: Records
    next_offset: int
    corrupt: CorruptBatchError | None


def decode_batches(
    data: bytes | bytearray | memoryview,
    partition: TopicPartition,
    *,
    fetch_offset: int,
    aborted: Sequence[tuple[int, int]] = (),
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> FetchedRecords:
    """Everything in `data`, which was fetched from `partition` at `fetch_offset`.

    `aborted` names the aborted transactions, each by producer id and first offset, as the response does; their
    records are left out. A batch larger than `batch_bytes_max`, as it stands or unpacked, counts as damaged. Where
    all batches together would unpack to more than that, decoding ends early and `next_offset` says where, so that a
    small response cannot fill the memory. `data` must stay as it is for as long as the records are in use.
    """
    response = _Response(data, fetch_offset, batch_bytes_max)
    response.check_crcs()
    chosen = response.unpack(response.choose_batches(aborted))
    longs, ints = response.parse(chosen)
    return response.result(partition, longs, ints)


def _records(partition: TopicPartition, buffer: Bytes, longs: Int64Matrix, ints: Int32Matrix) -> Records:
    return Records(
        origins=(partition,),
        origin=np.zeros(longs.shape[1], np.int32),
        offset=longs[0],
        timestamp=longs[1],
        key=Slices(buffer, ints[0], ints[1]),
        value=Slices(buffer, ints[2], ints[3]),
        headers=Slices(buffer, ints[4], ints[5]),
    )


def _read_only(buffer: Bytes) -> Bytes:
    """Fetched bytes are read-only by nature; kernels are compiled anew for buffers that differ in that."""
    buffer.flags.writeable = False
    return buffer


def _headers(buffer: Bytes, batch_bytes_max: int) -> tuple[Int64Matrix, int]:
    """The headers of all complete batches up to the first that is faulty, and its fault, or FINE."""
    headers = np.zeros((count_batches(buffer, batch_bytes_max), HEADER_COLUMNS), np.int64)
    count, fault = walk_batches(buffer, batch_bytes_max, headers)
    return headers[:count], fault


@dataclass(frozen=True, slots=True)
class _Damage:
    header: Int64s
    reason: str
    crc_holds: bool


class _Response:
    """A response while it is decoded. `headers` are those of the batches that have passed every check so far."""

    def __init__(self, data: bytes | bytearray | memoryview, fetch_offset: int, batch_bytes_max: int) -> None:
        self._view = memoryview(data)[:_BUFFER_BYTES_MAX]
        self._fetch_offset = fetch_offset
        self._batch_bytes_max = batch_bytes_max
        self.buffer = _read_only(np.frombuffer(self._view, np.uint8))
        self.headers, self._header_fault = _headers(self.buffer, batch_bytes_max)
        self._damage: _Damage | None = None

    def check_crcs(self) -> None:
        """End before the first batch whose CRC or header is wrong.

        A header may be wrong because its bytes are damaged; then the CRC is the reason to give.
        """
        for row, (start, end, crc) in enumerate(self.headers[:, [START, END, CRC]].tolist()):
            if end > start and crc32c(self._view[start + CRC_END : end]) != crc:
                self._end_before(row, "its CRC does not match its bytes", crc_holds=False)
                return
        if self._header_fault != FINE:
            self._end_before(len(self.headers) - 1, FAULTS[self._header_fault])

    def choose_batches(self, aborted: Sequence[tuple[int, int]]) -> Index:
        """The rows of the batches that hold records for the user."""
        # Reading the markers may end before one that is damaged, so it comes first.
        markers = self._abort_markers() if aborted else None
        headers = self.headers
        wanted = (headers[:, LAST_OFFSET] >= self._fetch_offset) & (headers[:, RECORD_COUNT] > 0)
        wanted &= (headers[:, ATTRIBUTES] & CONTROL) == 0
        if markers is not None:
            wanted &= ~aborted_batches(headers, markers, aborted)
        return np.flatnonzero(wanted)

    def _abort_markers(self) -> Bools:
        """True for each control batch that aborts a transaction; ends before the first that cannot be read."""
        attributes = self.headers[:, ATTRIBUTES]
        rows = np.flatnonzero(((attributes & CONTROL) != 0) & (self.headers[:, RECORD_COUNT] > 0))
        packed = rows[(attributes[rows] & COMPRESSION_BITS) != 0]
        if len(packed):
            self._end_before(int(packed[0]), "it is a packed control batch, which no broker writes")
            rows = self._still_good(rows)
        _, ints = self.parse(rows)
        rows = self._still_good(rows)
        counts = self.headers[rows, RECORD_COUNT]
        first_records = np.cumsum(counts) - counts
        start, size = ints[0, first_records], ints[1, first_records]
        short = np.flatnonzero(size < _CONTROL_KEY_BYTES)
        if len(short):
            self._end_before(int(rows[short[0]]), "it is a control batch without a type")
            rows, start = rows[: short[0]], start[: short[0]]
        markers = np.zeros(len(self.headers), np.bool_)
        markers[rows] = (self.buffer[start + 2] == 0) & (self.buffer[start + 3] == _ABORT)
        return markers

    def unpack(self, chosen: Index) -> Index:
        """Bring the payloads of the chosen batches into one buffer, if any of them is packed.

        Ends before the first that is damaged or finds no room. Answers the chosen rows that are left.
        """
        if not np.any(self.headers[chosen, ATTRIBUTES] & COMPRESSION_BITS):
            return chosen
        payload_bytes = int((self.headers[chosen, PAYLOAD_END] - self.headers[chosen, PAYLOAD_START]).sum())
        arena = Arena(bytes_expected=first_room(payload_bytes, self._batch_bytes_max), bytes_max=self._batch_bytes_max)
        columns = self.headers[chosen][:, [ATTRIBUTES, PAYLOAD_START, PAYLOAD_END, RECORD_COUNT]].tolist()
        for row, (attributes, start, end, count) in zip(chosen.tolist(), columns, strict=True):
            try:
                enclosed = arena.add(Compression(attributes & COMPRESSION_BITS), self._view[start:end])
            except ArenaFullError:
                # Not its fault: the next fetch begins with it.
                self.headers, self._damage = self.headers[:row], None
                break
            except DecompressionError as error:
                self._end_before(row, str(error))
                break
            if count * RECORD_BYTES_MIN > enclosed[1] - enclosed[0]:
                self._end_before(row, FAULTS[BAD_COUNT])
                break
            self.headers[row, [PAYLOAD_START, PAYLOAD_END]] = enclosed
        self.buffer = _read_only(arena.used)
        return self._still_good(chosen)

    def parse(self, rows: Index) -> tuple[Int64Matrix, Int32Matrix]:
        """The records of these batches as columns, see `parse_records`; ends before the first that is damaged."""
        count = int(self.headers[rows, RECORD_COUNT].sum())
        longs, ints = np.empty((2, count), np.int64), np.empty((6, count), np.int32)
        done, batches, fault = parse_records(self.buffer, self.headers, rows, longs, ints)
        if fault != FINE:
            self._end_before(int(rows[batches]), FAULTS[fault])
        return longs[:, :done], ints[:, :done]

    def result(self, partition: TopicPartition, longs: Int64Matrix, ints: Int32Matrix) -> FetchedRecords:
        """What the parsed columns and the checks come to."""
        # Offsets only grow, so the records before the one that was asked for stand at the beginning.
        early = int(np.searchsorted(longs[0], self._fetch_offset))
        next_offset = int(self.headers[-1, LAST_OFFSET]) + 1 if len(self.headers) else self._fetch_offset
        return FetchedRecords(
            _records(partition, self.buffer, longs[:, early:], ints[:, early:]),
            max(next_offset, self._fetch_offset),
            None if self._damage is None else self._corrupt_batch(self._damage),
        )

    def _end_before(self, row: int, reason: str, *, crc_holds: bool = True) -> None:
        self._damage = _Damage(self.headers[row], reason, crc_holds)
        self.headers = self.headers[:row]

    def _still_good(self, rows: Index) -> Index:
        return rows[rows < len(self.headers)]

    def _corrupt_batch(self, damage: _Damage) -> CorruptBatchError:
        next_offset = self._offset_after(damage)
        if next_offset is not None and next_offset <= self._fetch_offset:
            next_offset = None
        return CorruptBatchError(damage.reason, base_offset=int(damage.header[BASE_OFFSET]), next_offset=next_offset)

    def _offset_after(self, damage: _Damage) -> int | None:
        """Where reading may go on after a damaged batch, or None where its header cannot be trusted to say so.

        A wrong CRC may come from the very field that holds the last offset, and a jump too far would lose records. So
        the next batch is asked first; without one, count and last offset must agree.
        """
        header = damage.header
        if header[END] == header[START]:
            return None
        if not damage.crc_holds:
            following = self._sound_offset_at(int(header[END]))
            if following is not None:
                return following
            if header[RECORD_COUNT] != header[LAST_OFFSET] - header[BASE_OFFSET] + 1:
                return None
        return int(header[LAST_OFFSET]) + 1

    def _sound_offset_at(self, position: int) -> int | None:
        """The base offset of the batch at `position`, if it is complete and intact."""
        rest = self._view[position:]
        headers, fault = _headers(_read_only(np.frombuffer(rest, np.uint8)), self._batch_bytes_max)
        if len(headers) == (0 if fault == FINE else 1):
            return None
        return int(headers[0, BASE_OFFSET]) if crc32c(rest[CRC_END : headers[0, END]]) == headers[0, CRC] else None
