"""An event loop in virtual time whose callbacks belong to processes that can be frozen and killed.

Whatever a task of a process has asked for (a timer, an answer, another task's result) is a callback in that process'
context. A process that is frozen keeps its callbacks until it is thawed, and then has them in their order, as one finds
them after SIGCONT; one that is killed never has them. Nothing here reads a real clock, waits, or polls a socket, and
the same callbacks always come in the same order.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

START_S = 1000.0
_CALLBACKS_MAX = 2_000_000


class Process:
    """What freezes or dies as one: its callbacks run only while it is awake."""

    def __init__(self, name: str, machine: Any) -> None:
        self.name = name
        self.machine = machine
        self.is_held = False
        self.is_dead = False
        self.held: list[Handle] = []
        self.context = contextvars.Context()
        self.context.run(_process.set, self)

    def __repr__(self) -> str:
        return self.name


_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current_process() -> Process | None:
    """The process whose callback runs now; None for the world's own."""
    return _process.get()


class Handle:
    """A callback that is to run, as `asyncio.Handle`."""

    __slots__ = ("_args", "_callback", "_when", "context", "is_cancelled")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Any, when: float) -> None:
        self._callback = callback
        self._args = args
        self._when = when
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self._callback, self._args = _nothing, ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when

    def run(self) -> None:
        self.context.run(self._callback, *self._args)


def _nothing() -> None:
    pass


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """Sets of tasks are gone through in the order in which the tasks were made, not in that of their addresses."""

    serial = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._serial = next(SimTask.serial)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._serial


class SimLoop(asyncio.AbstractEventLoop):
    """As much of an event loop as tasks, futures, timers and `asyncio.timeout` need."""

    def __init__(self) -> None:
        self.now = START_S
        self.callbacks = 0
        self.failure: BaseException | None = None
        self.processes: list[Process] = []
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._order = itertools.count()
        self._tasks: list[SimTask] = []
        SimTask.serial = itertools.count()

    # -- what asyncio asks for ----------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        handle = Handle(callback, args, contextvars.copy_context() if context is None else context, self.now)
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        handle = Handle(callback, args, contextvars.copy_context() if context is None else context, when)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        return self.call_at(self.now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None) -> SimTask:  # type: ignore[override]
        task = SimTask(coro, loop=self, name=name or "", context=context)
        self._tasks.append(task)
        if len(self._tasks) > 10_000:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failure = self.failure or context.get("exception") or AssertionError(context.get("message"))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    # -- running ------------------------------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within this the loop is the one that runs."""
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    def run_until(self, end: float) -> None:
        """Run everything that happens before that time. Raises what a callback raised."""
        ready, timers = self._ready, self._timers
        while self.failure is None:
            while ready:
                self._run(ready.popleft())
            if not timers or timers[0][0] > end:
                break
            when, _, handle = heapq.heappop(timers)
            if not handle.is_cancelled:
                if when > self.now:
                    self.now = when
                self._run(handle)
        if self.failure is not None:
            raise self.failure
        self.now = end

    def _run(self, handle: Handle) -> None:
        process = handle.context.get(_process)
        if process is not None and process.is_held:
            process.held.append(handle)
            return
        self.callbacks += 1
        if self.callbacks > _CALLBACKS_MAX:
            raise AssertionError(f"{self.callbacks} callbacks by {self.now - START_S:.3f} s: somebody runs in circles")
        handle.context.run(handle._callback, *handle._args)

    # -- processes ----------------------------------------------------------------------------------------------

    def process(self, name: str, machine: Any) -> Process:
        """A new one."""
        self.processes.append(Process(name, machine))
        return self.processes[-1]

    def hold(self, process: Process) -> None:
        """As SIGSTOP does."""
        process.is_held = True

    def let_go(self, process: Process) -> None:
        """As SIGCONT does."""
        if not process.is_dead:
            process.is_held = False
            self._ready.extend(process.held)
            process.held.clear()

    def kill(self, process: Process) -> None:
        """As SIGKILL does."""
        process.is_dead = process.is_held = True

    def close(self) -> None:
        """Cancel every task and let it end: those of the dead too, which the collector would complain about."""
        for _ in range(50):
            left = [task for task in self._tasks if not task.done()]
            if not left:
                return
            for task in left:
                task.cancel()
            for process in self.processes:
                process.is_held = False
                self._ready.extend(process.held)
                process.held.clear()
            while self._ready:
                self._ready.popleft().run()
        raise AssertionError(f"tasks that do not end when they are cancelled: {left}")
