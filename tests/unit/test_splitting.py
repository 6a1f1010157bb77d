"""Runs that a device's memory does not hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.gpu_offload import splitting
from millstream.gpu_offload.backend import OutOfDeviceMemoryError, StickyError
from millstream.gpu_offload.slots import Segment
from millstream.processor.offloading import ArrayColumns


class SmallDevice:
    """Doubles what it gets, `rows_max` rows at most."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self.runs: list[int] = []

    def run(self, segments: Sequence[Segment]) -> None:
        rows = sum(segment.rows for segment in segments)
        self.runs.append(rows)
        if rows > self._rows_max:
            raise OutOfDeviceMemoryError(f"{rows} rows")
        for segment in segments:
            segment.outputs["y"][...] = segment.columns["x"] * 2


def segments_of(sizes: Sequence[int]) -> list[Segment]:
    return [Segment(ArrayColumns({"x": np.arange(n) + 1}, {}, n), {"y": np.zeros(n, np.int64)}) for n in sizes]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 100))
def test_what_is_not_said_to_have_failed_is_computed(sizes: list[int], rows_max: int) -> None:
    segments = segments_of(sizes)
    device = SmallDevice(rows_max)
    freed: list[int] = []
    outcome = splitting.run(device, segments, lambda: freed.append(len(device.runs)))
    for number, segment in enumerate(segments):
        if number not in outcome.failed:
            np.testing.assert_array_equal(segment.outputs["y"], segment.columns["x"] * 2)
    assert len(device.runs) <= 3
    assert len(freed) == (2 if outcome.rows_max else 0)
    if sum(sizes) > rows_max:
        assert 0 < outcome.rows_max < max(2, sum(sizes))


def test_a_segment_across_the_middle_fails_with_either_half() -> None:
    class FirstHalfOnly(SmallDevice):
        def run(self, segments: Sequence[Segment]) -> None:
            if len(self.runs) == 2:
                self._rows_max = 0
            super().run(segments)

    outcome = splitting.run(FirstHalfOnly(15), segments_of([10, 10, 10]), lambda: None)
    assert outcome.failed == {1, 2}


def test_a_device_that_is_lost_is_not_tried_again() -> None:
    class Lost(SmallDevice):
        def run(self, segments: Sequence[Segment]) -> None:
            self.runs.append(len(segments))
            raise StickyError("lost")

    device = Lost(0)
    with pytest.raises(StickyError):
        splitting.run(device, segments_of([10]), lambda: None)
    assert device.runs == [1]
