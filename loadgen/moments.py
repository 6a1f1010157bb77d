"""When a fault took effect, on both clocks."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant: `monotonic_s` for durations on this machine, `wall_s` (since 1970) to be laid beside timestamps."""

    monotonic_s: float
    wall_s: float

    @staticmethod
    def now() -> Moment:
        """This instant."""
        return Moment(time.monotonic(), time.time())


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that was made, or one that was ended: it took effect after `ordered` and no later than `done`.

    Who measures what follows a fault counts from `ordered`, so as never to make it look shorter than it was.
    """

    fault: str
    target: str
    ordered: Moment
    done: Moment

    @property
    def took_s(self) -> float:
        """How long the fault itself took, in seconds: by so much nobody knows its instant."""
        return self.done.monotonic_s - self.ordered.monotonic_s

    def as_json(self) -> dict[str, object]:
        """One object, with the instant of the order and how long it took."""
        return {
            "fault": self.fault,
            "target": self.target,
            "monotonic_s": self.ordered.monotonic_s,
            "wall_s": self.ordered.wall_s,
            "took_ms": round(self.took_s * 1000, 3),
        }
