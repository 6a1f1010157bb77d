"""Silence is told from deafness: adaptive, and suspicious of itself first."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.processor.detector import Detector, Suspicion
from millstream.processor.timings import Timings

TIMINGS = Timings(window=40)
BEAT = TIMINGS.beat_interval_s


class Listener:
    """A detector that is driven on a fixed raster of 5 ms, as an agent drives it."""

    def __init__(self, *peers: str, timings: Timings = TIMINGS) -> None:
        self.detector = Detector(timings)
        self.now = 100.0
        self.silent: set[str] = set()
        self.peers = peers
        self.is_deaf = False
        self.found: dict[str, tuple[float, Suspicion]] = {}
        self._steps = itertools.count()
        self._seq = dict.fromkeys(peers, 0)
        self._own = 0
        for peer in peers:
            self.detector.watch(self.now, peer)

    def run(self, seconds: float) -> None:
        """Let time pass; who is not silent beats, the others' phases are 10 ms apart."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            step = next(self._steps)
            self.now += 0.005
            for place, peer in enumerate(self.peers):
                if step % 10 == 2 * place % 10 and peer not in self.silent and not self.is_deaf:
                    self.hear(peer)
            if step % 10 == 0:
                self.detector.own_beat_sent(self.now, self._own)
                self._own += 1
            if step % 10 == 1 and not self.is_deaf:
                self.detector.own_beat_seen(self.now, self._own - 1)
            self.judge()

    def hear(self, peer: str) -> None:
        self._seq[peer] += 1
        self.detector.beat(self.now, peer, self._seq[peer])

    def judge(self) -> None:
        for suspicion in self.detector.judge(self.now):
            self.found.setdefault(suspicion.node, (self.now, suspicion))

    def wait_for(self, peer: str) -> float:
        """Seconds from now until the peer is suspected."""
        began = self.now
        while peer not in self.found and self.now < began + 5:
            self.run(0.005)
        return self.found[peer][0] - began


def acquainted(*peers: str) -> Listener:
    listener = Listener(*peers)
    listener.run(3)
    assert listener.found == {}
    return listener


def test_calm_beats_are_judged_by_the_lower_bound() -> None:
    listener = acquainted("a")
    assert listener.detector.threshold_s("a") == pytest.approx(0.25)
    listener.silent = {"a"}
    assert 0.2 <= listener.wait_for("a") <= 0.26
    suspicion = listener.found["a"][1]
    assert 250 <= suspicion.silence_ms <= 260
    assert suspicion.threshold_ms == pytest.approx(250)
    assert suspicion.mean_ms == pytest.approx(50)
    assert suspicion.beats_seen == 60
    assert not suspicion.is_held


def test_of_two_nodes_each_sees_the_others_death_at_once() -> None:
    listener = acquainted("only")
    listener.silent = {"only"}
    assert listener.wait_for("only") <= 0.26


@given(gaps=st.lists(st.floats(0.001, 0.2), min_size=40, max_size=40))
def test_thresholds_follow_the_gaps_within_their_bounds(gaps: list[float]) -> None:
    detector = Detector(TIMINGS)
    now = 100.0
    detector.watch(now, "a")
    for seq, gap in enumerate([0.0, *gaps]):
        for half in (0, 1):
            now += gap / 2
            detector.own_beat_sent(now, 2 * seq + half)
            detector.own_beat_seen(now, 2 * seq + half)
        detector.beat(now, "a", seq)
    threshold = detector.threshold_s("a")
    assert threshold is not None
    mean = sum(gaps) / 40
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / 40) ** 0.5
    assert 0.25 <= threshold <= 0.4
    assert threshold == pytest.approx(min(max(mean + 10 * max(deviation, 0.02), 0.25), 0.4))


def test_a_newcomer_gets_a_second_until_its_window_is_full() -> None:
    listener = Listener("a")
    listener.run(1.5)
    assert listener.detector.threshold_s("a") == 1.0
    listener.silent = {"a"}
    assert 0.95 <= listener.wait_for("a") <= 1.01


def test_who_joined_and_never_beats_gets_a_second_from_when_it_was_seen() -> None:
    listener = acquainted("a")
    listener.detector.watch(listener.now, "ghost")
    assert listener.wait_for("ghost") == pytest.approx(1.0, abs=0.01)
    assert listener.found["ghost"][1].beats_seen == 0


