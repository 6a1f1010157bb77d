"""Which waiting batches a device computes together: pure, with the time as an argument.

Batches of one stage go together, whoever's they are, up to the most rows that the device takes at once. What has waited
longest goes first. Nobody waits for company: while the device is busy it comes by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Work = TypeVar("Work")


@dataclass(frozen=True, slots=True)
class Request(Generic[Work]):
    """One batch that waits. After `deadline_s` nobody waits for its answer."""

    client: int
    stage: int
    rows: int
    deadline_s: float
    work: Work


@dataclass(frozen=True, slots=True)
class Turn(Generic[Work]):
    """What is computed next, as one batch of one stage, and what nobody waits for any more."""

    together: Sequence[Request[Work]]
    expired: Sequence[Request[Work]]


class RunQueue(Generic[Work]):
    """Requests in the order in which they came. How many there can be is bounded by the workers' slots."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._caps: dict[int, tuple[int, float]] = {}
        self._waiting: list[Request[Work]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request[Work]) -> None:
        """One more, behind all others."""
        self._waiting.append(request)

    def drop(self, client: int) -> None:
        """Forget what this worker was waiting for."""
        self._waiting = [request for request in self._waiting if request.client != client]

    def cap(self, stage: int, rows: int, until_s: float) -> None:
        """Join batches of this stage up to so many rows at most until then; a single one may have more."""
        self._caps[stage] = (max(1, rows), until_s)

    def rows_max(self, stage: int, now: float) -> int:
        """Up to how many rows batches of the stage are joined."""
        rows, until_s = self._caps.get(stage, (self._rows_max, now))
        return min(rows, self._rows_max) if now < until_s else self._rows_max

    def take(self, now: float) -> Turn[Work]:
        """Take out what is next. Both parts are empty where nothing waits."""
        expired = [request for request in self._waiting if request.deadline_s <= now]
        live = [request for request in self._waiting if request.deadline_s > now]
        together = self._joined(live, now)
        taken = set(map(id, together))
        self._waiting = [request for request in live if id(request) not in taken]
        return Turn(together, expired)

    def _joined(self, live: Sequence[Request[Work]], now: float) -> list[Request[Work]]:
        if not live:
            return []
        stage, rows = live[0].stage, live[0].rows
        rows_max = self.rows_max(stage, now)
        together = [live[0]]
        for request in live[1:]:
            if request.stage == stage and rows + request.rows <= rows_max:
                together.append(request)
                rows += request.rows
        return together
