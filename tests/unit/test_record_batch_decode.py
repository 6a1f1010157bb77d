"""Fetched bytes become exactly the records that were written."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from batch_making import APPEND_TIME, PARTITION, Row, batch, expected, marker, numbered, rows_of, with_base_offset
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.connectors.kafka.compression import Compression
from millstream.connectors.kafka.record_batch import FetchedRecords, decode_batches
from millstream.processor.columns import Records

HEADERS: tuple[tuple[str, bytes | None], ...] = (("trace", b"\x00\xff"), ("", None), ("ключ", b""), ("trace", b"again"))
ROWS = numbered(
    [
        Row(),
        Row(key=None),
        Row(key=b"", value=b""),
        Row(value=None),
        Row(key=None, value=None, headers=HEADERS),
        Row(timestamp=1_600_000_000_000),
        Row(timestamp=1_800_000_000_000, value=b"v" * 70_000),
        Row(key=b"k" * 64, headers=HEADERS[:1]),
    ]
)


def decode(data: bytes | memoryview, fetch_offset: int = 0) -> FetchedRecords:
    fetched = decode_batches(data, PARTITION, fetch_offset=fetch_offset)
    assert fetched.corrupt is None
    return fetched


def written_by_aiokafka(rows: list[Row], compression: Compression, *, transactional: bool = False) -> bytes:
    builder = DefaultRecordBatchBuilder(2, compression, int(transactional), 7, 1, 0, 1 << 30)
    for row in rows:
        assert builder.append(row.delta, row.timestamp, row.key, row.value, list(row.headers)) is not None
    return bytes(builder.build())


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("transactional", [False, True])
def test_what_aiokafka_writes_is_read(compression: Compression, transactional: bool) -> None:
    data = written_by_aiokafka(ROWS, compression, transactional=transactional)

    fetched = decode(with_base_offset(data, 1000), 1000)

    assert rows_of(fetched) == expected(ROWS, 1000)
    assert fetched.next_offset == 1000 + len(ROWS)


rows = st.lists(
    st.builds(
        Row,
        timestamp=st.just(-1) | st.integers(0, 2**62),
        key=st.none() | st.binary(max_size=80),
        value=st.none() | st.binary(max_size=300),
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
).map(numbered)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(rows, st.sampled_from(Compression)), max_size=4))
def test_any_batches_one_after_the_other_are_read_back(batches: list[tuple[list[Row], Compression]]) -> None:
    data, wanted, offset = b"", [], 50
    for batch_rows, compression in batches:
        data += batch(batch_rows, base_offset=offset, compression=compression)
        wanted += expected(batch_rows, offset)
        offset += len(batch_rows)

    fetched = decode(data, 50)

    assert rows_of(fetched) == wanted
    assert fetched.next_offset == offset


@pytest.mark.parametrize("compression", Compression)
def test_all_columns_share_one_read_only_buffer(compression: Compression) -> None:
    records = decode(batch(ROWS) + batch(ROWS, base_offset=100, compression=compression)).records

    assert records.key.buffer is records.value.buffer
    assert records.value.buffer is records.headers.buffer
    assert not records.key.buffer.flags.writeable
    assert records.origins == (PARTITION,)
    assert records.origin.tolist() == [0] * 2 * len(ROWS)


def test_columns_have_the_types_that_kernels_are_compiled_for() -> None:
    records = decode(batch(ROWS), 3).records

    for column in (records.key, records.value, records.headers):
        assert column.start.dtype == column.size.dtype == np.int32
        assert column.start.flags.c_contiguous
        assert column.size.flags.c_contiguous
    for numbers in (records.offset, records.timestamp):
        assert numbers.dtype == np.int64
        assert numbers.flags.c_contiguous


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_unpacked_batches_are_not_copied(wrap: type) -> None:
    data = wrap(batch(ROWS))

    records = decode(data).records

    assert np.shares_memory(records.value.buffer, np.frombuffer(data, np.uint8))


def test_records_before_the_offset_asked_for_are_dropped() -> None:
    data = batch(ROWS, base_offset=10) + batch(ROWS, base_offset=18)

    for fetch_offset in range(10, 27):
        fetched = decode(data, fetch_offset)
        assert [row[0] for row in rows_of(fetched)] == list(range(fetch_offset, 26))
        assert fetched.next_offset == 26


def test_nothing_fetched_leaves_the_offset_where_it_is() -> None:
    fetched = decode(b"", 42)

    assert fetched.next_offset == 42
    assert len(fetched.records) == 0


def test_batches_before_the_offset_asked_for_never_move_it_back() -> None:
    assert decode(batch(ROWS), 100).next_offset == 100


@pytest.mark.parametrize("compression", Compression)
def test_an_incomplete_batch_at_the_end_is_ignored_wherever_it_is_cut(compression: Compression) -> None:
    first = batch(ROWS[:4], compression=compression)
    second = batch(ROWS[:3], base_offset=4, compression=compression)
    data = first + second

    for end in range(len(data)):
        fetched = decode(data[:end])
        complete = end >= len(first)
        assert rows_of(fetched) == (expected(ROWS[:4]) if complete else [])
        assert fetched.next_offset == (4 if complete else 0)


def test_compaction_may_leave_gaps_and_take_the_last_record() -> None:
    kept = [Row(delta=2), Row(delta=3), Row(delta=9)]
    data = batch(kept, base_offset=100, last_delta=12) + batch([Row()], base_offset=200)

    fetched = decode(data, 100)

    assert [row[0] for row in rows_of(fetched)] == [102, 103, 109, 200]
    assert fetched.next_offset == 201


def test_a_batch_that_compaction_emptied_still_takes_its_offsets() -> None:
    fetched = decode(batch([], base_offset=5, last_delta=9), 5)

    assert len(fetched.records) == 0
    assert fetched.next_offset == 15


@pytest.mark.parametrize("compression", Compression)
def test_append_time_stands_in_every_record(compression: Compression) -> None:
    data = batch(ROWS, attributes=APPEND_TIME, max_timestamp=1234, compression=compression)

    assert decode(data).records.timestamp.tolist() == [1234] * len(ROWS)


def test_records_without_a_timestamp_have_none() -> None:
    data = batch(numbered([Row(timestamp=-1), Row(timestamp=-1)]))

    assert decode(data).records.timestamp.tolist() == [-1, -1]


def test_record_times_count_from_the_delete_horizon_where_that_stands_in_the_header() -> None:
    # Compaction writes the horizon where the base timestamp stood, and the records' deltas anew.
    horizon = 1 << 6

    assert decode(batch(ROWS, attributes=horizon)).records.timestamp.tolist() == [row.timestamp for row in ROWS]


def test_control_batches_take_offsets_and_yield_nothing() -> None:
    data = batch(ROWS[:2], producer_id=7, attributes=16) + marker(1, base_offset=2, producer_id=7)

    fetched = decode(data)

    assert rows_of(fetched) == expected(ROWS[:2])
    assert fetched.next_offset == 3


def test_thousands_of_tiny_batches_are_read() -> None:
    tiny = [Row(value=struct.pack(">q", i)) for i in range(3000)]

    fetched = decode(b"".join(batch([row], base_offset=i) for i, row in enumerate(tiny)))

    assert [row[3] for row in rows_of(fetched)] == [row.value for row in tiny]


def test_partitions_can_be_concatenated() -> None:
    parts = [decode(batch(ROWS)).records, decode(batch(ROWS, compression=Compression.ZSTD)).records]

    assert Records.concatenated(parts).value.to_list() == 2 * [row.value for row in ROWS]
