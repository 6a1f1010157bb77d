"""Tasks that live and end together.

`asyncio.TaskGroup` is right where whoever waits for the group ends with it. A group inside of a loop that goes on after
an error needs more: where a task fails just when the caller is cancelled, the group raises the task's error and
forgets the cancellation (until Python 3.13), and who goes on after that error can never be ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import ParamSpec

from millstream.processor.errors import InvariantError, RefusedError, WorldError

P = ParamSpec("P")


async def together(*works: Callable[[], Awaitable[None]]) -> None:
    """Run all side by side until all have ended; the first error cancels the others.

    Raises the error that decides (`deciding`), or CancelledError where the caller was cancelled, whatever else went
    wrong. None of them is left running.
    """
    tasks = [asyncio.create_task(told(work)) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        errors = await _ended(tasks)
    if errors:
        raise deciding(errors)


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> list[BaseException]:
    """Cancel all and wait for their end; a cancellation meanwhile is raised after that. Answers their errors."""
    for task in tasks:
        task.cancel()
    cancellation: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancellation = error
    failures = [task.exception() for task in tasks if not task.cancelled()]
    if cancellation is not None:
        raise cancellation
    return [failure for failure in failures if failure is not None]


async def told(work: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Run a task whose end others must hear of.

    A cancellation that nobody asked for (something that the task awaited was cancelled) would end it without a word,
    and leave the others waiting for it for ever. Raises InvariantError instead.
    """
    try:
        await work(*args, **kwargs)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise InvariantError("something that was awaited was cancelled, and nobody had asked for that") from error


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error of a group, and of the groups in it, that decides."""
    return deciding(list(_leaves(group)))


def deciding(errors: Sequence[BaseException]) -> BaseException:
    """The first error that trying again cannot mend, or else the first."""
    final = (error for error in errors if isinstance(error, RefusedError) or not isinstance(error, WorldError))
    return next(final, errors[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    members: Iterable[BaseException] = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    if not members:
        yield error
    for member in members:
        yield from _leaves(member)
