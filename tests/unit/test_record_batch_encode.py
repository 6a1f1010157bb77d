"""Records become batches that other clients read, within their bound, and the same bytes each time."""

from __future__ import annotations

import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from batch_making import PARTITION, Row, batch, built, expected, numbered, output, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.connectors.kafka.compression import Compression
from millstream.connectors.kafka.record_batch import BatchBuilder, SealedBatch, decode_batches, record_bytes
from millstream.processor.columns import OutputRecords, Slices
from millstream.processor.errors import RecordTooLargeError
from millstream.processor.headers import encode_headers

HEADERS: tuple[tuple[str, bytes | None], ...] = (("trace", b"\x00\xff"), ("", None), ("ключ", b""))
ROWS = numbered(
    [
        Row(),
        Row(key=None),
        Row(key=b"", value=b""),
        Row(value=None, headers=HEADERS),
        Row(timestamp=1_600_000_000_000),
        Row(timestamp=1_800_000_000_000, value=b"v" * 70_000),
        Row(timestamp=-1),
    ]
)
ALL = np.arange(len(ROWS))


def sealed(
    out: OutputRecords, rows: np.ndarray, *, batch_bytes_max: int = 1 << 20, compression: Compression = Compression.NONE
) -> list[SealedBatch]:
    builder = BatchBuilder(batch_bytes_max=batch_bytes_max, compression=compression)
    builder.append(out, rows)
    return builder.seal()


def stamped(batch: SealedBatch, base_sequence: int = 0) -> bytes:
    return bytes(batch.stamped(producer_id=4711, producer_epoch=3, base_sequence=base_sequence, transactional=True))


@pytest.mark.parametrize("compression", Compression)
def test_aiokafka_reads_what_is_written(compression: Compression) -> None:
    (whole,) = sealed(output(ROWS), ALL, compression=compression)

    memory = MemoryRecords(stamped(whole, base_sequence=12))
    read = memory.next_batch()
    assert isinstance(read, DefaultRecordBatch)
    assert read.validate_crc()
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (4711, 3, 12)
    assert read.is_transactional
    assert not read.is_control_batch
    assert read.compression_type == compression
    assert read.max_timestamp == 1_800_000_000_000
    assert read.next_offset == len(ROWS)
    records = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in read]
    assert records == [(r.delta, r.timestamp, r.key, r.value, r.headers) for r in ROWS]


def test_the_bytes_are_those_of_a_plain_writer() -> None:
    assert built(ROWS)[21:43] == batch(ROWS)[21:43]
    assert built(ROWS)[57:] == batch(ROWS)[57:]


