"""A report's picture: a well-formed SVG file that shows every second, gaps included."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.loadgen.picture import check_picture, picture, write_picture
from millstream.loadgen.timeline import Moment, Timeline
from millstream.processor.errors import SettingsError, UnavailableError

SVG = "{http://www.w3.org/2000/svg}"


def _timeline(arrivals: dict[int, int]) -> tuple[Moment, ...]:
    """Moments in which, for each second, so many events arrive, each 10 ms times the second late."""
    timeline = Timeline()
    for second, events in arrivals.items():
        timeline.record(1_730_000_000_000_000 + second * 1_000_000, np.full(events, 10_000 * second, np.int64))
    return timeline.moments()


def test_a_timeline_has_every_second_and_what_arrived_in_it() -> None:
    moments = _timeline({0: 5, 1: 7, 4: 2})
    assert [(moment.second, moment.events) for moment in moments] == [(0, 5), (1, 7), (2, 0), (3, 0), (4, 2)]
    assert moments[2].latency is None
    assert moments[4].latency is not None
    assert moments[4].latency.max == 40
    assert moments[4].as_json()["latency_ms_max"] == 40
    assert moments[3].as_json() == {"second": 3, "events": 0}


def test_a_clock_that_goes_back_adds_to_the_second_that_was_reached() -> None:
    assert [moment.events for moment in _timeline({0: 1, 3: 1, 1: 1})] == [1, 0, 0, 2]


def test_nothing_that_arrived_is_no_timeline() -> None:
    assert Timeline().moments() == ()


def test_each_percentile_is_a_line_that_breaks_where_nothing_arrived() -> None:
    root = ET.fromstring(picture("in → out", _timeline({0: 5, 1: 7, 4: 2, 5: 2, 6: 1}), ["a < b & c"]))
    lines = root.findall(f"{SVG}polyline")
    # Four percentiles in two pieces each, and the throughput, which is zero there, in one.
    assert len(lines) == 2 * 4 + 1
    assert len(lines[-1].attrib["points"].split()) == 6
    texts = {element.text for element in root.findall(f"{SVG}text")}
    assert {"in → out", "a < b & c", "p50", "p99"} <= texts


@given(st.dictionaries(st.integers(0, 400), st.integers(0, 3), max_size=12), st.lists(st.text("<&>\"'x", max_size=9)))
@settings(max_examples=60, deadline=None)
def test_any_run_gives_a_picture_whose_lines_stay_inside(arrivals: dict[int, int], sentences: list[str]) -> None:
    root = ET.fromstring(picture("title", _timeline(dict(sorted(arrivals.items()))), sentences))
    for line in root.findall(f"{SVG}polyline"):
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 960
            assert 0 <= y <= 600


def test_a_file_that_cannot_be_a_picture_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"\.svg"):
        check_picture(tmp_path / "report.png")
    with pytest.raises(SettingsError, match="no directory"):
        check_picture(tmp_path / "missing" / "report.svg")
    check_picture(tmp_path / "report.svg")


def test_a_full_disk_is_told_with_the_files_name() -> None:
    with pytest.raises(UnavailableError, match="/dev/full could not be written: No space"):
        write_picture(Path("/dev/full"), "title", _timeline({0: 1}), [])
