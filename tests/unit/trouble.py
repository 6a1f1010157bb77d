"""What goes wrong in the log in memory, step by step: planned, by chance, or held up until a test lets go."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millstream.processor.errors import (
    MillstreamError,
    OutcomeUnknownError,
    UnavailableError,
)

COMMIT_STEPS = ("produce", "offsets", "end")
"""The steps of `commit`, in their order."""


@dataclass
class _Fault:
    step: str
    error: BaseException
    after: bool
    times: int


@dataclass
class Trouble:
    """What goes wrong, by step. The steps of a shard are fence, committed, starting, bounds, produce, offsets, end."""

    latency_s: Callable[[], float] = lambda: 0.001
    chance: Mapping[str, float] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    _faults: list[_Fault] = field(default_factory=list)
    _held: dict[str, asyncio.Event] = field(default_factory=dict)
    _reached: dict[str, asyncio.Event] = field(default_factory=dict)

    def fail(self, step: str, error: BaseException, *, after: bool = False, times: int = 1) -> None:
        """The next `times` times the step fails, `after` it took effect or before."""
        self._faults.append(_Fault(step, error, after, times))

    def hold(self, step: str) -> asyncio.Event:
        """From now on the step waits before it takes effect. Answers the event that says that it was reached."""
        self._held[step] = asyncio.Event()
        self._reached[step] = asyncio.Event()
        return self._reached[step]

    def let_go(self, step: str) -> None:
        self._held.pop(step).set()

    async def before(self, step: str) -> BaseException | None:
        """Wait as the step must; what is to be raised after it took effect. Raises what comes before."""
        await asyncio.sleep(self.latency_s())
        if step in self._held:
            self._reached[step].set()
            await self._held[step].wait()
        for fault in self._faults:
            if fault.step == step and fault.times:
                fault.times -= 1
                if fault.after:
                    return fault.error
                raise fault.error
        if self.rng.random() < self.chance.get(step, 0.0):
            error = self._random_error(step)
            if self.rng.random() < 0.5:
                return error
            raise error
        return None

    def _random_error(self, step: str) -> MillstreamError:
        if step in COMMIT_STEPS and self.rng.random() < 0.8:
            return OutcomeUnknownError(f"{step}: nobody answered")
        return UnavailableError(f"{step}: not now")
