"""How a node keeps its workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.processor.restarts import RestartPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """How many workers a node has and how long it waits for them. All waits are upper bounds.

    A worker that starts may be silent for `start_timeout_s`; one that waits and says so may wait.
    `gather_s` is how long the first worker that is ready waits for the others before they are announced, since a shard
    that starts and moves at once is paid for twice.
    """

    workers: int = 1
    drain_timeout_s: float = 20.0
    start_timeout_s: float = 120.0
    gather_s: float = 1.0
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
