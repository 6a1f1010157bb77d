"""How a command that measures for long ends, and that what it did is told."""

from __future__ import annotations

import os
import signal
import time

import pytest

from millstream.loadgen.long_command import FAILED, INTERRUPTED, TO_MEND, run_command, telling
from millstream.processor.errors import MillstreamError, SettingsError, UnavailableError


def _raises(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (SettingsError("rates", ["none is given"]), TO_MEND, "none is given"),
        (UnavailableError("no broker"), FAILED, "bench: no broker\n"),
        (KeyboardInterrupt(), INTERRUPTED, ""),
    ],
)
def test_each_end_has_its_exit_code(
    error: BaseException, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("bench", lambda: _raises(error)) == code
    assert told in capsys.readouterr().err


def test_a_defect_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command("bench", lambda: _raises(ZeroDivisionError()))


def test_sigterm_cleans_up_like_an_interrupt_and_is_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    cleaned = []

    def execute() -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(20)
        finally:
            cleaned.append(True)
        return 0

    assert run_command("bench", execute) == INTERRUPTED
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("failure", [None, UnavailableError("the work's")])
@pytest.mark.parametrize("full_disk", [None, UnavailableError("the report's")])
def test_what_was_done_is_told_and_the_first_error_is_raised(
    failure: MillstreamError | None, full_disk: MillstreamError | None
) -> None:
    done, told = [1], []

    def tell() -> None:
        told.extend(done)
        if full_disk is not None:
            raise full_disk

    def work() -> None:
        with telling(tell):
            done.append(2)
            if failure is not None:
                raise failure

    first = failure or full_disk
    if first is None:
        work()
    else:
        with pytest.raises(UnavailableError) as raised:
            work()
        assert raised.value is first
    assert told == [1, 2]


def test_an_interrupted_one_tells_nothing() -> None:
    told = []
    with pytest.raises(KeyboardInterrupt), telling(lambda: told.append(1)):
        raise KeyboardInterrupt
    assert not told
