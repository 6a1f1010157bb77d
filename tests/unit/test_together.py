"""Tasks that end together: none is left, none ends without a word, and a cancellation always comes through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from virtual_time import simulated

from millstream.processor.errors import (
    FencedError,
    InvariantError,
    OutcomeUnknownError,
    RefusedError,
    StageError,
    UnavailableError,
)
from millstream.processor.together import first_error, together, told


def sleeps(seconds: float, journal: list[str], error: BaseException | None = None) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        try:
            await asyncio.sleep(seconds)
            if error is not None:
                raise error
        finally:
            journal.append(f"{seconds:g}")

    return work


@simulated
async def test_all_are_waited_for() -> None:
    journal: list[str] = []
    await together(sleeps(2, journal), sleeps(1, journal))
    assert journal == ["1", "2"]


@simulated
async def test_the_first_error_ends_the_others_and_is_raised_alone() -> None:
    journal: list[str] = []
    with pytest.raises(ZeroDivisionError):
        await together(sleeps(9, journal), sleeps(1, journal, ZeroDivisionError()), sleeps(5, journal))
    assert sorted(journal) == ["1", "5", "9"]
    assert asyncio.get_running_loop().time() < 1002


@simulated
async def test_of_several_errors_the_one_that_decides_is_raised() -> None:
    async def fails_when_cancelled() -> None:
        try:
            await asyncio.sleep(9)
        finally:
            raise StageError("final")

    with pytest.raises(StageError, match="final"):
        await together(fails_when_cancelled, sleeps(1, [], FencedError("f")))


@simulated
async def test_a_cancellation_comes_through_whatever_fails_at_that_moment() -> None:
    for turns in range(12):
        journal: list[str] = []
        task = asyncio.create_task(together(sleeps(9, journal), sleeps(1, journal, FencedError("f"))))
        await asyncio.sleep(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            assert turns > 2
            assert isinstance(task.exception(), FencedError)
            continue
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert sorted(journal) == ["1", "9"]


@simulated
async def test_those_that_are_slow_to_end_are_waited_for_however_often_the_caller_is_cancelled() -> None:
    journal: list[str] = []

    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(5)
            journal.append("ended")

    task = asyncio.create_task(together(slow_to_end, sleeps(1, journal, FencedError("f"))))
    await asyncio.sleep(2)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.5)
    assert not task.done()
    await asyncio.wait([task])
    assert task.cancelled()
    assert journal == ["1", "ended"]


@simulated
async def test_the_callers_own_count_of_cancellations_is_left_alone() -> None:
    """A task group leaves it raised by one, and what looks at it later is misled."""
    for _ in range(3):
        with pytest.raises(FencedError):
            await together(sleeps(9, []), sleeps(1, [], FencedError("f")))
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@simulated
async def test_a_cancellation_that_nobody_asked_for_is_an_error() -> None:
    with pytest.raises(InvariantError):
        await together(sleeps(9, []), sleeps(1, [], asyncio.CancelledError()))
    with pytest.raises(InvariantError):
        await told(sleeps(1, [], asyncio.CancelledError()))


def test_an_error_that_a_new_attempt_cannot_mend_comes_before_those_that_it_can() -> None:
    unforeseen, refused = ZeroDivisionError(), RefusedError("r")
    for final in (unforeseen, refused, StageError("s")):
        members = [FencedError("f"), ExceptionGroup("inner", [OutcomeUnknownError("o"), final]), UnavailableError("u")]
        assert first_error(ExceptionGroup("outer", members)) is final
    fenced = FencedError("f")
    assert first_error(ExceptionGroup("outer", [fenced, UnavailableError("u")])) is fenced
