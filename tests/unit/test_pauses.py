"""How long output stood still, overall and in one partition."""

from __future__ import annotations

import numpy as np

from millstream.loadgen.pauses import Pauses


def _partitions(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, np.int64)


def test_a_pause_of_one_partition_is_seen_while_the_others_go_on() -> None:
    pauses = Pauses()
    for time_us in range(0, 1000, 100):
        pauses.note(_partitions(0, 0, 1), time_us)
    pauses.note(_partitions(2), 150)
    pauses.note(_partitions(0, 2), 1300)
    assert pauses.partition_us == 1150
    assert pauses.first_us == 0
    assert pauses.last_us == 1300


def test_a_pause_of_everything_is_the_time_between_two_arrivals() -> None:
    pauses = Pauses()
    for time_us in (5, 10, 510, 515):
        pauses.note(_partitions(time_us % 2), time_us)
    assert pauses.overall_us == 500


def test_a_read_without_records_is_no_arrival() -> None:
    pauses = Pauses()
    pauses.note(_partitions(0), 0)
    pauses.note(_partitions(), 400)
    pauses.note(_partitions(0), 1000)
    assert pauses.overall_us == 1000
