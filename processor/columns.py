"""Records as columns: many records, a few arrays, no Python object per record.

`Slices` is a column of byte strings: one shared buffer, and for each row where its bytes start and how many
there are. Null (size -1) and empty (size 0) are different things, as they are in Kafka.

`Records` is what a source yields and what stages work on; `OutputRecords` is what a sink is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millstream.processor.kernels import borrowing_kernel
from millstream.processor.partitions import TopicPartition

Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Index = npt.NDArray[np.int64]

NULL_SIZE = -1
NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True)
class Slices:
    """A column of byte strings that point into one buffer.

    `buffer` is uint8[*]; `start` and `size` are int32[n]. `size[i] == -1` is null; `start[i]` then means nothing.
    Rows may overlap, repeat, or leave parts of the buffer unused.
    """

    buffer: Bytes
    start: Int32s
    size: Int32s

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, row: int) -> bytes | None:
        """The bytes of one row, copied; None for null. Raises IndexError as a list would."""
        size = int(self.size[row])
        if size < 0:
            return None
        start = int(self.start[row])
        return self.buffer[start : start + size].tobytes()

    def take(self, rows: Index | Bools) -> Slices:
        """The chosen rows (positions or a mask), over the same buffer."""
        return Slices(self.buffer, self.start[rows], self.size[rows])

    def to_list(self) -> list[bytes | None]:
        """Every row as bytes or None."""
        whole = self.buffer.data
        return [
            None if size < 0 else bytes(whole[start : start + size])
            for start, size in zip(self.start.tolist(), self.size.tolist(), strict=True)
        ]

    @property
    def byte_count(self) -> int:
        """The bytes of all rows together."""
        return int(np.maximum(self.size, 0).sum(dtype=np.int64))

    def gathered(self, separator: bytes = b"") -> Slices:
        """The same rows, copied one after the other into a new buffer, each followed by `separator`.

        Null rows take no bytes but their separator does follow. With `separator=b"\\n"` the buffer is what
        `msgspec`'s `decode_lines` reads.
        """
        starts, total = _gather_layout(self.size, len(separator))
        buffer = np.empty(total, np.uint8)
        _gather(self.buffer, self.start, self.size, np.frombuffer(separator, np.uint8), starts, buffer)
        return Slices(buffer, starts, self.size)

    @staticmethod
    def from_list(values: Sequence[bytes | None]) -> Slices:
        """One row for each value. Raises OverflowError where all together pass 2 GiB."""
        try:
            # Mostly there is no null, and then C alone walks over the values, in about an eighth of the time.
            size = np.fromiter(map(len, values), np.int32, len(values))  # type: ignore[arg-type]
            joined = b"".join(values)  # type: ignore[arg-type]
        except TypeError:
            size = np.fromiter((NULL_SIZE if v is None else len(v) for v in values), np.int32, len(values))
            joined = b"".join(filter(None, values))
        buffer = np.frombuffer(joined, np.uint8)
        return Slices.back_to_back(buffer, size)

    @staticmethod
    def back_to_back(buffer: Bytes, size: Int32s) -> Slices:
        """Rows that fill `buffer` one after the other; null rows take nothing."""
        starts, total = _gather_layout(size, 0)
        if total != len(buffer):
            raise ValueError(f"sizes add up to {total} bytes; the buffer has {len(buffer)}")
        return Slices(buffer, starts, size)

    @staticmethod
    def repeated(value: bytes | None, count: int) -> Slices:
        """The same value in `count` rows."""
        buffer = np.frombuffer(value or b"", np.uint8)
        size = NULL_SIZE if value is None else len(value)
        return Slices(buffer, np.zeros(count, np.int32), np.full(count, size, np.int32))

    @staticmethod
    def concatenated(parts: Sequence[Slices]) -> Slices:
        """All rows of all parts, in order. Buffers are copied unless every part shares one."""
        first = parts[0].buffer
        if all(part.buffer is first for part in parts):
            return Slices(first, np.concatenate([p.start for p in parts]), np.concatenate([p.size for p in parts]))
        lengths = [len(part.buffer) for part in parts]
        if sum(lengths) > np.iinfo(np.int32).max:
            raise OverflowError(f"{sum(lengths)} bytes do not fit into one column (2 GiB at most)")
        shifts = np.cumsum([0, *lengths[:-1]]).astype(np.int32)
        return Slices(
            np.concatenate([part.buffer for part in parts]),
            np.concatenate([part.start + shift for part, shift in zip(parts, shifts, strict=True)]),
            np.concatenate([part.size for part in parts]),
        )


def _gather_layout(size: Int32s, separator_size: int) -> tuple[Int32s, int]:
    taken = np.maximum(size, 0).astype(np.int64) + separator_size
    ends = np.cumsum(taken)
    total = int(ends[-1]) if len(ends) else 0
    if total > np.iinfo(np.int32).max:
        raise OverflowError(f"{total} bytes do not fit into one column (2 GiB at most)")
    return (ends - taken).astype(np.int32), total


@borrowing_kernel
def _gather(source: Bytes, start: Int32s, size: Int32s, separator: Bytes, target_start: Int32s, target: Bytes) -> None:
    for row in range(len(start)):
        position = target_start[row]
        first = start[row]
        count = max(size[row], 0)
        # Both are true whenever there is something to copy. Said aloud, they spare the compiler the handling of
        # negative positions for each byte, and let it copy in vectors.
        if position >= 0 and first >= 0:
            for i in range(count):
                target[position + i] = source[first + i]
        position += count
        for i in range(len(separator)):
            target[position + i] = separator[i]


@dataclass(frozen=True, slots=True)
class Records:
    """A batch of n records read from Kafka, in the order in which they stand in each partition.

    `origins[origin[i]]` is the partition that row i was read from, at `offset[i]`. `timestamp` is in milliseconds,
    -1 for none. A row of `headers` is the header section as it stands in a record batch: a varint count, then the
    headers; it is never null.
    """

    origins: tuple[TopicPartition, ...]
    origin: Int32s
    offset: Int64s
    timestamp: Int64s
    key: Slices
    value: Slices
    headers: Slices

    def __len__(self) -> int:
        return len(self.offset)

    def take(self, rows: Index | Bools) -> Records:
        """The chosen rows (positions or a mask)."""
        return Records(
            self.origins,
            self.origin[rows],
            self.offset[rows],
            self.timestamp[rows],
            self.key.take(rows),
            self.value.take(rows),
            self.headers.take(rows),
        )

    @staticmethod
    def concatenated(parts: Sequence[Records]) -> Records:
        """All records of all parts, in order; each part may come from other partitions."""
        if len(parts) == 1:
            return parts[0]
        origins = list(dict.fromkeys(origin for part in parts for origin in part.origins))
        place = {origin: i for i, origin in enumerate(origins)}
        renumbered = [np.array([place[o] for o in part.origins], np.int32)[part.origin] for part in parts]
        return Records(
            tuple(origins),
            np.concatenate(renumbered),
            np.concatenate([p.offset for p in parts]),
            np.concatenate([p.timestamp for p in parts]),
            *_concatenated_slices(parts),
        )


def _concatenated_slices(parts: Sequence[Records]) -> tuple[Slices, Slices, Slices]:
    """Keys, values and headers as they were read share one buffer; it is copied once, not three times."""
    if not all(p.key.buffer is p.value.buffer is p.headers.buffer for p in parts):
        return (
            Slices.concatenated([p.key for p in parts]),
            Slices.concatenated([p.value for p in parts]),
            Slices.concatenated([p.headers for p in parts]),
        )
    value = Slices.concatenated([p.value for p in parts])
    one_buffer = value.buffer is parts[0].value.buffer
    shifts = np.cumsum([0, *(0 if one_buffer else len(p.value.buffer) for p in parts[:-1])]).astype(np.int32)
    key = _shifted([p.key for p in parts], shifts, value.buffer)
    headers = _shifted([p.headers for p in parts], shifts, value.buffer)
    return key, value, headers


def _shifted(parts: Sequence[Slices], shifts: Iterable[np.int32], buffer: Bytes) -> Slices:
    return Slices(
        buffer,
        np.concatenate([part.start + shift for part, shift in zip(parts, shifts, strict=True)]),
        np.concatenate([part.size for part in parts]),
    )


@dataclass(frozen=True, slots=True)
class OutputRecords:
    """n records for one output topic, in the order in which they are to be written.

    `unkeyed_partition` places a record whose key is null: it goes to `unkeyed_partition[i] mod partitions`, so that
    records without a key stay in the order of their input partition. Records with a key are placed by murmur2, as
    Java clients do. `source` is the row of the batch that each record came from.
    """

    topic: str
    key: Slices
    value: Slices
    headers: Slices
    timestamp: Int64s
    unkeyed_partition: Int32s
    source: Int32s

    def __len__(self) -> int:
        return len(self.timestamp)

    def take(self, rows: Index | Bools) -> OutputRecords:
        """The chosen rows (positions or a mask)."""
        return OutputRecords(
            self.topic,
            self.key.take(rows),
            self.value.take(rows),
            self.headers.take(rows),
            self.timestamp[rows],
            self.unkeyed_partition[rows],
            self.source[rows],
        )
