"""Whether a worker hangs in a stage, from looks at its page: pure, with the time as an argument.

Time counts only from look to look, and of a long gap only a part: an agent that was itself stopped for a minute, with
its workers or without them, blames nobody for that minute. A worker that somebody has stopped is not blamed either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from millstream.processor.stage_page import Range, Seen
from millstream.processor.stalled import StageLimit, Stalled, WatchPlan

LOOK_INTERVAL_S: Final = 0.25
_GAP_MAX_S: Final = 4 * LOOK_INTERVAL_S

Ranges = Callable[[Seen], tuple[Range, ...] | None]


@dataclass(frozen=True, slots=True)
class Overdue:
    """A stage is over its limit. `stalls` are the batches that may be at fault, each with the stage that it is in."""

    stage: StageLimit
    stalls: tuple[Stalled, ...]


class StageWatch:
    """Watches one incarnation of a worker."""

    def __init__(self, plan: WatchPlan) -> None:
        self._plan = plan
        self._looked_at: float | None = None
        self._numbers: dict[int, int] = {}
        self._waited: dict[int, float] = {}

    def look(self, now: float, seen: Sequence[Seen], ranges: Ranges, *, is_stopped: bool = False) -> Overdue | None:
        """The page is like this `now`. Answers the stage that is over its limit, if one is."""
        self._count(now, seen, is_stopped)
        active = [one for one in seen if one.stage is not None and one.stage < len(self._plan.stages)]
        overdue = [one for one in active if self._used(one) >= 1.0]
        if not overdue:
            return None
        suspects = self._suspects(seen, active)
        worst = max(suspects, key=self._used, default=None)
        if worst is None or self._used(worst) < 1.0:
            return None
        stalls = tuple(stalled for one in suspects for stalled in self._stalls(one, ranges(one) or ()))
        return Overdue(self._limit(worst), stalls) if stalls else None

    def _count(self, now: float, seen: Sequence[Seen], is_stopped: bool) -> None:
        gap_s = 0.0 if self._looked_at is None or is_stopped else min(max(0.0, now - self._looked_at), _GAP_MAX_S)
        self._looked_at = now
        for one in seen:
            has_stayed = self._numbers.get(one.slot) == one.number
            self._waited[one.slot] = self._waited[one.slot] + gap_s if has_stayed else 0.0
            self._numbers[one.slot] = one.number

    def _suspects(self, seen: Sequence[Seen], active: Sequence[Seen]) -> list[Seen]:
        """Which batches may be what the worker hangs at.

        A function that is not async holds the loop from where it was entered: if it is the last thing that the worker
        has written, then the others only wait for the loop. Of async ones, any that has not moved for long may be it.
        """
        last = max(seen, key=lambda one: one.number)
        if last.stage is not None and last in active and not self._limit(last).is_async:
            return [last]
        return [one for one in active if self._used(one) >= 0.5]

    def _used(self, one: Seen) -> float:
        """How much of its time the batch has used in its stage, 1 being all."""
        return self._waited[one.slot] / self._limit(one).timeout_s

    def _limit(self, one: Seen) -> StageLimit:
        assert one.stage is not None
        return self._plan.stages[one.stage]

    def _stalls(self, one: Seen, ranges: Sequence[Range]) -> list[Stalled]:
        topics = self._plan.topics
        return [
            Stalled(one.shard, self._limit(one).name, topics[at.topic], at.partition, at.first_offset, at.next_offset)
            for at in ranges
            if 0 <= at.topic < len(topics)
        ]
