"""What tells how long a takeover took counts nothing that the dead one may have written."""

from __future__ import annotations

import numpy as np
import pytest

from millstream.loadgen import arrival_log
from millstream.loadgen.arrival_log import ArrivalLog


def noted(log: ArrivalLog, arrived_us: int, *outputs: tuple[int, int]) -> None:
    partition, sent_us = (np.array(column, np.int64) for column in zip(*outputs, strict=True))
    log.note(partition, sent_us, arrived_us)


def test_the_first_output_of_each_partition_that_left_after_the_instant_counts() -> None:
    log = ArrivalLog()
    noted(log, 900, (0, 850), (1, 880), (2, 870))
    # Committed before the instant, and only read after it.
    noted(log, 1005, (0, 990), (1, 995))
    noted(log, 1300, (0, 998), (0, 1200))
    noted(log, 1350, (1, 999))
    noted(log, 1400, (1, 1001), (0, 1390))
    assert log.first_since(1000) == {0: 1300, 1: 1400}


def test_it_is_bounded_and_keeps_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival_log, "ARRIVALS_KEPT", 20)
    log = ArrivalLog()
    one = np.zeros(1, np.int64)
    for number in range(30):
        log.note(one, one + number, number)
    assert log.first_since(0) == {0: 10}
