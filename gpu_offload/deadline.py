"""How long a device may take for a batch before it is given up: pure."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

_SAMPLES: Final = 512
_EVERY: Final = 32
_FACTOR: Final = 5.0
_MIN_S: Final = 0.1


class Deadline:
    """Five times the 99th percentile of what was seen lately, at least 100 ms and at most `max_s`.

    `max_s` bounds how long a hang stays unseen. Until enough was seen it is the deadline.
    """

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._seen: deque[float] = deque(maxlen=_SAMPLES)
        self._fresh = 0
        self.wait_s = max_s

    def observed(self, seconds: float) -> None:
        """A batch took so long."""
        self._seen.append(seconds)
        self._fresh += 1
        if self._fresh >= _EVERY:
            self._fresh = 0
            usual = _FACTOR * float(np.quantile(self._seen, 0.99))
            self.wait_s = min(self._max_s, max(_MIN_S, usual))
