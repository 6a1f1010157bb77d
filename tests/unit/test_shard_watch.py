"""What is watched of a shard is what happened to it, and costs nothing for each record."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from virtual_time import simulated

from millstream.processor.columns import Records, Slices
from millstream.processor.errors import FencedError, OutcomeUnknownError, UnavailableError, WorldError
from millstream.processor.measures import COMMIT_BOUNDS_S, LATENCY_BOUNDS_S, UNKNOWN_LAG, Histogram
from millstream.processor.partitions import TopicPartition
from millstream.processor.shard_watch import SAMPLES_PER_BATCH, ShardWatch, Standing, sample_of

HERE = TopicPartition("in", 0)
THERE = TopicPartition("in", 1)


def records(timestamps: list[int]) -> Records:
    rows = len(timestamps)
    nothing = Slices.from_list([None] * rows)
    offsets = np.arange(rows, dtype=np.int64)
    return Records(
        (HERE,), np.zeros(rows, np.int32), offsets, np.array(timestamps, np.int64), nothing, nothing, nothing
    )


def at_or_below(histogram: Histogram, bounds: tuple[float, ...], bound: float) -> int:
    return sum(histogram.counts[: bounds.index(bound) + 1])


@pytest.mark.parametrize("rows", [1, 2, SAMPLES_PER_BATCH, SAMPLES_PER_BATCH + 1, 1000, 12_345])
def test_a_sample_is_small_and_stands_for_all_of_its_batch(rows: int) -> None:
    sample = sample_of(records(list(range(rows))))
    assert 1 <= len(sample.timestamps) <= SAMPLES_PER_BATCH
    assert len(sample.timestamps) * sample.weight == pytest.approx(rows, abs=sample.weight)
    assert np.mean(sample.timestamps) == pytest.approx((rows - 1) / 2, abs=sample.weight)


@simulated
async def test_latency_is_from_the_timestamp_to_the_commit_and_records_without_one_do_not_count() -> None:
    watch = ShardWatch()
    now_ms = int(time.time() * 1000)
    watch.commit_began()
    watch.committed([sample_of(records([now_ms - 2000, now_ms - 20_000, now_ms + 60_000, -1]))], 1)
    latency = watch.tally.latency_s
    assert sum(latency.counts) == 3
    assert latency.counts[0] == 1, "a clock that is ahead makes no negative latency"
    assert at_or_below(latency, LATENCY_BOUNDS_S, 2.5) == 2
    assert at_or_below(latency, LATENCY_BOUNDS_S, 30.0) == 3
    assert 22.0 <= latency.total < 52.0


@simulated
async def test_a_commit_is_timed_and_counted_by_its_outcome() -> None:
    watch = ShardWatch()
    watch.commit_began()
    await asyncio.sleep(0.2)
    watch.committed([], 3)
    assert watch.tally.transactions == {"committed": 1}
    assert at_or_below(watch.tally.commit_s, COMMIT_BOUNDS_S, 0.25) == 1
    assert watch.tally.commit_s.total == pytest.approx(0.2)
    assert watch.tally.batches == 3


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (FencedError("f"), "fenced"),
        (OutcomeUnknownError("o"), "unknown"),
        (UnavailableError("u"), "unavailable"),
        (asyncio.CancelledError(), None),
    ],
)
@simulated
async def test_a_commit_that_failed_is_counted_by_what_is_known(error: BaseException, outcome: str | None) -> None:
    watch = ShardWatch()
    watch.commit_began()
    watch.failed(error)
    assert watch.tally.transactions == ({} if outcome is None else {outcome: 1})


@simulated
async def test_lag_adds_up_the_partitions_by_committed_position_and_is_unknown_while_one_end_is() -> None:
    watch = ShardWatch()
    watch.running()
    known = {HERE: Standing(10, 15, 0.0), THERE: Standing(3, 3, 0.0)}
    assert watch.report(0, ["in"], known).lag == [5]
    assert watch.report(0, ["in", "other"], known | {THERE: Standing(3, None, 0.0)}).lag == [UNKNOWN_LAG, 0]


@simulated
async def test_silence_counts_from_the_moment_at_which_something_was_asked_and_not_answered() -> None:
    watch = ShardWatch()
    watch.preparing()
    await asyncio.sleep(3)
    assert watch.report(0, [], {}).silent_s == 3
    watch.running()
    assert watch.report(0, ["in"], {HERE: Standing(0, 0, 9.0), THERE: Standing(0, 0, 0.05)}).silent_s == 0.05
    watch.commit_began()
    await asyncio.sleep(4)
    assert watch.report(0, ["in"], {HERE: Standing(0, 0, 0.0)}).silent_s == 4


@simulated
async def test_restarts_in_vain_add_up_to_one_silence_which_ends_with_the_next_run() -> None:
    watch = ShardWatch()
    watch.running()
    for error in (WorldError("one"), WorldError("two")):
        watch.restarting(str(error) * 1000)
        await asyncio.sleep(2)
        watch.preparing()
        await asyncio.sleep(2)
    report = watch.report(0, [], {})
    assert (report.state, report.restarts, report.silent_s) == ("restarting", 2, 8)
    assert report.reason is not None
    assert report.reason.startswith("two")
    assert len(report.reason) <= 300
    watch.running()
    assert watch.report(0, [], {}).silent_s == 0
