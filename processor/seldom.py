"""Warnings about trouble that lasts: said at once, and then only now and then while it goes on."""

from __future__ import annotations

import time

from millstream.processor.event_log import EventLog

_AGAIN_S = 10.0


class SeldomWarning:
    """Logs one kind of trouble at most every 10 s; the line says how often it was met since the last."""

    def __init__(self, log: EventLog, event: str, **fields: object) -> None:
        self._log = log.bind(**fields)
        self._event = event
        self._last = float("-inf")
        self._times = 0

    def __call__(self, reason: object) -> None:
        """The trouble was met once more."""
        self._times += 1
        now = time.monotonic()
        if now - self._last >= _AGAIN_S:
            self._log.warning(self._event, reason=reason, times=self._times)
            self._last = now
            self._times = 0
