"""The parts of `millstream demo --offload` that need no broker: acts, load, what is read from the log, network."""

from __future__ import annotations

import numpy as np

from millstream.loadgen.demo_offload_acts import Act, Director
from millstream.loadgen.demo_offload_app import AMOUNTS, EQUALITY, network, score, score_as_a_device
from millstream.loadgen.demo_offload_report import fallback_of
from millstream.loadgen.demo_offload_watch import LogLine, Seen, Switch
from millstream.loadgen.steered import SteeredPace
from millstream.processor.offloading import ArrayColumns

FIRST = Act("first", False, lambda seen: seen.runs_on == "gpu", 10.0)
SECOND = Act("second", True, lambda seen: seen.runs_on == "cpu", 10.0, can_fail=True)


def on(device: str) -> Seen:
    return Seen(switches=[Switch(0.0, f"x>{device}", "cheapest", "", {})])


def test_an_act_goes_on_until_it_has_shown_what_it_is_for_and_a_little_longer() -> None:
    director = Director(0.0, show_s=2.0, acts=(FIRST, SECOND))
    assert not director.go_on(5.0, on("cpu"))
    assert not director.go_on(6.0, on("gpu"))
    assert not director.go_on(7.9, on("gpu"))
    assert not director.go_on(8.0, on("cpu"))
    assert director.go_on(9.0, on("gpu"))
    assert director.act is SECOND


def test_what_is_not_seen_in_time_ends_the_show_unless_the_act_can_fail() -> None:
    director = Director(0.0, show_s=1.0, acts=(FIRST, SECOND))
    assert not director.go_on(9.9, on("cpu"))
    assert director.go_on(10.0, on("cpu"))
    assert (director.act, director.not_seen) == (None, "first")
    director = Director(0.0, show_s=1.0, acts=(FIRST, SECOND))
    assert not director.go_on(9.5, on("gpu"))
    assert not director.go_on(10.9, on("cpu"))
    assert director.go_on(11.0, on("cpu"))
    assert director.not_seen == "first"
    director = Director(0.0, show_s=1.0, acts=(SECOND, FIRST))
    assert director.go_on(10.0, on("gpu"))
    assert (director.act, director.not_seen) == (FIRST, None)


def test_a_steered_load_follows_its_rate_at_once_and_ends_at_zero() -> None:
    rate = 10.0
    pace = SteeredPace(lambda: rate)
    assert pace.due(0) == 1
    assert pace.take(1, 0).tolist() == [0]
    assert pace.next_us == 100_000
    assert pace.due(50_000) == 0
    rate = 1000.0
    assert pace.due(50_000) == 0
    assert pace.next_us == 51_000
    assert pace.due(53_500) == 3
    assert pace.take(3, 53_500).tolist() == [51_000, 52_000, 53_000]
    rate = 0.0
    assert (pace.next_us, pace.due(10_000_000)) == (None, 0)


def test_log_lines_are_read_as_they_are_written() -> None:
    line = LogLine.read(
        "2026-01-02T03:04:05.678Z INFO millstream.offload event=offload.switched stage=score switch=cpu>gpu "
        'why=cheapest rate=12 reason="a \\"b\\", c=d"'
    )
    assert line is not None
    assert line.event == "offload.switched"
    assert line.fields["reason"] == 'a "b", c=d'
    assert line.fields["switch"] == "cpu>gpu"
    assert round(line.at_s % 60, 3) == 5.678
    assert LogLine.read("Traceback (most recent call last):") is None


def test_detection_and_readmission_are_counted_from_the_end_of_the_process() -> None:
    states = [(1.0, "ready", ""), (5.004, "open", "gone"), (35.0, "half-open", ""), (36.004, "ready", "")]
    fallback = fallback_of(Seen(states=states, fallbacks={"device-trouble": 7}), 5.0)
    assert fallback.detection_ms is not None
    assert fallback.readmitted_s is not None
    assert round(fallback.detection_ms, 3) == 4.0
    assert round(fallback.readmitted_s, 3) == 31.0
    assert fallback_of(Seen(), None).detection_ms is None


def test_the_simulated_device_answers_what_the_network_does_in_batches_of_any_size() -> None:
    amounts = np.array([0.0, 0.99, 12.34, 999.99, AMOUNTS + 12.5, -0.5, 7.0])
    columns = ArrayColumns({"amount": amounts}, {}, len(amounts))
    answer = score_as_a_device(np, columns)["score"]
    assert EQUALITY.holds(score(columns)["score"], answer)
    assert EQUALITY.holds(network(amounts[2:3]), answer[2:3])
    assert len(np.unique(answer)) == 4
