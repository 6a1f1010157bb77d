"""When a node's beats are sent: on a schedule that waits for no answer, and together with whatever wakes it anyway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from millstream.processor.alarm import Alarm

# Beats under way at once; while so many are unanswered another one would say nothing new.
_UNANSWERED_MAX: Final = 8
# How much of the time between what wakes the node and its beats is taken off with each beat.
_PULL: Final = 0.125


class Heartbeat:
    """Sends what `beat` answers when it is called with the time, `interval_s()` apart; None is no beat this time.

    Waking up is most of what beats cost. So one is sent up to `early_s` (or a quarter of the interval) before or after
    its time where `forestall` is called then. The schedule moves slowly to where that happens: else a beat could come
    early now and late then.
    """

    def __init__(
        self,
        interval_s: Callable[[], float],
        early_s: float,
        beat: Callable[[float], Coroutine[Any, Any, object] | None],
    ) -> None:
        self._interval_s = interval_s
        self._early_s = early_s
        self._beat = beat
        self._due = 0.0
        self._alarm = Alarm()
        self._tasks: asyncio.TaskGroup | None = None
        self._unanswered: set[asyncio.Task[object]] = set()

    async def run(self) -> None:
        """Until cancelled. Raises what a beat raises, in a group."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._due = loop.time()
                while True:
                    self._send(loop.time())
                    await self._alarm.wait()
        finally:
            self._tasks = None
            self._alarm.cancel()

    def forestall(self, now: float) -> None:
        """Somebody is awake: send what is due about now."""
        if self._tasks is not None and now >= self._due - self._slack_s():
            self._send(now)

    def _slack_s(self) -> float:
        return min(self._early_s, self._interval_s() / 4)

    def _send(self, now: float) -> None:
        if len(self._unanswered) < _UNANSWERED_MAX and (step := self._beat(now)) is not None:
            assert self._tasks is not None
            sending = self._tasks.create_task(step)
            self._unanswered.add(sending)
            sending.add_done_callback(self._unanswered.discard)
        interval_s = self._interval_s()
        on_time = self._due + interval_s + (now - self._due) * _PULL
        # One that is far too late is not made up for by the next.
        self._due = max(on_time, now + interval_s / 2)
        self._alarm.set(self._due + self._slack_s())
