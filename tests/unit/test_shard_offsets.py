"""A shard's offsets: never ahead of its outputs, never back, and never forgotten."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from engine_bench import Bench, numbered, place, raises, until
from virtual_time import simulated

from millstream.processor.errors import (
    InvariantError,
)


@simulated
async def test_filtered_records_advance_the_offsets_in_a_transaction_without_outputs() -> None:
    """I6."""
    bench = Bench()
    bench.program.copies = 0
    bench.send(*numbered(10))
    await bench.serve({place(0): 10})
    assert bench.offsets == {0: 10}
    assert (0, "produce") not in bench.log.journal


@simulated
async def test_markers_of_other_transactions_advance_the_offsets_too() -> None:
    bench = Bench()
    for number in range(3):
        epoch = bench.broker.fence("writer")
        bench.broker.produce("writer", epoch, place(0), [])
        if number % 2:
            bench.broker.commit("writer", epoch)
    bench.broker.fence("writer")
    assert bench.broker.partition(place(0)).stable_end == 3
    await bench.serve({place(0): 3})
    assert bench.offsets == {0: 3}


@simulated
async def test_offsets_of_an_idle_shard_are_committed_again_before_they_expire() -> None:
    bench = Bench(partitions=2, recommit_s=3600.0)
    bench.send(b"one")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.serve())
        await until(lambda: bench.offsets.get(0) == 1)
        commits = len(bench.broker.commits)
        await asyncio.sleep(3 * 3600)
        again = bench.broker.commits[commits:]
        assert 2 <= len(again) <= 3
        assert all({key[1]: found.offset for key, found in c.items()} == {place(0): 1, place(1): 0} for c in again)
        bench.stop()


@simulated
async def test_offsets_of_a_quiet_partition_are_committed_again_while_its_neighbours_are_busy() -> None:
    bench = Bench(partitions=2, recommit_s=100.0)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.serve())
        for second in range(250):
            bench.send(b"%d" % second)
            await asyncio.sleep(1)
        bench.stop()
    assert sum(("group", place(1)) in commit for commit in bench.broker.commits) >= 2


@simulated
async def test_committing_again_never_takes_in_a_batch_that_is_still_being_computed() -> None:
    bench = Bench(recommit_s=100.0)
    may_end = asyncio.Event()
    bench.program.meanwhile = may_end.wait
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.serve())
        await until(lambda: bench.run is not None)
        await asyncio.sleep(99.9)
        bench.send(b"slow")
        await asyncio.sleep(50)
        assert bench.program.batches == [[b"slow"]]
        assert bench.offsets == {0: 0}
        may_end.set()
        await until(lambda: bench.offsets == {0: 1})
        bench.stop()
    assert bench.written == [b"slow"]


@simulated
async def test_offsets_that_would_go_back_stop_the_run_before_anything_is_sent() -> None:
    """I3, against a feed that lies."""
    bench = Bench()
    bench.send(*numbered(10))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(raises(InvariantError, bench.serve()))
        await until(lambda: sum(commit.counts.records_in for commit in bench.commits) == 10)
        assert bench.run is not None
        bench.run._committed[place(0)] = 50
        bench.send(b"more")
        await running
    assert bench.offsets == {0: 10}


@pytest.mark.parametrize("going_on_at", ["earliest", "latest"])
@simulated
async def test_a_topic_made_anew_while_it_is_read_goes_on_where_the_policy_says(going_on_at: str) -> None:
    bench = Bench()
    bench.policies = {"in": replace(bench.policies["in"], on_offset_lost=going_on_at)}
    bench.send(*numbered(10, "old"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.serve())
        await until(lambda: bench.offsets.get(0) == 10)
        bench.broker.delete("in")
        bench.broker.create("in")
        bench.send(*numbered(3, "new"))
        await until(lambda: bench.offsets.get(0) == 3)
        bench.send(b"newest")
        await until(lambda: bench.offsets.get(0) == 4)
        bench.stop()
    expected = [*numbered(3, "new"), b"newest"] if going_on_at == "earliest" else [b"newest"]
    assert bench.written == [*numbered(10, "old"), *expected]
