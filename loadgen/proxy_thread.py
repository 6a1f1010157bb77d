"""The fault proxy in a thread with an event loop of its own, for callers that block or whose loop is busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from millstream.loadgen.fault_proxy import FaultProxy
from millstream.loadgen.fault_rules import Fault, Rule
from millstream.loadgen.moments import Strike

T = TypeVar("T")

_ANSWER_S = 10.0


class ProxyThread:
    """As FaultProxy, with the same arguments. A context manager; every method returns when it has taken effect.

    Leaving raises UnavailableError where something passed that the proxy could not read.
    """

    def __init__(self, upstream: str, *, host: str = "127.0.0.1", name: str = "proxy", seed: int = 0) -> None:
        self._proxy = FaultProxy(upstream, host=host, name=name, seed=seed)
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(_ANSWER_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.result().call_soon_threadsafe(self._over.set)
        self._thread.join(_ANSWER_S)
        if error is None:
            self._proxy.check()

    @property
    def bootstrap(self) -> str:
        """Where clients connect to."""
        return self._proxy.bootstrap

    def apply(self, *rules: Rule) -> Fault:
        """These rules hold when this returns."""
        return self._there(lambda: self._proxy.apply(*rules))

    def lift(self, fault: Fault) -> None:
        """Its rules hold no more. Raises ValueError where it was lifted before."""
        self._there(lambda: self._proxy.lift(fault))

    def refuse(self) -> Strike:
        """New connections are refused when this returns."""
        return self._awaited(self._proxy.refuse())

    def accept(self) -> Strike:
        """New connections are accepted again when this returns. Raises UnavailableError."""
        return self._awaited(self._proxy.accept())

    def check(self) -> None:
        """Raises UnavailableError where something passed that could not be read."""
        self._proxy.check()

    def _there(self, work: Callable[[], T]) -> T:
        async def called() -> T:
            return work()

        return self._awaited(called())

    def _awaited(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._started.result()).result(_ANSWER_S)

    def _run(self) -> None:
        # asyncio's own loop: uvloop's refuses to close (EBUSY) now and then, while it still closes sockets by itself.
        with asyncio.Runner() as runner:
            try:
                runner.run(self._serve())
            except Exception as error:
                # Whoever waits for the start must hear why there is none.
                if self._started.done():
                    raise
                self._started.set_exception(error)

    async def _serve(self) -> None:
        await self._proxy.start()
        try:
            self._started.set_result(asyncio.get_running_loop())
            await self._over.wait()
        finally:
            await self._proxy.close()
