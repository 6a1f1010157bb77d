"""When a process ended, to the millisecond and whoever killed it. Needs Linux."""

from __future__ import annotations

import os
import select
import threading
import time


class ProcessEnd:
    """Watches one process in a thread from now on, for `within_s` at most. A process that is gone has no end to see."""

    def __init__(self, pid: int, within_s: float) -> None:
        self._at_s: float | None = None
        try:
            descriptor = os.pidfd_open(pid)
        except (OSError, AttributeError):
            return
        threading.Thread(target=self._wait, args=(descriptor, within_s), daemon=True).start()

    @property
    def at_s(self) -> float | None:
        """Seconds since the epoch; None while it lives, and where the system does not tell."""
        return self._at_s

    def _wait(self, descriptor: int, within_s: float) -> None:
        try:
            ready, _, _ = select.select([descriptor], [], [], within_s)
            if ready:
                self._at_s = time.time()
        finally:
            os.close(descriptor)
