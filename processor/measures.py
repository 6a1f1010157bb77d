"""What a worker has measured: values that its agent adds up, light enough for a process without NumPy.

Two kinds, kept apart: a `Tally` only ever grows and outlives the worker in its node's sums; a `ShardReport` says how
things stand now and is gone with the worker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

COMMIT_BOUNDS_S: Final = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)
LATENCY_BOUNDS_S: Final = (
    *(0.005, 0.01, 0.015, 0.02, 0.025, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0),
)

Outcome: TypeAlias = Literal["committed", "fenced", "unknown", "unavailable"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("committed", "fenced", "unknown", "unavailable")

ShardState: TypeAlias = Literal["starting", "running", "restarting"]

UNKNOWN_LAG: Final = -1
REASON_CHARS_MAX: Final = 300


class Histogram(msgspec.Struct, omit_defaults=True):
    """How many values fell at or below each bound, and above the one before; the last place is above all bounds.

    `counts` is empty, or one longer than the bounds that it is always used with. `total` is the sum of the values.
    """

    counts: list[int] = []
    total: float = 0.0

    def observe(self, bounds: Sequence[float], value: float) -> None:
        """Count one value."""
        self._make_room(len(bounds) + 1)
        self.counts[bisect_left(bounds, value)] += 1
        self.total += value

    def add_counts(self, counts: Sequence[int], total: float) -> None:
        """Add what was counted elsewhere with the same bounds."""
        if counts:
            self._make_room(len(counts))
            self.counts = [mine + other for mine, other in zip(self.counts, counts, strict=True)]
            self.total += total

    def _make_room(self, places: int) -> None:
        if not self.counts:
            self.counts = [0] * places


class Tally(msgspec.Struct, omit_defaults=True):
    """What was done since the worker began; only ever grows.

    `batches` are pieces of input that went through the stages. `commit_s` is how long commits took, in seconds, those
    that failed included. `latency_s` is the time from a record's timestamp to the commit of its effects, in seconds,
    for a sample of the records; each stands for several, so that the counts are about those of all records.
    """

    batches: int = 0
    transactions: dict[Outcome, int] = {}
    commit_s: Histogram = msgspec.field(default_factory=Histogram)
    latency_s: Histogram = msgspec.field(default_factory=Histogram)

    def add(self, other: Tally) -> None:
        """Add all of `other`."""
        self.batches += other.batches
        for outcome, count in other.transactions.items():
            self.transactions[outcome] = self.transactions.get(outcome, 0) + count
        self.commit_s.add_counts(other.commit_s.counts, other.commit_s.total)
        self.latency_s.add_counts(other.latency_s.counts, other.latency_s.total)


class ShardReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A shard as its owner sees it now.

    `lag` has, for each input topic, the offsets between what is committed and the end of the committed records, over
    the shard's partitions; `UNKNOWN_LAG` where the end was not seen yet. `silent_s` is for how long something that was
    asked of the broker has been unanswered: it stays near 0 on a quiet topic, and while there is nothing to ask for.
    `commit_age_s` is None before the first commit. `reason` is why it was started again the last time.
    """

    shard: int
    state: ShardState = "starting"
    silent_s: float = 0.0
    commit_age_s: float | None = None
    lag: list[int] = []
    restarts: int = 0
    reason: str | None = None


class Measures(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that a host has to report beside its counts. `topics` are the input topics, in the order of each `lag`.

    `waits_for` is what it cannot go on without before it may have shards. `last_failure` is why the log did not answer
    the last time, until it answers again.
    """

    tally: Tally = msgspec.field(default_factory=Tally)
    topics: list[str] = []
    shards: list[ShardReport] = []
    waits_for: str | None = None
    last_failure: str | None = None


class ProcessUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process has used of the machine: CPU seconds since it began, and bytes of memory that it holds now."""

    cpu_s: float = 0.0
    resident_bytes: int = 0
