"""A timer that is put off and brought forward at will, and that one task waits for."""

from __future__ import annotations

import asyncio
import math


class Alarm:
    """Goes off at `due` (seconds of the loop's clock), which whoever is awake may change at any time."""

    def __init__(self) -> None:
        self.due = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._rung = asyncio.Event()

    def set(self, due: float) -> None:
        """Go off then, and not before; at once where that has passed."""
        self.cancel()
        self.due = due
        if due < math.inf:
            self._timer = asyncio.get_running_loop().call_at(due, self._rung.set)

    def cancel(self) -> None:
        """Do not go off."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._rung.clear()

    async def wait(self) -> None:
        """Until it goes off. Nothing is missed: where it has gone off and was not set anew, this returns at once."""
        # Between ringing and being heard it may have been put off.
        while not self._rung.is_set():
            await self._rung.wait()
