"""What a node remembers of stages that hung, and what it says about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from millstream.processor.stage_watch import Overdue
from millstream.processor.stalled import Stalled, counted, of_shards, place_of


class StallBook:
    """The stalls of this node's workers. `by_stage` counts the workers that were replaced for it."""

    def __init__(self) -> None:
        self.by_stage: Counter[str] = Counter()
        self._known: tuple[Stalled, ...] = ()

    def note(self, overdue: Overdue) -> str:
        """Remember it; answers what it means for the worker, for people."""
        self._known = counted(self._known, overdue.stalls)
        self.by_stage[overdue.stage.name] += 1
        now = [stalled for stalled in self._known if any(stalled.overlaps(new) for new in overdue.stalls)]
        places = ", ".join(f"{place_of(stalled)} (attempt {stalled.attempts})" for stalled in now[:3])
        more = f" and {len(now) - 3} more" if len(now) > 3 else ""
        return (
            f"stage {overdue.stage.name!r} did not come back within {overdue.stage.timeout_s:g} s from {places}{more}"
        )

    def of(self, shards: Collection[int]) -> list[Stalled]:
        """What the owner of these shards has to know."""
        return of_shards(self._known, shards)
