"""Stages that call a function for each value: filter, split, map and flat_map.

Unless told otherwise functions do not see tombstones: those pass, in their place, to every output of the stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from millstream.processor.columns import Bools, Index
from millstream.processor.stages.batch import Batch, Failure
from millstream.processor.stages.calls import (
    Answers,
    Caller,
    Errors,
    WrongAnswerError,
    call_each,
    refuse_awaitable,
    truths,
)
from millstream.processor.stages.flow import Flow


@dataclass(frozen=True, slots=True)
class _Called:
    """A decoded flow, the answers for the values that the function saw, and where those stand in the flow.

    `seen` is None where the function saw all of them.
    """

    flow: Flow
    answers: Answers
    seen: Index | None

    def spread(self, results: list[Any]) -> list[Any]:
        """Results in the places of their values; None, a tombstone, where the function was not asked."""
        if self.seen is None:
            return results
        spread: list[Any] = [None] * len(self.flow)
        for position, result in zip(self.seen.tolist(), results, strict=True):
            spread[position] = result
        return spread

    def place(self, i: int) -> int:
        """Where the value of answer i stands in the flow."""
        return i if self.seen is None else int(self.seen[i])

    def succeeded(self) -> Bools:
        """All values of the flow but those that the function failed on."""
        mask = np.ones(len(self.flow), np.bool_)
        for i in self.answers.failed:
            mask[self.place(i)] = False
        return mask


async def _call(caller: Caller, sees_tombstones: bool, flow: Flow, batch: Batch) -> _Called:
    flow = flow.decoded(batch)
    values = flow.objects or []
    null = None if sees_tombstones else flow.null_mask()
    if null is None:
        return _Called(flow, await caller.call_all(values, flow.rows, batch), None)
    seen = np.flatnonzero(~null)
    answers = await caller.call_all([values[i] for i in seen.tolist()], flow.rows[seen], batch)
    return _Called(flow, answers, seen)


def _refuse(called: _Called, errors: Errors, caller: Caller, batch: Batch) -> None:
    """Answers that cannot be used fail like the function itself, but no retry would mend them."""
    for i in sorted(errors):
        row = int(called.flow.rows[called.place(i)])
        batch.fail(Failure(caller.identity, row, errors[i], 1))


@dataclass(frozen=True, slots=True)
class FilterStage:
    """Lets through the values for which the function answers something true. With `splits`, port 1 gets the rest."""

    caller: Caller
    sees_tombstones: bool
    splits: bool = False

    async def run(self, flow: Flow, batch: Batch) -> tuple[Flow, ...]:
        """One flow for each port. The bytes of what is let through stay as they are."""
        called = await _call(self.caller, self.sees_tombstones, flow, batch)
        answers = called.answers
        results = answers.results
        for i in answers.failed:
            results[i] = False
        kept, errors = truths(results)
        _refuse(called, errors, self.caller, batch)
        usable = called.succeeded()
        for i in errors:
            usable[called.place(i)] = False
        accepted, refused = usable.copy(), usable
        if called.seen is None:
            accepted &= kept
            refused &= ~kept
        else:
            # A tombstone says that a key is no more; which side the key was on nobody can tell, so both hear of it.
            accepted[called.seen] &= kept
            refused[called.seen] &= ~kept
        if not self.splits:
            return (called.flow.kept(accepted),)
        return called.flow.kept(accepted), called.flow.kept(refused)


@dataclass(frozen=True, slots=True)
class MapStage:
    """Puts the function's answer in the place of each value. An answer of None is a tombstone."""

    caller: Caller
    sees_tombstones: bool

    async def run(self, flow: Flow, batch: Batch) -> tuple[Flow]:
        """One flow of the new values."""
        called = await _call(self.caller, self.sees_tombstones, flow, batch)
        results = called.answers.results
        usable = called.succeeded() if called.answers.failed else None
        mapped = called.flow.with_objects(called.spread(results))
        if mapped.may_have_awaitables():
            _, errors = call_each(refuse_awaitable, (results,))
            _refuse(called, errors, self.caller, batch)
            usable = called.succeeded()
            for i in errors:
                usable[called.place(i)] = False
        return (mapped if usable is None else mapped.kept(usable),)


@dataclass(frozen=True, slots=True)
class FlatMapStage:
    """Puts the values that the function answers, in their order, in the place of each value."""

    caller: Caller
    sees_tombstones: bool

    async def run(self, flow: Flow, batch: Batch) -> tuple[Flow]:
        """One flow of all the new values, each with the row that it was made from. The caller calls a `listing`."""
        called = await _call(self.caller, self.sees_tombstones, flow, batch)
        answers = called.answers
        for i in answers.failed:
            answers.results[i] = ()
        lists = answers.results
        if called.seen is not None:
            lists = [(None,) if answer is None else answer for answer in called.spread(lists)]
        sizes = np.fromiter(map(len, lists), np.int64, len(lists))
        source = called.flow
        repeated = Flow(np.repeat(source.rows, sizes), source.stored, np.repeat(source.positions, sizes))
        return (repeated.with_objects(list(chain.from_iterable(lists))),)


def listing(function: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
    """The function, with its answer as a list.

    A generator runs its function's body only while it is read, so it is read within the call: what it raises is then
    retried, and falls on its own record, like anything else.
    """
    if is_async:

        async def listed_async(*arguments: object) -> list[Any] | tuple[Any, ...]:
            return _listed(await function(*arguments))

        return listed_async

    def listed(*arguments: object) -> list[Any] | tuple[Any, ...]:
        return _listed(function(*arguments))

    return listed


def _listed(answer: Any) -> list[Any] | tuple[Any, ...]:
    if type(answer) is list or type(answer) is tuple:
        return answer
    refuse_awaitable(answer)
    if isinstance(answer, str | bytes | bytearray | dict) or not isinstance(answer, Iterable):
        raise WrongAnswerError(
            f"flat_map needs an iterable of values, such as a list or a generator; "
            f"the function answered {type(answer).__name__}"
        )
    return list(answer)
