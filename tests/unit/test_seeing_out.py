"""A load and its judge, followed to their ends; everything that can be told is told on the way."""

from __future__ import annotations

from typing import Any, cast

import pytest

from millstream.loadgen import seeing_out
from millstream.loadgen.companion import Companion
from millstream.loadgen.produce import SendProgress, SendReport
from millstream.loadgen.seeing_out import Standing, see_out
from millstream.loadgen.verify import JudgeProgress
from millstream.processor.errors import UnavailableError

REPORT = SendReport(events=100, delivered=100, failed=0, first_error=None, seconds=1.0, started_us=0, lateness=None)


class Played:
    """A companion whose words are known beforehand: its progress at each listening, and then its result."""

    def __init__(self, words: list[Any], result: Any) -> None:
        self._words, self._result = words, result
        self.progress: Any = None

    def listen(self, timeout_s: float) -> Any:
        assert timeout_s >= 0
        if self._words:
            self.progress = self._words.pop(0)
            return None
        return self._result


class Node:
    """Ends by itself after so many looks."""

    def __init__(self, looks: int = 1000) -> None:
        self._looks = looks

    def check(self) -> None:
        self._looks -= 1
        if not self._looks:
            raise UnavailableError("the node ended by itself")

    def log_end(self) -> str:
        return "its last words"


def followed(generator: Played, court: Played, node: Node, *, within_s: float = 60.0) -> tuple[Any, list[Standing]]:
    told: list[Standing] = []
    found = see_out(
        cast("Companion[SendProgress, SendReport]", generator),
        cast("Companion[JudgeProgress, str]", court),
        node,
        within_s=within_s,
        tick_s=0.0,
        on_tick=told.append,
    )
    return found, told


def test_both_are_followed_to_the_end_and_told_of() -> None:
    generator = Played([SendProgress(40), SendProgress(90)], REPORT)
    court = Played([None, JudgeProgress("following", 30, None), JudgeProgress("settling", 100, None)], "clean")
    found, told = followed(generator, court, Node())
    assert found == (REPORT, "clean")
    assert told == [
        Standing(True, 40, 0, "to be seated"),
        Standing(True, 90, 30, "following"),
        Standing(False, 100, 100, "settling"),
        Standing(False, 100, 100, "settling"),
    ]


def test_a_node_that_ends_is_told_at_once() -> None:
    with pytest.raises(UnavailableError, match="ended by itself"):
        followed(Played([SendProgress(1)] * 100, REPORT), Played([], None), Node(looks=3))


def test_a_verdict_that_does_not_come_has_an_end_with_the_nodes_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            self.now += 1.0
            return self.now

    monkeypatch.setattr(seeing_out, "time", Clock())
    with pytest.raises(UnavailableError, match=r"no verdict in 10 s; .*\nits last words"):
        followed(Played([], REPORT), Played([], None), Node(), within_s=10.0)