text = st.text(max_size=5)
rows = st.lists(
    st.builds(
        Row,
        timestamp=st.just(-1) | st.integers(-(2**63), 2**63 - 1),
        key=st.none() | st.binary(max_size=80),
        value=st.none() | st.binary(max_size=300),
        headers=st.lists(st.tuples(text, st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=30,
).map(numbered)


@settings(max_examples=80, deadline=None)
@given(rows, st.integers(1000, 5000), st.sampled_from(Compression))
def test_any_records_come_back_as_they_were(rows: list[Row], batch_bytes_max: int, compression: Compression) -> None:
    data = built(rows, batch_bytes_max=batch_bytes_max, compression=compression)

    fetched = decode_batches(data, PARTITION, fetch_offset=0)

    assert fetched.corrupt is None
    assert rows_of(fetched) == expected(rows)


@settings(max_examples=50, deadline=None)
@given(rows, st.randoms(use_true_random=False), st.integers(1, 10))
def test_records_appended_piece_by_piece_are_written_in_that_order(rows: list[Row], random, step: int) -> None:
    order = random.sample(range(len(rows)), len(rows))
    builder = BatchBuilder(batch_bytes_max=2000)

    for start in range(0, len(order), step):
        builder.append(output(rows), np.array(order[start : start + step]))

    assert builder.record_count == len(rows)
    batches = builder.seal()
    keys = [row[2] for b in batches for row in rows_of(decode_batches(stamped(b), PARTITION, fetch_offset=0))]
    assert keys == [rows[i].key for i in order]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=60), st.integers(500, 900))
def test_batches_are_filled_up_to_their_bound_and_never_over_it(sizes: list[int], batch_bytes_max: int) -> None:
    records = numbered([Row(value=b"v" * size) for size in sizes])

    batches = sealed(output(records), np.arange(len(records)), batch_bytes_max=batch_bytes_max)

    assert sum(b.record_count for b in batches) == len(records)
    assert all(b.byte_count <= batch_bytes_max for b in batches)
    first_of_next = np.cumsum([b.record_count for b in batches])[:-1]
    for whole, following in zip(batches, first_of_next, strict=False):
        next_bytes = len(records[following].value or b"") + 15
        assert whole.byte_count + next_bytes > batch_bytes_max - 10


def test_a_record_that_just_fits_is_written_and_one_byte_more_is_refused() -> None:
    row = Row(value=b"v" * 100, headers=HEADERS)
    size = record_bytes(len(b"key"), 100, len(encode_headers(HEADERS)))

    (whole,) = sealed(output([row]), np.array([0]), batch_bytes_max=size)
    assert whole.byte_count == size == len(stamped(whole))
    with pytest.raises(RecordTooLargeError, match=f"{size} bytes.*{size - 1}.*max.message.bytes"):
        sealed(output([row]), np.array([0]), batch_bytes_max=size - 1)


@settings(max_examples=60, deadline=None)
@given(
    st.none() | st.integers(0, 9000).map(bytes),
    st.none() | st.integers(0, 2**21).map(bytes),
    st.lists(st.tuples(text, st.none() | st.binary(max_size=200)), max_size=3).map(tuple),
)
def test_record_bytes_is_the_exact_size(key: bytes | None, value: bytes | None, headers: tuple) -> None:
    (whole,) = sealed(output([Row(key=key, value=value, headers=headers)]), np.array([0]), batch_bytes_max=1 << 23)

    sizes = [-1 if key is None else len(key), -1 if value is None else len(value), len(encode_headers(headers))]
    assert record_bytes(*sizes) == whole.byte_count
    assert record_bytes(*(np.array([size], np.int32) for size in sizes)).tolist() == [whole.byte_count]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_a_record_too_large_leaves_the_builder_as_it_was(compression: Compression) -> None:
    builder = BatchBuilder(batch_bytes_max=1000, compression=compression)
    good = numbered([Row(value=b"good %d" % i * 20) for i in range(30)])
    builder.append(output(good), np.arange(7))
    before = (builder.record_count, builder.byte_count)
    with_bad = [*good[7:], Row(value=b"v" * 1000), *good]

    with pytest.raises(RecordTooLargeError):
        builder.append(output(with_bad), np.arange(len(with_bad)))

    assert (builder.record_count, builder.byte_count) == before
    builder.append(output(good), np.arange(7, 30))
    wires = [stamped(b) for b in builder.seal()]
    assert wires == [
        stamped(b) for b in sealed(output(good), np.arange(30), batch_bytes_max=1000, compression=compression)
    ]


def test_an_error_never_shows_what_the_record_holds() -> None:
    with pytest.raises(RecordTooLargeError) as caught:
        sealed(output([Row(key=b"secret", value=b"secret" * 100)]), np.array([0]), batch_bytes_max=200)

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("bad_row", [-1, len(ROWS)])
def test_rows_that_are_not_there_are_refused(bad_row: int) -> None:
    builder = BatchBuilder(batch_bytes_max=1 << 20)

    with pytest.raises(ValueError, match="outside its buffer"):
        builder.append(output(ROWS), np.array([0, bad_row]))
    assert builder.record_count == 0


@pytest.mark.parametrize("column", ["key", "value", "headers"])
@pytest.mark.parametrize(("start", "size"), [(-1, 4), (0, 11), (10, 1), (2**31 - 1, 2**31 - 1), (-(2**31), 1)])
def test_columns_that_point_outside_their_buffer_are_refused(column: str, start: int, size: int) -> None:
    good = output([Row()])
    lying = Slices(np.zeros(10, np.uint8), np.array([start], np.int32), np.array([size], np.int32))
    columns = {"key": good.key, "value": good.value, "headers": good.headers, column: lying}
    out = OutputRecords("out", **columns, timestamp=good.timestamp, unkeyed_partition=good.source, source=good.source)

    with pytest.raises(ValueError, match="outside its buffer"):
        sealed(out, np.array([0]))


def test_a_null_or_empty_header_section_means_no_headers() -> None:
    good = output([Row(), Row()])
    out = OutputRecords(
        "out", good.key, good.value, Slices.from_list([None, b""]), good.timestamp, good.source, good.source
    )

    (whole,) = sealed(out, np.arange(2))

    assert [row[4] for row in rows_of(decode_batches(stamped(whole), PARTITION, fetch_offset=0))] == [b"\0", b"\0"]


def test_the_same_stamp_gives_the_same_bytes_and_another_leaves_them_alone() -> None:
    (whole,) = sealed(output(ROWS), ALL)
    first = whole.stamped(producer_id=1, producer_epoch=2, base_sequence=3, transactional=True)
    bytes_then = bytes(first)

    assert whole.stamped(producer_id=1, producer_epoch=2, base_sequence=3, transactional=True) == first
    other = whole.stamped(producer_id=1, producer_epoch=9, base_sequence=3, transactional=False)

    assert bytes(first) == bytes_then
    assert other != first
    assert first.readonly


def test_a_builder_is_empty_and_usable_after_sealing() -> None:
    builder = BatchBuilder(batch_bytes_max=1 << 20)
    assert builder.seal() == []

    wires = []
    for _ in range(2):
        builder.append(output(ROWS), ALL)
        wires.append([stamped(b) for b in builder.seal()])
        assert (builder.record_count, builder.byte_count) == (0, 0)

    assert wires[0] == wires[1]


def test_one_large_batch_does_not_leave_large_buffers_to_the_small_ones_after_it() -> None:
    """What is sealed is held until it is stored, and hundreds of batches can be under way."""
    builder = BatchBuilder(batch_bytes_max=1 << 20)
    for size in (500_000, 100, 100):
        builder.append(output([Row(value=b"v" * size)]), np.arange(1))
        (batch,) = builder.seal()
    assert batch.byte_count < 300
    held = stamped_buffer(batch)
    assert held <= 4096


def stamped_buffer(batch: SealedBatch) -> int:
    """How many bytes of memory the batch keeps."""
    wire = batch._wire
    return len(wire) if wire.base is None else len(wire.base)


def test_bytes_that_do_not_shrink_are_sent_as_they_are() -> None:
    noise = np.random.default_rng(11).bytes(5000)

    (whole,) = sealed(output([Row(value=noise)]), np.array([0]), compression=Compression.GZIP)

    assert whole.compression is Compression.NONE
    assert rows_of(decode_batches(stamped(whole), PARTITION, fetch_offset=0))[0][3] == noise


def test_the_bytes_held_are_those_that_will_be_sent() -> None:
    builder = BatchBuilder(batch_bytes_max=1 << 20)
    assert builder.byte_count == 0

    builder.append(output(ROWS), ALL)

    held = builder.byte_count
    assert held == sum(len(stamped(b)) for b in builder.seal())


@pytest.mark.parametrize("batch_bytes_max", [0, 61, 2**31])
def test_an_impossible_bound_is_refused(batch_bytes_max: int) -> None:
    with pytest.raises(ValueError, match=f"batch_bytes_max is {batch_bytes_max}"):
        BatchBuilder(batch_bytes_max=batch_bytes_max)
