"""When a shard commits: a pure decision.

A transaction costs the broker 1 to 3 ms of CPU whatever its size, so a shard that keeps up commits every
`commit_interval_ms`, and one that has a backlog gathers more first: nobody waits for its newest record anyway. After a
commit it rests for as long as that took: where the broker is slow, more transactions would only make it slower.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """Bounds on what one transaction gathers.

    `interval_s` and `backlog_interval_s` count from the start of the commit before; `pause_s` from its end, since a
    broker that has just ended a transaction holds up one that begins within about 3 ms by 20 ms.
    """

    interval_s: float
    backlog_interval_s: float
    pause_s: float
    gathered_bytes_max: int


@dataclass(frozen=True, slots=True)
class Gathered:
    """What waits to be committed: its size, and whether more input is at hand already."""

    byte_count: int
    backlog: bool


def commit_wait_s(pacing: Pacing, gathered: Gathered, *, now: float, last_start: float, last_end: float) -> float:
    """How long to wait before the next commit may begin; 0 when it is due. All times in seconds on one clock."""
    if gathered.byte_count >= pacing.gathered_bytes_max:
        return max(0.0, last_end + pacing.pause_s - now)
    interval = pacing.backlog_interval_s if gathered.backlog else pacing.interval_s
    rest = max(pacing.pause_s, min(last_end - last_start, pacing.backlog_interval_s))
    return max(0.0, last_start + interval - now, last_end + rest - now)
