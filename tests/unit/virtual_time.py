"""An event loop whose clock jumps: waiting costs nothing, and waiting for what can never come is an error."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Real code works with clocks that have been running for a while.
_START_S = 1000.0
# Where timers go on for ever a hang is seen by this: a day costs nothing.
_TEST_S_MAX = 24 * 3600.0


class NothingLeftToHappenError(AssertionError):
    """Everybody waits, and there is no timer that could wake anyone: a hang."""


class _JumpingSelector(selectors.SelectSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise NothingLeftToHappenError
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs timers in their order without waiting for them."""

    def __init__(self) -> None:
        self.now = _START_S
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def simulated(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Run an async test in virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(_bounded(test(*args, **kwargs)))

    async def _bounded(running: Coroutine[Any, Any, T]) -> T:
        async with asyncio.timeout(_TEST_S_MAX):
            return await running

    return run
