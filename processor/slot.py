"""A place for a worker in a node, and where the worker that fills it is in its life."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from millstream.processor.stalled import Stalled


class Standing(Enum):
    """Where a worker is in its life."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"
    DYING = "dying"
    ENDED = "ended"


ALIVE: Final = (Standing.STARTING, Standing.READY, Standing.LEAVING, Standing.DYING)


@dataclass(slots=True)
class Slot:
    """One worker through all of its incarnations.

    `deadline` is when its standing has lasted long enough. `last_words` is why the current incarnation ends, as far as
    it is known; `is_to_blame` is false where the world outside was the reason. `is_announced` says that the membership
    was told of this incarnation; `shards` are what it was told to run, `finished` those of them that have reached the
    end of the run, `stalls` the batches at which it hung, `known_stalls` those at which others did before.
    """

    worker: int
    standing: Standing = Standing.WAITING
    deadline: float | None = None
    incarnation: int = 0
    started_at: float = 0.0
    has_progressed: bool = False
    is_done: bool = False
    last_words: str | None = None
    is_to_blame: bool = True
    is_announced: bool = False
    shards: frozenset[int] = frozenset()
    finished: set[int] = field(default_factory=set)
    stalls: tuple[Stalled, ...] = ()
    known_stalls: tuple[Stalled, ...] = ()
    deaths_in_row: int = 0
    restarts: int = 0

    @property
    def open_shards(self) -> frozenset[int]:
        """What it has to run and has not come to the end of."""
        return self.shards - self.finished

    def enter(self, standing: Standing, deadline: float | None) -> None:
        """From now on `standing`, until `deadline` if there is one."""
        self.standing = standing
        self.deadline = deadline

    def begin(self, now: float, start_timeout_s: float) -> None:
        """A new incarnation, about which nothing is known yet."""
        self.incarnation += 1
        self.started_at = now
        self.has_progressed = self.is_done = self.is_announced = False
        self.shards, self.stalls, self.known_stalls = frozenset(), (), ()
        self.finished.clear()
        self.last_words = None
        self.is_to_blame = True
        self.enter(Standing.STARTING, now + start_timeout_s)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as it is seen from outside. `restarts` counts how often it was started again."""

    worker: int
    incarnation: int
    standing: Standing
    shards: tuple[int, ...]
    restarts: int
