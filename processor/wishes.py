"""What somebody wants to see in the ledger: said at once, and again until it shows up or is wanted no more."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class Wishes(Generic[T]):
    """Remembers when which wish was last said. Times are seconds."""

    def __init__(self, again_s: float) -> None:
        self._again_s = again_s
        self._said: dict[Hashable, float] = {}

    def due(self, now: float, wanted: Mapping[Hashable, T]) -> list[T]:
        """What of the `wanted` has to be said now, in their order; they are all that is wanted."""
        self._said = {wish: at for wish, at in self._said.items() if wish in wanted}
        due = [wish for wish in wanted if self._is_due(now, wish)]
        self._said |= dict.fromkeys(due, now)
        return [wanted[wish] for wish in due]

    def _is_due(self, now: float, wish: Hashable) -> bool:
        said = self._said.get(wish)
        return said is None or now >= said + self._again_s

    def next_deadline(self) -> float | None:
        """When the first of what was said has to be said again."""
        return min(self._said.values()) + self._again_s if self._said else None
