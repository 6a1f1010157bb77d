"""How much input is taken at a time for offload stages, and how long it waits for company."""

from __future__ import annotations

import pytest
from test_stage_placement import stage

from millstream.processor.gathering import Gatherer
from millstream.processor.offloading import NO_WAIT, Gathering, OnCpu


class Wishing(OnCpu):
    """A placement that wants its input gathered."""

    def __init__(self, records: int, wait_s: float) -> None:
        self.gathering = Gathering(records, wait_s)  # type: ignore[misc]
        self.waits: list[float] = []

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)


def test_without_offload_stages_nothing_is_waited_for() -> None:
    gatherer = Gatherer()
    assert gatherer.wanted() == NO_WAIT
    assert gatherer.bytes_wanted(NO_WAIT, 1000) == 1000


def test_the_largest_batch_and_the_shortest_wait_of_all_stages_hold() -> None:
    first, second = stage(), stage()
    first.placement, second.placement = Wishing(100, 0.02), Wishing(5000, 0.005)
    assert Gatherer([first, second]).wanted() == Gathering(5000, 0.005)


@pytest.mark.parametrize(("records", "expected"), [(100, 10_000), (2, 4096), (10**9, 8 << 20)])
def test_bytes_are_reckoned_by_what_records_have_had(records: int, expected: int) -> None:
    gatherer = Gatherer([stage()])
    wish = Gathering(records, 0.0)
    assert gatherer.bytes_wanted(wish, 777) == 777
    gatherer.taken(10, 1000)
    assert gatherer.bytes_wanted(wish, 777) == expected
    assert gatherer.bytes_wanted(NO_WAIT, 777) == 777


def test_all_stages_hear_how_long_a_batch_has_waited() -> None:
    one, placement = stage(), Wishing(1, 0.0)
    one.placement = placement
    Gatherer([one]).done(0.25)
    assert placement.waits == [0.25]