def test_who_never_beats_after_our_own_start_gets_a_second_from_when_we_could_hear() -> None:
    listener = Listener("ghost")
    listener.is_deaf, listener.silent = True, {"ghost"}
    listener.run(7)
    assert listener.detector.doubt(listener.now) == "none of its own beats has come back yet"
    listener.is_deaf = False
    assert 1.0 <= listener.wait_for("ghost") <= 1.06


def test_unknown_nodes_late_beats_and_copies_count_for_nothing() -> None:
    listener = acquainted("a")
    detector = listener.detector
    detector.beat(listener.now, "stranger", 1)
    assert detector.watched == {"a"}
    listener.silent = {"a"}
    began = listener.now
    while listener.now < began + 0.3:
        detector.beat(listener.now, "a", 3)
        detector.beat(listener.now, "a", 60)
        listener.run(0.005)
    assert "a" in listener.found


def test_who_is_forgotten_is_not_judged() -> None:
    listener = acquainted("a", "b")
    listener.silent = {"a"}
    listener.detector.forget("a")
    listener.detector.forget("a")
    listener.run(2)
    assert listener.found == {}


@pytest.mark.parametrize(("peers", "silent", "held"), [(2, 2, True), (3, 2, True), (4, 2, False), (5, 3, True)])
def test_most_of_the_others_get_more_time_when_they_turn_silent_together(peers: int, silent: int, held: bool) -> None:
    names = [f"n{number}" for number in range(peers)]
    listener = acquainted(*names)
    listener.silent = set(names[:silent])
    waited = listener.wait_for(names[0])
    assert listener.found[names[0]][1].is_held == held
    assert waited == pytest.approx(0.25 + (TIMINGS.hold_s if held else 0.0), abs=0.06)


def test_when_the_rest_is_heard_again_who_is_still_silent_has_no_more_time() -> None:
    listener = acquainted("a", "b", "c")
    listener.silent = {"a", "b"}
    listener.run(0.35)
    assert listener.found == {}
    listener.silent = {"a"}
    assert listener.wait_for("a") <= 0.06
    assert "b" not in listener.found


# -- suspicious of itself -----------------------------------------------------------------------------------------


def test_nothing_is_said_while_own_beats_do_not_come_back() -> None:
    listener = acquainted("a")
    listener.is_deaf = True
    listener.run(10)
    assert listener.found == {}
    assert "its own beats that came back was sent" in (listener.detector.doubt(listener.now) or "")
    assert listener.detector.unseen_s(listener.now) == pytest.approx(10, abs=0.1)


@given(deaf_s=st.floats(0.05, 5), late_s=st.floats(0, 0.1))
@settings(max_examples=60, deadline=None)
def test_who_was_held_up_as_we_were_may_be_heard_a_little_later(deaf_s: float, late_s: float) -> None:
    listener = acquainted("a")
    listener.is_deaf = True
    listener.run(deaf_s)
    listener.is_deaf, listener.silent = False, {"a"}
    listener.run(late_s if deaf_s > 0.15 else 0.0)
    listener.silent = set()
    listener.run(1)
    assert listener.found == {}


def test_after_a_long_absence_of_the_log_everyone_is_a_newcomer_until_heard() -> None:
    listener = acquainted("a", "b")
    listener.is_deaf = True
    listener.run(3)
    listener.is_deaf, listener.silent = False, {"a"}
    waited = listener.wait_for("a")
    assert 0.95 <= waited <= 1.06
    assert listener.detector.threshold_s("b") == pytest.approx(0.25)
    assert "b" not in listener.found


def test_a_loop_that_ran_late_says_nothing_until_it_has_caught_up() -> None:
    listener = acquainted("a", "b")
    detector = listener.detector
    listener.now += 5.0
    detector.looped(listener.now, 5.0)
    listener.judge()
    assert listener.found == {}
    assert detector.doubt(listener.now) is not None
    listener.run(1)
    assert listener.found == {}
    assert detector.doubt(listener.now) is None


def test_a_little_lateness_costs_a_verdict_a_little() -> None:
    listener = acquainted("a")
    listener.silent = {"a"}
    listener.run(0.15)
    listener.now += 0.06
    listener.detector.looped(listener.now, 0.06)
    assert "its loop ran 60 ms late" in (listener.detector.doubt(listener.now) or "")
    assert listener.wait_for("a") <= 0.25
    assert listener.detector.doubt(listener.now) is None


