"""Batches in memory that a worker and a device share."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from device_functions import LENGTHS, TOTAL
from hypothesis import given
from hypothesis import strategies as st

from millstream.gpu_offload.slots import (
    ALIGNMENT,
    PAGE_BYTES,
    SlotMemory,
    SlotTooSmallError,
    bytes_needed,
    create_memory,
    fill,
    segment_in,
    text_sizes,
)
from millstream.processor.offloading import ArrayColumns, Text


def text_of(texts: list[bytes], before: bytes = b"") -> Text:
    """The texts, as a view into data that begins before them."""
    offsets = np.cumsum([len(before), *map(len, texts)]).astype(np.int32)
    return Text(offsets, np.frombuffer(before + b"".join(texts) + b"after", np.uint8))


def texts_in(text: Any) -> list[bytes]:
    return [bytes(text.data[begin:end]) for begin, end in zip(text.offsets[:-1], text.offsets[1:], strict=True)]


def test_both_sides_see_the_same_memory() -> None:
    descriptor = create_memory(2, PAGE_BYTES)
    ours, theirs = SlotMemory(descriptor, 2, PAGE_BYTES), SlotMemory(descriptor, 2, PAGE_BYTES)
    os.close(descriptor)
    columns = ArrayColumns({"price": np.arange(5.0), "count": np.arange(5)}, {}, 5)
    fill(segment_in(ours.slot(1), TOTAL, 5, ()), columns)
    found = segment_in(theirs.slot(1), TOTAL, 5, ())
    assert found.columns["count"].tolist() == [0, 1, 2, 3, 4]
    found.outputs["total"][...] = 7.0
    assert segment_in(ours.slot(1), TOTAL, 5, ()).outputs["total"].tolist() == [7.0] * 5
    assert not ours.slot(0).any()
    theirs.runs = 3
    assert ours.runs == 3


def test_the_memory_cannot_shrink_under_the_other_side() -> None:
    descriptor = create_memory(1, PAGE_BYTES)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, PAGE_BYTES)
    os.close(descriptor)


def test_every_array_begins_at_a_multiple_of_64_bytes() -> None:
    slot = np.zeros(1 << 16, np.uint8)
    segment = segment_in(slot, LENGTHS, 13, (57,))
    text = segment.columns["text"]
    for array in (text.offsets, text.data, segment.columns.valid("text"), segment.outputs["length"]):
        assert (array.ctypes.data - slot.ctypes.data) % ALIGNMENT == 0


@given(st.lists(st.binary(max_size=9), max_size=20), st.binary(max_size=5))
def test_texts_that_begin_in_the_middle_of_their_data_come_across(texts: list[bytes], before: bytes) -> None:
    columns = ArrayColumns({"text": text_of(texts, before)}, {"text": np.ones(len(texts), np.bool_)}, len(texts))
    segment = segment_in(np.zeros(1 << 12, np.uint8), LENGTHS, len(texts), text_sizes(columns, LENGTHS))
    fill(segment, columns)
    assert texts_in(segment.columns["text"]) == texts


@given(st.lists(st.binary(max_size=9), max_size=20), st.data())
def test_a_cut_segment_has_the_rows_between_and_room_for_theirs_alone(texts: list[bytes], data: st.DataObject) -> None:
    columns = ArrayColumns({"text": text_of(texts)}, {"text": np.ones(len(texts), np.bool_)}, len(texts))
    segment = segment_in(np.zeros(1 << 12, np.uint8), LENGTHS, len(texts), text_sizes(columns, LENGTHS))
    fill(segment, columns)
    first = data.draw(st.integers(0, len(texts)))
    next_ = data.draw(st.integers(first, len(texts)))
    piece = segment.cut(first, next_)
    assert texts_in(piece.columns["text"]) == texts[first:next_]
    piece.outputs["length"][...] = 1
    assert segment.outputs["length"].sum() == next_ - first


@given(st.integers(0, 300), st.integers(0, 40))
def test_what_a_batch_is_said_to_need_suffices(rows: int, text_bytes: int) -> None:
    needed = bytes_needed(LENGTHS, rows, text_bytes)
    segment_in(np.zeros(needed, np.uint8), LENGTHS, rows, (rows * text_bytes,))


def test_a_batch_that_is_too_large_is_refused_with_both_sizes() -> None:
    with pytest.raises(SlotTooSmallError, match="a slot has 128"):
        segment_in(np.zeros(128, np.uint8), TOTAL, 100, ())
