"""What a node's supervisor can ask of the agent, and how a node can end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from millstream.processor.control import ToWorker
from millstream.processor.stalled import Stalled


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start the worker's process."""

    worker: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Send:
    """Tell the worker's process."""

    worker: int
    message: ToWorker


@dataclass(frozen=True, slots=True)
class Kill:
    """End the worker's process without asking; its exit follows.

    With `shows_stack` it writes to stderr first where its code is.
    """

    worker: int
    shows_stack: bool = False


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell the membership that a worker can run shards."""

    worker: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Leaves:
    """Tell the membership that a worker wants no shards any more, and lets go of what it has."""

    worker: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """Tell the membership that a worker has let go of a shard."""

    worker: int
    shard: int


@dataclass(frozen=True, slots=True)
class Gone:
    """Tell the membership that a worker is gone, and at which batches it hung, if it did."""

    worker: int
    incarnation: int
    why: str
    stalls: tuple[Stalled, ...]


@dataclass(frozen=True, slots=True)
class Depart:
    """Tell the membership that the node is to end in order."""


Action: TypeAlias = Spawn | Send | Kill | Announce | Leaves | LetGo | Gone | Depart


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the node ended: the exit code, and what the user should read, if anything."""

    exit_code: int
    message: str | None = None
