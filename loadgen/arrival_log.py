"""When output of each partition arrived, and how young it was: what tells how long a takeover took."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from millstream.processor.columns import Int64s

# At hundreds of reads a second these are minutes; of more than that, the newest are kept.
ARRIVALS_KEPT = 1 << 18


class Arrival(NamedTuple):
    """Output of one partition that arrived together; times in microseconds since the epoch."""

    arrived_us: int
    partition: int
    latest_sent_us: int


class ArrivalLog:
    """Fed by a judge while it watches."""

    def __init__(self) -> None:
        self._arrivals: deque[Arrival] = deque(maxlen=ARRIVALS_KEPT)

    def note(self, partition: Int64s, sent_us: Int64s, arrived_us: int) -> None:
        """Outputs of these partitions arrived, of events that were to leave at these times."""
        for number in np.unique(partition).tolist():
            self._arrivals.append(Arrival(arrived_us, number, int(sent_us[partition == number].max())))

    def first_since(self, instant_us: int) -> dict[int, int]:
        """When the first output of each partition arrived whose event left later than that; none where none did.

        Whoever died at that instant cannot have written it. What it had committed before may still arrive later.
        """
        found: dict[int, int] = {}
        for arrival in self._arrivals:
            if arrival.latest_sent_us > instant_us and arrival.arrived_us > instant_us:
                found.setdefault(arrival.partition, arrival.arrived_us)
        return found
