"""Calling a user's function for each value of a batch, so that one bad value never takes its neighbours along.

A `Caller` answers for all values at once: results in order, and the values that failed for good. The function is
called once per value and attempt; only what failed is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import Any, Final

import numpy as np

from millstream.processor.columns import Index
from millstream.processor.stage_mark import UNWATCHED, StageMark
from millstream.processor.stages.batch import Batch, Failure, Identity

Errors = dict[int, Exception]
Arguments = tuple[Sequence[object], ...]

# How many calls are made in a row before anyone hears of it: four times as many as long as they are quick.
_CALLS_MIN: Final = 16
_CALLS_MAX: Final = 4096
_QUICK_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Answers:
    """`results[i]` answers value i; the results of `failed` positions mean nothing."""

    results: list[Any]
    failed: list[int] = field(default_factory=list)


class WrongAnswerError(TypeError):
    """A function answered something that its stage cannot use."""


def call_each(
    function: Callable[..., Any], arguments: Arguments, *, stop_early: bool = False, mark: StageMark = UNWATCHED
) -> tuple[list[Any], Errors]:
    """Call for each value; where that raised there is None. With `stop_early` nothing follows the first raise.

    `mark` hears now and then that calls come back.
    """
    results: list[Any] = []
    errors: Errors = {}
    count = len(arguments[0])
    # `extend` keeps what it appended before an exception, and `map` goes on behind the value that raised: so the
    # length of `results` names the failing position, and no value is called twice. It costs next to nothing per value.
    calls = map(function, *arguments)
    in_a_row = _CALLS_MIN
    began = perf_counter()
    while len(results) < count:
        end = min(len(results) + in_a_row, count)
        try:
            results.extend(islice(calls, end - len(results)))
            if len(results) < end:
                # The only other way out of `extend`: the function itself raised StopIteration.
                raise RuntimeError("the function raised StopIteration")
        except Exception as error:
            errors[len(results)] = error
            results.append(None)
            if stop_early:
                break
        mark.alive()
        now = perf_counter()
        in_a_row = min(4 * in_a_row, _CALLS_MAX) if now - began < _QUICK_S else _CALLS_MIN
        began = now
    return results, errors


async def call_each_async(
    function: Callable[..., Any],
    arguments: Arguments,
    *,
    concurrency: int,
    timeout_ms: int | None,
    stop_early: bool,
    mark: StageMark = UNWATCHED,
) -> tuple[list[Any], Errors]:
    """Await for each value, at most `concurrency` at a time; results keep the order of the values.

    Each call has `timeout_ms`. With `stop_early` no further call starts once one has failed; those under way end.
    Cancelling this cancels all calls and waits for them.
    """
    count = len(arguments[0])
    results: list[Any] = [None] * count
    errors: Errors = {}
    remaining = iter(range(count))

    async def work() -> None:
        for i in remaining:
            if stop_early and errors:
                return
            try:
                results[i] = await _one_call(function, [column[i] for column in arguments], timeout_ms)
            except Exception as error:
                errors[i] = error
            mark.alive()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, count)):
            group.create_task(work())
    return results, errors


async def _one_call(function: Callable[..., Any], arguments: list[object], timeout_ms: int | None) -> Any:
    try:
        if timeout_ms is None:
            return await function(*arguments)
        async with asyncio.timeout(timeout_ms / 1000) as deadline:
            return await function(*arguments)
    except TimeoutError as error:
        if timeout_ms is not None and deadline.expired():
            raise TimeoutError(f"no answer within {timeout_ms} ms") from error
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Something that the function awaited was cancelled, not we. Let through, it would end this worker without a
        # word and leave its values without an answer.
        raise RuntimeError("what the function awaited was cancelled") from error


@dataclass(frozen=True, slots=True)
class Caller:
    """A user's function with the rules for calling it."""

    function: Callable[..., Any]
    wants_record: bool
    is_async: bool
    identity: Identity
    concurrency: int = 1
    timeout_ms: int | None = None

    async def call_all(self, values: Sequence[object], rows: Index, batch: Batch) -> Answers:
        """Call for all values; `rows` are their input rows. Raises StageError where the policy is to stop."""
        arguments: Arguments = (values, batch.views(rows)) if self.wants_record else (values,)
        results, errors = await self._call(arguments, batch.mark)
        if not errors:
            return Answers(results)
        attempts = await self._retry(arguments, results, errors, batch)
        failed = sorted(errors)
        for i in failed:
            batch.fail(Failure(self.identity, int(rows[i]), errors[i], attempts))
        return Answers(results, failed)

    async def _call(self, arguments: Arguments, mark: StageMark) -> tuple[list[Any], Errors]:
        policy = self.identity.policy
        # The pipeline is about to stop: what further calls would do, to the world too, could only be done again.
        stop_early = policy.action == "stop" and not policy.retries
        if not self.is_async:
            return call_each(self.function, arguments, stop_early=stop_early, mark=mark)
        return await call_each_async(
            self.function,
            arguments,
            concurrency=self.concurrency,
            timeout_ms=self.timeout_ms,
            stop_early=stop_early,
            mark=mark,
        )

    async def _retry(self, arguments: Arguments, results: list[Any], errors: Errors, batch: Batch) -> int:
        """Try what failed again, as often as the policy says; what succeeds leaves `errors`. Answers the attempts."""
        policy = self.identity.policy
        for retry in range(1, policy.retries + 1):
            if not errors:
                return retry
            batch.mark.rest()
            await asyncio.sleep(policy.wait_ms(retry) / 1000)
            batch.mark.alive()
            again = sorted(errors)
            batch.counts.retries += len(again)
            some = tuple([column[i] for i in again] for column in arguments)
            new_results, new_errors = await self._call(some, batch.mark)
            errors.clear()
            for place, i in enumerate(again):
                results[i] = new_results[place]
                if place in new_errors:
                    errors[i] = new_errors[place]
        return policy.retries + 1


def truths(results: list[Any]) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], Errors]:
    """Whether each result counts as true, as `if` would have it; awaitables and what has no truth are errors."""
    try:
        # Almost always all of them are bools, and then this is the quickest way to an array.
        return np.frombuffer(bytes(results), np.uint8) != 0, {}
    except (TypeError, ValueError):
        pass
    values, errors = call_each(_truth, (results,))
    return np.fromiter((value is True for value in values), np.bool_, len(values)), errors


def _truth(result: Any) -> bool:
    refuse_awaitable(result)
    return bool(result)


def refuse_awaitable(result: Any) -> None:
    """Raise WrongAnswerError for a coroutine that nobody awaited."""
    if hasattr(type(result), "__await__"):
        if hasattr(result, "close"):
            result.close()  # otherwise Python warns, long after and far away, that it was never awaited
        raise WrongAnswerError(
            f"the function answered a {type(result).__name__} that was not awaited; "
            "give the stage the async function itself, not a function that calls it"
        )
