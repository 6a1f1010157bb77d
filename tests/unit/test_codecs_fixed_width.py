"""Fixed-width records: views over the fetched bytes where possible, never a silent change of a value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.processor.codecs.fixed_width import FixedWidthCodec
from millstream.processor.columns import Slices
from millstream.processor.errors import DecodeError, EncodeError

TICK = np.dtype([("price", "<f4"), ("count", ">u2"), ("tag", "S3"), ("pair", "<i2", (2,)), ("when", "<M8[ms]")])
CODEC = FixedWidthCodec(TICK)


def ticks(count: int) -> np.ndarray[Any, Any]:
    array = np.zeros(count, TICK)
    array["price"] = np.arange(count) / 4
    array["count"] = np.arange(count)
    array["tag"] = b"ab"
    array["pair"] = np.arange(2 * count).reshape(count, 2)
    array["when"] = np.arange(count)
    return array


@pytest.mark.parametrize("gap", [0, 7])
def test_values_at_equal_distances_become_a_view(gap: int) -> None:
    array = ticks(5)
    step = TICK.itemsize + gap
    buffer = np.zeros(3 + 5 * step, np.uint8)
    for i in range(5):
        buffer[3 + i * step :][: TICK.itemsize] = array[i : i + 1].view(np.uint8)
    slices = Slices(buffer, np.arange(3, 3 + 5 * step, step, dtype=np.int32), np.full(5, TICK.itemsize, np.int32))
    decoded, errors = CODEC.decode_columns(slices)
    assert not errors
    assert np.array_equal(decoded, array)
    assert np.shares_memory(decoded, buffer)
    assert not decoded.flags.writeable


@given(rows=st.lists(st.none() | st.binary(min_size=8, max_size=8) | st.binary(max_size=9), max_size=12))
def test_each_row_of_the_right_size_is_its_item_and_all_others_are_named(rows: list[bytes | None]) -> None:
    codec = FixedWidthCodec(np.dtype("<i8"))
    array, errors = codec.decode_columns(Slices.from_list(rows))
    items = codec.decode(Slices.from_list(rows))
    assert len(array) == len(rows)
    assert items.errors.keys() == errors.keys()
    for i, row in enumerate(rows):
        good = row is not None and len(row) == 8
        assert (i in errors) == (row is not None and not good)
        assert array[i] == (int.from_bytes(row or b"", "little", signed=True) if good else 0)
        assert items.values[i] == (array[i] if good else None)
    assert all(isinstance(error, DecodeError) for error in errors.values())


def test_rows_in_any_order_are_gathered() -> None:
    array = ticks(6)
    slices = CODEC.encode_array(array).take(np.array([4, 0, 0, 5]))
    decoded, errors = CODEC.decode_columns(slices)
    assert not errors
    assert np.array_equal(decoded, array[[4, 0, 0, 5]])


def test_arrays_become_rows_without_a_copy() -> None:
    array = ticks(4)
    slices = CODEC.encode_array(array)
    assert np.shares_memory(slices.buffer, array)
    assert slices.to_list() == [item.tobytes() for item in array]
    assert CODEC.encode_array(array[::2]).to_list() == [array[0].tobytes(), array[2].tobytes()]
    assert len(CODEC.encode_array(array[:0])) == 0


@pytest.mark.parametrize("array", [np.zeros(3, "<i4"), np.zeros((2, 2), TICK), np.zeros((), TICK)])
def test_arrays_of_another_dtype_or_shape_are_refused(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(EncodeError, match="one dimension"):
        CODEC.encode_array(array)


def test_items_and_tuples_round_trip() -> None:
    decoded = CODEC.decode(CODEC.encode_array(ticks(3)))
    encoded = CODEC.encode(
        [*decoded.values, None, (0.1, 7, b"xy", [1, 2], np.datetime64(5, "s")), (0, 0, b"", (0, 0), 9)]
    )
    assert not encoded.errors
    rows = encoded.values.to_list()
    assert rows[:3] == [item.tobytes() for item in ticks(3)]
    assert rows[3] is None
    again = CODEC.decode(encoded.values).values
    written: Any = again[4]
    assert written["price"] == np.float32(0.1)
    assert (written["count"], written["tag"], written["pair"].tolist()) == (7, b"xy", [1, 2])
    assert written["when"] == np.datetime64(5000, "ms")


@pytest.mark.parametrize(
    "value",
    [
        (1.0, 70_000, b"", (0, 0), 0),
        (1.0, 1.5, b"", (0, 0), 0),
        (1.0, "1", b"", (0, 0), 0),
        (1e300, 1, b"", (0, 0), 0),
        ("1.5", 1, b"", (0, 0), 0),
        (1.0, 1, b"abcd", (0, 0), 0),
        (1.0, 1, "abc", (0, 0), 0),
        (1.0, 1, b"a\0", (0, 0), 0),
        (1.0, 1, b"", 7, 0),
        (1.0, 1, b"", (0, 40_000), 0),
        (1.0, 1, b"", (0, 0), np.datetime64(1500, "us")),
        (1.0, 1, b"", (0, 0)),
        {"price": 1.0},
        5,
        object(),
        "text",
    ],
    ids=repr,
)
def test_values_that_numpy_would_change_silently_are_refused(value: object) -> None:
    encoded = CODEC.encode([(1.0, 1, b"", (0, 0), 0), value, None])
    assert list(encoded.errors) == [1]
    assert isinstance(encoded.errors[1], EncodeError)
    assert [row is None for row in encoded.values.to_list()] == [False, True, True]


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("<f8", float("nan"), "1"),
        ("<f8", float("-inf"), 10**400),
        ("<f4", 1, 1e39),
        ("<c8", 1 + 2j, 1e39j),
        ("<i2", -1, 2**15),
        ("?", True, 2),
        ("S4", b"abc", b"abcde"),
        ("V2", b"ab", b"a"),
        ("<m8[s]", np.timedelta64(3, "m"), np.timedelta64(1, "ms")),
        ("<M8[s]", np.datetime64("NaT", "s"), "2026-01-01"),
    ],
)
def test_plain_dtypes_take_plain_values_that_fit(dtype: str, good: object, bad: object) -> None:
    codec = FixedWidthCodec(np.dtype(dtype))
    encoded = codec.encode([good, bad])
    assert list(encoded.errors) == [1]
    item = codec.decode(encoded.values).values[0]
    assert np.array([item], dtype).tobytes() == np.array([good], dtype).tobytes()
