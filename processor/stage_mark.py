"""Where a worker is in its stages, in their own words. Here they tell nobody; `stage_page` has one that listens."""

from __future__ import annotations

from typing import Final


class StageMark:
    """What one batch says of itself while it runs. It is called for each batch and stage, so it has to be cheap."""

    __slots__ = ()

    def enter(self, stage: int) -> None:
        """The stage of this number begins with the batch."""

    def alive(self) -> None:
        """The stage's function has come back from some calls and goes on with others: its time begins anew."""

    def rest(self) -> None:
        """Nothing runs for a while, on purpose; `alive` ends that."""


UNWATCHED: Final = StageMark()
