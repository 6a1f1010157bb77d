"""What a node's supervisor can ask of the agent, and how a node can end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from millstream.processor.control import ToWorker


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


Action: TypeAlias = Spawn | Send | Kill


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the node ended: the exit code, and what the user should read, if anything."""

    exit_code: int
    message: str | None = None
