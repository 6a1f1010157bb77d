"""The way between processes and brokers: late, cut in one direction or both, slow for some kinds of requests.

A request that has left arrives, whatever becomes of its sender, unless it is lost; its answer may be lost when it has
had its effect. Requests of different connections overtake each other.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sim_loop import Process, SimLoop

from millstream.processor.errors import UnavailableError

T = TypeVar("T")

REQUEST_TIMEOUT_S = 0.3
_RESET_S = 0.002


@dataclass(frozen=True, eq=False)
class Cut:
    """What does not get through: to or from which brokers, requests of which kinds (None: all), or their answers.

    With `resets` the sender is told at once.
    """

    brokers: frozenset[int] | None
    requests: bool
    answers: bool
    resets: bool = False
    kinds: tuple[str, ...] | None = None

    def stops(self, broker: int, kind: str, *, is_answer: bool) -> bool:
        way = self.answers if is_answer else self.requests
        return way and (self.brokers is None or broker in self.brokers) and (self.kinds is None or kind in self.kinds)


@dataclass(frozen=True, eq=False)
class Slow:
    """Requests of a kind (None: all) and their answers take longer, by up to so many seconds each way."""

    kind: str | None
    seconds: float


@dataclass(eq=False)
class Link:
    """A machine's way to the brokers."""

    name: str
    machine: Any
    cuts: list[Cut] = field(default_factory=list)
    slow: list[Slow] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Client:
    """A process and its way."""

    process: Process
    link: Link


@dataclass(eq=False)
class Trap:
    """Something that happens to the sender of a certain request, before it takes effect or after."""

    kind: str
    link: Link | None
    after: bool
    spring: Callable[[Any], None]


class Network:
    """`way_s` is about how long anything is under way."""

    def __init__(self, loop: SimLoop, rng: random.Random, brokers: int) -> None:
        self.way_s = 0.0005
        self.brokers = brokers
        self.down: set[int] = set()
        self.traps: list[Trap] = []
        self.loop = loop
        self._rng = rng
        self._outside = contextvars.Context()
        # A context of its own, so that what happens at a broker does not stop with the process that asked for it.
        self._outside.run(_outside.set, True)

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Something that happens at the brokers, or to the world."""
        self.loop.call_at(self.loop.now + seconds, what, context=self._outside)

    def _way(self, link: Link, kind: str) -> float:
        seconds = self.way_s * (0.3 + self._rng.random() * 2)
        for slow in link.slow:
            if slow.kind is None or slow.kind == kind:
                seconds += self._rng.random() * slow.seconds
        return seconds

    async def ask(
        self,
        client: Client,
        broker: int,
        kind: str,
        handle: Callable[[Callable[[T], None]], None],
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> T:
        """Have a broker `handle` a request, which answers by calling what it is given, at once or later."""
        loop = self.loop
        future: asyncio.Future[T] = asyncio.Future(loop=loop)
        link, context = client.link, client.process.context
        end = loop.now + timeout_s

        def fail(why: str) -> None:
            if not future.done():
                future.set_exception(UnavailableError(f"{kind} at broker {broker}: {why}"))

        def deliver(answer: T) -> None:
            if not future.done():
                future.set_result(answer)

        def lose() -> None:
            """The sender hears of nothing until it has waited for long enough."""
            loop.call_at(end, fail, "no answer in time", context=context)

        def respond(answer: T) -> None:
            at = loop.now + self._way(link, kind)
            is_lost = broker in self.down or (link.cuts and self._is_lost(link, broker, kind, is_answer=True))
            if is_lost or at > end:
                lose()
            else:
                loop.call_at(at, deliver, answer, context=context)

        def arrive() -> None:
            if broker in self.down or (link.cuts and self._is_lost(link, broker, kind, is_answer=False)):
                if broker in self.down or any(cut.resets for cut in link.cuts):
                    loop.call_at(loop.now + _RESET_S, fail, "the connection was reset", context=context)
                lose()
                return
            if self.traps:
                self._spring(kind, link, after=False)
            handle(respond)
            if self.traps:
                self._spring(kind, link, after=True)

        at = loop.now + self._way(link, kind)
        loop.call_at(at, arrive, context=self._outside)
        if at > end:
            lose()
        return await future

    @staticmethod
    def _is_lost(link: Link, broker: int, kind: str, *, is_answer: bool) -> bool:
        return any(cut.stops(broker, kind, is_answer=is_answer) for cut in link.cuts)

    def _spring(self, kind: str, link: Link, *, after: bool) -> None:
        for trap in list(self.traps):
            if trap.kind == kind and trap.after == after and trap.link in (None, link):
                self.traps.remove(trap)
                trap.spring(link.machine)


_outside: contextvars.ContextVar[Any] = contextvars.ContextVar("outside", default=False)
