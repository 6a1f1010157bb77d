"""What is watched of a shard while it runs, once for a batch or a commit and never for a record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from millstream.processor.columns import Int64s, Records
from millstream.processor.errors import FencedError, OutcomeUnknownError, UnavailableError
from millstream.processor.measures import (
    COMMIT_BOUNDS_S,
    LATENCY_BOUNDS_S,
    REASON_CHARS_MAX,
    UNKNOWN_LAG,
    Outcome,
    ShardReport,
    ShardState,
    Tally,
)
from millstream.processor.partitions import TopicPartition

# Enough to see a percentile of a batch, and few enough to cost microseconds.
SAMPLES_PER_BATCH: Final = 32
_LATENCY_BOUNDS_MS: Final = np.array(LATENCY_BOUNDS_S) * 1000


@dataclass(frozen=True, slots=True)
class Sample:
    """Timestamps of some records of a batch, in milliseconds; each stands for `weight` records."""

    timestamps: Int64s
    weight: int


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a partition is: what is committed, where its committed records end (None: not seen yet), and for how
    many seconds a fetch of it has been unanswered."""

    position: int
    end: int | None
    silent_s: float


def sample_of(records: Records) -> Sample:
    """Evenly spread over the batch."""
    step = -(-len(records) // SAMPLES_PER_BATCH)
    return Sample(records.timestamp[step // 2 :: step].copy(), step)


@dataclass(slots=True)
class ShardWatch:
    """One shard's measurements, through all of its runs in a worker. All times are the event loop's, in seconds."""

    tally: Tally = field(default_factory=Tally)
    state: ShardState = "starting"
    restarts: int = 0
    reason: str | None = None
    _commit_began: float | None = None
    _committed_at: float | None = None
    _away_since: float | None = None

    def preparing(self) -> None:
        """A run is about to begin: the fence is next. Since when there is none stays, until one has begun."""
        if self._away_since is None:
            self._away_since = _now()

    def running(self) -> None:
        """The fence and all that precedes a run have succeeded."""
        self.state = "running"
        self._away_since = None

    def restarting(self, reason: str) -> None:
        """The run, or what precedes it, has ended for this reason, and another one follows."""
        self.state = "restarting"
        self.restarts += 1
        self.reason = reason[:REASON_CHARS_MAX]
        self._commit_began = None
        if self._away_since is None:
            self._away_since = _now()

    def commit_began(self) -> None:
        """A transaction is on its way."""
        self._commit_began = _now()

    def committed(self, samples: Sequence[Sample], batches: int) -> None:
        """The transaction is committed, with the effects of so many batches."""
        self._committed_at = self._end_commit("committed")
        self.tally.batches += batches
        self._observe_latency(samples)

    def failed(self, error: BaseException) -> None:
        """The transaction was not committed, as far as is known."""
        outcome: Outcome
        match error:
            case FencedError():
                outcome = "fenced"
            case OutcomeUnknownError():
                outcome = "unknown"
            case UnavailableError():
                outcome = "unavailable"
            case _:
                self._commit_began = None
                return
        self._end_commit(outcome)

    def _end_commit(self, outcome: Outcome) -> float:
        now = _now()
        if self._commit_began is not None:
            self.tally.commit_s.observe(COMMIT_BOUNDS_S, now - self._commit_began)
        self._commit_began = None
        self.tally.transactions[outcome] = self.tally.transactions.get(outcome, 0) + 1
        return now

    def _observe_latency(self, samples: Sequence[Sample]) -> None:
        now_ms = time.time() * 1000
        for sample in samples:
            stamps = sample.timestamps
            # Records without a timestamp have -1. Clocks of other machines may be ahead of ours.
            ages_ms = np.maximum(now_ms - stamps[stamps >= 0], 0.0)
            places = np.searchsorted(_LATENCY_BOUNDS_MS, ages_ms)
            counts = np.bincount(places, minlength=len(_LATENCY_BOUNDS_MS) + 1) * sample.weight
            self.tally.latency_s.add_counts(counts.tolist(), float(ages_ms.sum()) / 1000 * sample.weight)

    def report(self, shard: int, topics: Sequence[str], partitions: Mapping[TopicPartition, Standing]) -> ShardReport:
        """The shard as it is now. `partitions` are those of the current run, none where there is none."""
        now = _now()
        return ShardReport(
            shard,
            self.state,
            round(self._silent_s(now, partitions), 3),
            None if self._committed_at is None else round(now - self._committed_at, 3),
            _lag(topics, partitions),
            self.restarts,
            self.reason,
        )

    def _silent_s(self, now: float, partitions: Mapping[TopicPartition, Standing]) -> float:
        if self._away_since is not None:
            return now - self._away_since
        in_commit_s = 0.0 if self._commit_began is None else now - self._commit_began
        # One partition that is answered shows that the broker is there; a single leader may be away for longer.
        return max(in_commit_s, min((standing.silent_s for standing in partitions.values()), default=0.0))


def _lag(topics: Sequence[str], partitions: Mapping[TopicPartition, Standing]) -> list[int]:
    lags = dict.fromkeys(topics, 0)
    for partition, standing in partitions.items():
        before = lags[partition.topic]
        if standing.end is None or before == UNKNOWN_LAG:
            lags[partition.topic] = UNKNOWN_LAG
        else:
            lags[partition.topic] = before + max(0, standing.end - standing.position)
    return list(lags.values()) if partitions else [UNKNOWN_LAG] * len(lags)


def _now() -> float:
    return asyncio.get_running_loop().time()
