"""Warnings about trouble that lasts: said at once, and then only now and then while it goes on."""

from __future__ import annotations

import logging
import time

_AGAIN_S = 10.0


class SeldomWarning:
    """Logs one kind of trouble at most every 10 s; the line says how often it was met since the last."""

    def __init__(self, log: logging.Logger, event: str) -> None:
        self._log = log
        self._event = event
        self._last = float("-inf")
        self._times = 0

    def __call__(self, reason: object) -> None:
        """The trouble was met once more."""
        self._times += 1
        now = time.monotonic()
        if now - self._last >= _AGAIN_S:
            self._log.warning("%s reason=%s times=%d", self._event, reason, self._times)
            self._last = now
            self._times = 0
