"""Work in a process of its own: its progress, its result, its failure and its death all reach the one who waits."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest

from millstream.loadgen.companion import Companion
from millstream.processor.errors import UnavailableError

BOUND_S = 30.0


def _count_to_three(tell: Callable[[int], None]) -> str:
    for number in (1, 2, 3):
        tell(number)
    return "done"


def _fail(tell: Callable[[int], None]) -> str:
    raise UnavailableError("there is no broker")


def _die(tell: Callable[[int], None]) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def _speak_for_ever(tell: Callable[[int], None]) -> str:
    while True:
        tell(os.getpid())
        time.sleep(0.01)


def _awaited(companion: Companion[int, str]) -> str:
    deadline = time.monotonic() + BOUND_S
    while (result := companion.listen(0.1)) is None:
        assert time.monotonic() < deadline
    return result


def test_progress_and_result_arrive() -> None:
    with Companion("counter", _count_to_three) as companion:
        assert _awaited(companion) == "done"
        assert companion.progress == 3
        assert companion.listen(0) == "done"


def test_a_failure_arrives_with_its_reason() -> None:
    with (
        Companion("counter", _fail) as companion,
        pytest.raises(UnavailableError, match="the counter failed: there is no broker"),
    ):
        _awaited(companion)


def test_a_death_is_noticed() -> None:
    with Companion("counter", _die) as companion, pytest.raises(UnavailableError, match="the counter died"):
        _awaited(companion)


def test_leaving_ends_a_companion_that_is_not_done() -> None:
    with Companion[int, str]("speaker", _speak_for_ever) as companion:
        deadline = time.monotonic() + BOUND_S
        while companion.progress is None:
            companion.listen(0.1)
            assert time.monotonic() < deadline
        pid = companion.progress
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)