def test_an_own_beat_from_before_the_lateness_does_not_show_that_we_have_caught_up() -> None:
    listener = acquainted("a")
    detector, now = listener.detector, listener.now
    detector.own_beat_sent(now, 1000)
    detector.looped(now + 0.06, 0.06)
    detector.own_beat_seen(now + 0.06, 1000)
    assert detector.doubt(now + 0.06) is not None
    detector.own_beat_sent(now + 0.06, 1001)
    detector.own_beat_seen(now + 0.07, 1001)
    assert detector.doubt(now + 0.07) is None


def test_what_is_not_late_enough_costs_nothing() -> None:
    listener = acquainted("a")
    listener.detector.looped(listener.now, 0.04)
    assert listener.detector.doubt(listener.now) is None


def test_nothing_is_said_while_beats_are_unread() -> None:
    listener = acquainted("a")
    listener.silent = {"a"}
    listener.detector.unread(True)
    listener.run(1)
    assert listener.found == {}
    assert listener.detector.doubt(listener.now) == "there are beats that were not read yet"
    listener.detector.unread(False)
    assert listener.wait_for("a") <= 0.01


def test_own_beats_from_before_the_trouble_do_not_end_it() -> None:
    detector = Detector(TIMINGS)
    detector.watch(100.0, "a")
    for seq in range(5):
        detector.own_beat_sent(100.0 + seq * BEAT, seq)
    detector.own_beat_seen(100.05, 0)
    detector.looped(103.0, 2.8)
    for seq in range(1, 5):
        detector.own_beat_seen(103.0, seq)
        assert detector.doubt(103.0) is not None
    detector.own_beat_sent(103.0, 5)
    detector.own_beat_seen(103.01, 5)
    assert detector.doubt(103.01) is None
    assert detector.judge(103.3) == []


def test_what_is_remembered_is_bounded() -> None:
    detector = Detector(TIMINGS)
    for seq in range(10_000):
        detector.own_beat_sent(100.0 + seq * BEAT, seq)
    assert len(detector._sent) <= 256
    detector.own_beat_seen(600.0, 3)
    assert detector.doubt(600.0) is not None
    detector.own_beat_seen(600.0, 9_999)
    assert detector.doubt(600.0) is None
    assert detector._sent == {}


def test_a_gap_of_our_own_making_is_not_held_against_anyone() -> None:
    listener = acquainted("a")
    for _ in range(10):
        listener.is_deaf = True
        listener.run(0.3)
        listener.is_deaf = False
        listener.run(0.3)
    assert listener.detector.threshold_s("a") == pytest.approx(0.25)


@given(seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_the_next_deadline_misses_nothing(seed: int) -> None:
    """Whoever judges only when it is due sees every death as soon as who judges all the time."""
    eager, lazy = acquainted("a", "b", "c"), acquainted("a", "b", "c")
    found: dict[str, float] = {}

    def judge_when_due() -> None:
        due = lazy.detector.next_deadline()
        if due is not None and lazy.now >= due:
            for suspicion in lazy.detector.judge(lazy.now):
                found.setdefault(suspicion.node, lazy.now)

    lazy.judge = judge_when_due  # type: ignore[method-assign]
    for listener in (eager, lazy):
        listener.run(seed % 50 * 0.005)
        listener.silent = {"b"} if seed % 2 else {"b", "c"}
        listener.run(1)
    assert found.keys() == eager.found.keys()
    for node, at in found.items():
        assert at == pytest.approx(eager.found[node][0], abs=0.011)


def test_whoever_is_told_to_look_again_is_told_a_later_time() -> None:
    """Also where a time and a wait are rounded: that moment would be looked at without end."""
    for number in range(200):
        look_until_found(1000 + number / 7)


def look_until_found(began: float) -> None:
    detector = Detector(TIMINGS)
    detector.watch(began, "a")
    beats = ((seq, began + seq * BEAT) for seq in itertools.count())
    seq, beat_at = next(beats)
    found: list[Suspicion] = []
    while not found:
        due = detector.next_deadline()
        assert due is not None
        now = min(due, beat_at)
        if now == beat_at:
            detector.own_beat_sent(now, seq)
            detector.own_beat_seen(now, seq)
            seq, beat_at = next(beats)
        if now == due:
            found = detector.judge(now)
            assert found or (detector.next_deadline() or 0) > now
    assert now < began + 2
