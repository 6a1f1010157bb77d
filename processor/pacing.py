"""When a shard commits: a pure decision.

A transaction costs the broker 1 to 3 ms of CPU whatever its size, so a shard that keeps up commits every
`commit_interval_ms`, or where the user names none as often as the number of shards allows. One that has a backlog
gathers more first: nobody waits for its newest record anyway. After a commit it rests for as long as commits take
lately: where the broker is slow, more transactions would only make it slower.
"""

from __future__ import annotations

from dataclasses import dataclass

# How much the last commit counts in what is usual: a single slow one should not hold up the next, ten in a row should.
_LAST_SHARE = 0.15
# As short as latency asks for and a broker bears. Few shards commit more often than many: together they come to 250
# commits a second, half a core of a small broker, until the longest interval is reached.
_INTERVAL_EACH_SHARD_MS = 4
_INTERVAL_MS_MIN, _INTERVAL_MS_MAX = 6, 12


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
class Commits:
    """The last commit of a run, in seconds on the loop's clock, and how long commits take lately."""

    start: float = float("-inf")
    end: float = float("-inf")
    usual_s: float = 0.0

    def followed_by(self, start: float, end: float) -> Commits:
        """After one more commit."""
        return Commits(start, end, self.usual_s + _LAST_SHARE * (end - start - self.usual_s))


@dataclass(frozen=True, slots=True)
class Gathered:
    """What waits to be committed: its records and their size, and how many more records are at hand already."""

    records: int
    byte_count: int
    records_at_hand: int


def default_interval_ms(shards: int) -> int:
    """From commit to commit of a shard that keeps up, in milliseconds, in a pipeline that has so many shards."""
    return min(_INTERVAL_MS_MAX, max(_INTERVAL_MS_MIN, _INTERVAL_EACH_SHARD_MS * shards))


def commit_wait_s(pacing: Pacing, gathered: Gathered, commits: Commits, *, now: float) -> float:
    """How long to wait before the next commit may begin; 0 when it is due."""
    if gathered.byte_count >= pacing.gathered_bytes_max:
        return max(0.0, commits.end + pacing.pause_s - now)
    # A steady stream always has something at hand. It is a backlog while that is more than what was gathered.
    is_behind = gathered.records_at_hand > gathered.records
    interval = pacing.backlog_interval_s if is_behind else pacing.interval_s
    rest = max(pacing.pause_s, min(commits.usual_s, pacing.backlog_interval_s))
    return max(0.0, commits.start + interval - now, commits.end + rest - now)
