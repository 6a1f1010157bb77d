"""How long output stood still: the longest times between two arrivals, over all partitions and within one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from millstream.processor.columns import Int64s


@dataclass(slots=True)
class Pauses:
    """Fed with arrivals as they come; all times in microseconds."""

    overall_us: int = 0
    partition_us: int = 0
    first_us: int | None = None
    last_us: int | None = None
    _last_of: dict[int, int] = field(default_factory=dict)

    def note(self, partition: Int64s, arrived_us: int) -> None:
        """Records arrived for these partitions at this time."""
        if not len(partition):
            return
        if self.last_us is None:
            self.first_us = arrived_us
        else:
            self.overall_us = max(self.overall_us, arrived_us - self.last_us)
        self.last_us = arrived_us
        for number in np.unique(partition).tolist():
            before = self._last_of.get(number, arrived_us)
            self.partition_us = max(self.partition_us, arrived_us - before)
            self._last_of[number] = arrived_us
