"""What a look at committed offsets says when they stay unstable, and when it is something else that lasts."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_time import simulated

from millstream.connectors.kafka.error_codes import Code
from millstream.connectors.kafka.offsets import Offsets
from millstream.connectors.kafka.read_requests import CommittedOffset, OffsetFetchAnswer
from millstream.processor.errors import UnavailableError
from millstream.processor.partitions import TopicPartition

PLACES = [TopicPartition("in", 0), TopicPartition("in", 1)]


class Coordinator:
    """A cluster of one broker that answers every look so many times with a code for one of the partitions."""

    request_timeout_s = 1.0

    def __init__(self, code: Code, times: int) -> None:
        self._code = code
        self._left = times

    async def coordinator(self, *_: object) -> int:
        return 1

    def forget_coordinator(self, *_: object) -> None:
        pass

    async def call(self, *_: object, timeout_s: float) -> OffsetFetchAnswer:
        assert timeout_s > 0
        self._left -= 1
        if self._left < 0:
            return OffsetFetchAnswer(Code.NONE, [CommittedOffset(place, 7, "", Code.NONE) for place in PLACES])
        stable = CommittedOffset(PLACES[0], 7, "", Code.NONE)
        return OffsetFetchAnswer(Code.NONE, [stable, CommittedOffset(PLACES[1], -1, "", self._code)])


def offsets(code: Code, times: int = 10**6) -> Offsets:
    return Offsets(Coordinator(code, times), timeout_s=2.0)  # type: ignore[arg-type]


@simulated
async def test_offsets_that_are_unstable_for_a_moment_are_awaited() -> None:
    found = await offsets(Code.UNSTABLE_OFFSET_COMMIT, times=20).committed("p", PLACES)
    assert {place: at.offset for place, at in found.items()} == dict.fromkeys(PLACES, 7)


@simulated
async def test_offsets_that_stay_unstable_are_told_with_what_it_is_and_where_the_remedy_stands() -> None:
    with pytest.raises(UnavailableError) as raised:
        await offsets(Code.UNSTABLE_OFFSET_COMMIT).committed("p", PLACES)
    text = str(raised.value)
    assert text.startswith("reading committed offsets of p: not done within 2 s; last: UNSTABLE_OFFSET_COMMIT (88)")
    assert text.endswith("see 'Markers that are missing' in the operations page")


@simulated
async def test_other_trouble_is_not_taken_for_markers_that_are_missing() -> None:
    with pytest.raises(UnavailableError, match=r"last: COORDINATOR_LOAD_IN_PROGRESS \(14\)$"):
        await offsets(Code.COORDINATOR_LOAD_IN_PROGRESS).committed("p", PLACES)


def test_the_operations_page_has_the_section_that_the_message_names() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    assert "Markers that are missing" in page
