"""Readiness says whether work may be expected of a node, and why not."""

from __future__ import annotations

import pytest

from millstream.processor.control import Progress
from millstream.processor.counts import Counts
from millstream.processor.measures import Measures, ShardReport
from millstream.processor.readiness import SILENCE_S_MAX, Heard, Part, Readiness, readiness
from millstream.processor.slot import Standing, WorkerView

NOW = 1000.0


def worker(number: int, *shards: int, standing: Standing = Standing.READY) -> WorkerView:
    return WorkerView(number, 1, standing, shards, 0)


def heard(*reports: ShardReport, at: float = NOW) -> Heard:
    return Heard(Progress(Counts(), 0.0, Measures(topics=["t"], shards=list(reports))), at)


def node(workers: list[WorkerView], words: dict[int, Heard], phase: str = "running") -> Readiness:
    return readiness(phase, workers, words, NOW)


def test_a_quiet_shard_whose_fetches_are_answered_is_ready() -> None:
    quiet = ShardReport(0, "running", 0.05, commit_age_s=86_400.0)
    assert node([worker(0, 0)], {0: heard(quiet)}).is_ready


def test_a_node_that_owns_nothing_is_ready() -> None:
    assert node([worker(0)], {}).is_ready


@pytest.mark.parametrize("phase", ["draining", "ended"])
def test_a_node_that_was_told_to_end_is_not_ready_however_well_it_is(phase: str) -> None:
    answer = node([worker(0, 0)], {0: heard(ShardReport(0, "running"))}, phase)
    assert (answer.is_ready, answer.reason) == (False, "draining")


def test_a_node_that_has_given_out_no_shards_yet_is_starting() -> None:
    answer = node([worker(0, standing=Standing.STARTING)], {}, "starting")
    assert answer.reason == "starting"
    assert "worker 0 starting" in answer.detail


def test_a_start_that_cannot_go_on_says_what_it_waits_for() -> None:
    words = {0: Heard(Progress(Counts(), 0.0, Measures(waits_for="a broker that answers")), NOW)}
    answer = node([worker(0, standing=Standing.STARTING)], words, "starting")
    assert "worker 0 starting (waits for a broker that answers)" in answer.detail


@pytest.mark.parametrize("words", [{}, {0: heard()}, {0: heard(ShardReport(0, "starting", 0.3))}])
def test_a_node_whose_shards_have_never_run_is_starting(words: dict[int, Heard]) -> None:
    assert node([worker(0, 0)], words).reason == "starting"


def test_a_node_whose_workers_are_all_gone_is_not_ready() -> None:
    answer = node([worker(0, standing=Standing.WAITING), worker(1, standing=Standing.STARTING)], {})
    assert answer.reason == "no-worker"


@pytest.mark.parametrize("state", ["starting", "running", "restarting"])
def test_shards_that_all_wait_in_vain_say_for_how_long_and_what_the_trouble_was(state: str) -> None:
    reports = [
        ShardReport(0, state, SILENCE_S_MAX + 4, restarts=2, reason="UnavailableError: connection refused"),  # type: ignore[arg-type]
        ShardReport(1, state, SILENCE_S_MAX + 2),  # type: ignore[arg-type]
    ]
    answer = node([worker(0, 0, 1)], {0: heard(*reports)})
    assert answer.reason == "broker-away"
    assert "for 7.0 s" in answer.detail
    assert "connection refused" in answer.detail


def test_shards_that_only_read_say_why_their_fetches_fail() -> None:
    measures = Measures(shards=[ShardReport(0, "running", 9.0)], last_failure="no connection to kafka-1:9092")
    answer = node([worker(0, 0)], {0: Heard(Progress(Counts(), 0.0, measures), NOW)})
    assert answer.detail.endswith("for 9.0 s; the last trouble was no connection to kafka-1:9092")


def test_one_shard_that_gets_answers_makes_the_node_ready() -> None:
    words = {0: heard(ShardReport(0, "restarting", 60.0)), 1: heard(ShardReport(1, "running", 0.1))}
    assert node([worker(0, 0), worker(1, 1)], words).is_ready


def test_a_restart_that_takes_less_than_the_bound_leaves_the_node_ready() -> None:
    assert node([worker(0, 0)], {0: heard(ShardReport(0, "restarting", 0.4))}).is_ready


def test_a_worker_that_does_not_report_any_more_is_named() -> None:
    answer = node([worker(3, 0)], {3: heard(ShardReport(0, "running"), at=NOW - SILENCE_S_MAX - 1)})
    assert answer.reason == "worker-silent"
    assert "worker 3" in answer.detail


def part_of(node_phase: str = "in", unseen_s: float | None = 0.06, doubt: str | None = None) -> Part:
    return Part(node_phase, doubt, unseen_s)


def node_with(part: Part, workers: list[WorkerView], words: dict[int, Heard]) -> Readiness:
    return readiness("running", workers, words, NOW, part=part)


@pytest.mark.parametrize("node_phase", ["joining", "declared"])
def test_a_node_that_is_not_in_the_membership_is_not_ready(node_phase: str) -> None:
    answer = node_with(part_of(node_phase), [worker(0)], {})
    assert (answer.is_ready, answer.reason) == (False, "joining")


def test_a_node_that_is_in_and_owns_nothing_is_ready() -> None:
    assert node_with(part_of(), [worker(0)], {}).is_ready


def test_a_short_doubt_does_not_take_a_node_out() -> None:
    hiccup = part_of(unseen_s=SILENCE_S_MAX, doubt="no beat of this node has come back for 5.0 s")
    assert node_with(hiccup, [worker(0)], {}).is_ready


@pytest.mark.parametrize("shards", [(), (0,)])
def test_a_long_doubt_does_and_says_why(shards: tuple[int, ...]) -> None:
    unseen = part_of(unseen_s=SILENCE_S_MAX + 0.1, doubt="no beat of this node has come back for 5.1 s")
    answer = node_with(unseen, [worker(0, *shards)], {0: heard(*(ShardReport(s, "running") for s in shards))})
    assert (answer.reason, answer.detail) == ("in-doubt", "no beat of this node has come back for 5.1 s")


def test_where_the_broker_is_away_for_the_shards_too_that_is_the_reason() -> None:
    away = ShardReport(0, "running", SILENCE_S_MAX + 1)
    answer = node_with(part_of(unseen_s=SILENCE_S_MAX + 1), [worker(0, 0)], {0: heard(away)})
    assert answer.reason == "broker-away"
