"""Records go where Java clients would send them."""

from __future__ import annotations

import numpy as np
import pytest
from aiokafka.partitioner import murmur2
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.connectors.kafka.placement import place, rows_by_partition
from millstream.processor.columns import Slices

# From the tests of Kafka's own Java client.
JAVA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_keys_hash_as_in_java() -> None:
    placed = place(Slices.from_list(list(JAVA_HASHES)), np.zeros(len(JAVA_HASHES), np.int32), 2**31 - 1)

    assert placed.tolist() == [(hashed & 0x7FFFFFFF) % (2**31 - 1) for hashed in JAVA_HASHES.values()]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.none() | st.binary(max_size=20), max_size=20), st.integers(1, 1000))
def test_keys_are_placed_as_aiokafka_places_them(keys: list[bytes | None], partitions: int) -> None:
    unkeyed = np.arange(len(keys), dtype=np.int32) * 7

    placed = place(Slices.from_list(keys), unkeyed, partitions)

    assert placed.dtype == np.int32
    assert placed.tolist() == [
        7 * i % partitions if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions for i, key in enumerate(keys)
    ]


def test_keys_in_writable_and_read_only_buffers_are_placed_alike() -> None:
    keys = Slices.from_list([b"one", b"two"])
    writable = Slices(keys.buffer.copy(), keys.start, keys.size)

    placed = place(writable, np.zeros(2, np.int32), 100)

    assert placed.tolist() == place(keys, np.zeros(2, np.int32), 100).tolist()
    assert writable.buffer.flags.writeable


@pytest.mark.parametrize(("start", "size"), [(-1, 4), (0, 11), (10, 1), (2**31 - 1, 2**31 - 1)])
def test_keys_outside_their_buffer_are_refused(start: int, size: int) -> None:
    keys = Slices(np.zeros(10, np.uint8), np.array([start], np.int32), np.array([size], np.int32))

    with pytest.raises(ValueError, match="outside its buffer"):
        place(keys, np.zeros(1, np.int32), 3)


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(ValueError, match="partitions is 0"):
        place(Slices.from_list([b"key"]), np.zeros(1, np.int32), 0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=50))
def test_rows_are_grouped_in_their_order(placed: list[int]) -> None:
    groups = rows_by_partition(np.array(placed, np.int32), 10)

    wanted = {p: [row for row, at in enumerate(placed) if at == p] for p in sorted(set(placed))}
    assert {partition: rows.tolist() for partition, rows in groups} == wanted
    assert [partition for partition, _ in groups] == list(wanted)
    assert all(rows.dtype == np.int64 and rows.flags.c_contiguous for _, rows in groups)


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_row_in_no_partition_is_refused(partition: int) -> None:
    with pytest.raises(ValueError, match="partitions 0 to 2"):
        rows_by_partition(np.array([0, partition], np.int32), 3)
