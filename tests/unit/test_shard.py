"""One run of a shard: whatever ends it, outputs and offsets are committed together, once, and in order."""

from __future__ import annotations

import asyncio

import pytest
from engine_bench import PACING, POISON, Bench, numbered, place, raises, until
from memory_log import MemoryOutbox, MemorySealed
from trouble import COMMIT_STEPS
from virtual_time import VirtualLoop, simulated

from millstream.processor.columns import OutputRecords
from millstream.processor.errors import (
    FencedError,
    InvariantError,
    OutcomeUnknownError,
    StageError,
    UnavailableError,
    WorldError,
)


@simulated
async def test_what_comes_in_goes_out_once_and_in_order() -> None:
    bench = Bench(partitions=2)
    for partition in (0, 1):
        bench.send(*numbered(50, f"p{partition}-"), partition=partition)
    await bench.serve({place(0): 50, place(1): 50})
    assert bench.written == [*numbered(50, "p0-"), *numbered(50, "p1-")]
    assert bench.offsets == {0: 50, 1: 50}


@simulated
async def test_a_run_up_to_where_it_already_is_commits_nothing() -> None:
    bench = Bench()
    await bench.serve({place(0): 0})
    assert bench.broker.commits == []


@simulated
async def test_records_that_arrive_while_idle_are_committed_within_an_interval() -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.serve())
        loop = asyncio.get_running_loop()
        for number in range(5):
            await asyncio.sleep(1)
            sent_at = loop.time()
            bench.send(b"%d" % number)
            await until(lambda number=number: bench.offsets.get(0) == number + 1)
            assert loop.time() - sent_at < 0.02
        bench.stop()


@simulated
async def test_a_small_backlog_that_is_worked_off_does_not_wait_as_long_as_a_large_one() -> None:
    bench = Bench(partitions=4, chunk_bytes=1)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.serve())
        loop = asyncio.get_running_loop()
        await until(lambda: bench.run is not None)
        # The first commit is for one partition alone, so that the others wait while the next is paced.
        bench.send(b"first")
        await until(lambda: len(bench.commits) == 1)
        began = loop.time()
        for partition in range(4):
            bench.send(b"x", b"y", partition=partition)
        await until(lambda: bench.offsets == {0: 3, 1: 2, 2: 2, 3: 2})
        assert loop.time() - began < PACING.backlog_interval_s / 2
        bench.stop()


@pytest.mark.parametrize("step", ["", "fetch", *COMMIT_STEPS])
@simulated
async def test_stop_commits_all_that_was_taken_wherever_the_run_is(step: str) -> None:
    bench = Bench()
    bench.send(*numbered(30))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(bench.serve())
        if step:
            reached = bench.log.trouble.hold(step)
            await reached.wait()
            await until(lambda: bench.run is not None)
            bench.stop()
            await asyncio.sleep(1)
            assert step == "fetch" or not running.done(), "the commit in hand is waited for"
            bench.log.trouble.let_go(step)
        else:
            await until(lambda: bench.offsets.get(0) == 30)
            bench.stop()
    taken = sum(map(len, bench.program.batches))
    assert bench.written == numbered(30)[:taken]
    assert bench.offsets.get(0, 0) == taken
    assert bench.broker.open_transactions == 0


@simulated
async def test_stop_before_the_run_has_begun_ends_it_at_once() -> None:
    bench = Bench()
    bench.send(*numbered(30))
    reached = bench.log.trouble.hold("fence")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.serve())
        await reached.wait()
        bench.log.trouble.let_go("fence")
        await until(lambda: bench.run is not None)
        bench.stop()
        bench.stop()
    assert len(bench.written) == bench.offsets.get(0, 0)


@pytest.mark.parametrize("step", ["fetch", *COMMIT_STEPS, "process", "room", "idle"])
@simulated
async def test_cancelling_ends_the_run_wherever_it_waits_and_drops_what_was_not_committed(step: str) -> None:
    bench = Bench()
    bench.send(*numbered(400 if step == "room" else 30))
    entered = asyncio.Event()

    async def never_ends() -> None:
        entered.set()
        await asyncio.Event().wait()

    if step == "process":
        bench.program.meanwhile = never_ends
    elif step == "room":
        entered = bench.log.trouble.hold("end")
    elif step != "idle":
        entered = bench.log.trouble.hold(step)
    running = asyncio.create_task(bench.serve())
    if step == "idle":
        await until(lambda: bench.offsets.get(0) == 30)
    else:
        await entered.wait()
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert bench.log.open_feeds == 0
    assert len(bench.written) == bench.offsets.get(0, 0)


@simulated
async def test_cancelling_at_every_moment_ends_the_run_and_leaves_outputs_and_offsets_together() -> None:
    """I1: a new fence finds either both or neither, whenever the run was cut."""
    for tenth_ms in range(0, 400, 7):
        bench = Bench(partitions=2)
        for partition in (0, 1):
            bench.send(*numbered(30, f"p{partition}-"), partition=partition)
        running = asyncio.create_task(bench.serve())
        await asyncio.sleep(tenth_ms / 10_000)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        bench.log.trouble.chance = {}
        await bench.log.shard(0).fence()
        assert len(bench.written) == sum(bench.offsets.values())
        await bench.serve({place(0): 30, place(1): 30})
        assert bench.written == [*numbered(30, "p0-"), *numbered(30, "p1-")]


@pytest.mark.parametrize("step", COMMIT_STEPS)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [FencedError("f"), OutcomeUnknownError("o"), UnavailableError("u")])
@simulated
async def test_trouble_in_a_commit_ends_the_run_and_the_next_adds_exactly_what_is_missing(
    step: str, after: bool, error: WorldError
) -> None:
    bench = Bench()
    bench.send(*numbered(30))
    bench.log.trouble.fail(step, error, after=after)
    with pytest.raises(type(error)):
        await bench.serve({place(0): 30})
    assert bench.log.open_feeds == 0
    await bench.serve({place(0): 30})
    assert bench.written == numbered(30)
    assert bench.offsets == {0: 30}


@simulated
async def test_a_zombie_that_wakes_in_the_middle_of_its_commit_is_fenced_and_has_no_effect() -> None:
    for step in COMMIT_STEPS:
        bench = Bench()
        bench.send(*numbered(30))
        reached = bench.log.trouble.hold(step)
        zombie = asyncio.create_task(bench.serve({place(0): 30}))
        await reached.wait()
        await bench.log.shard(0).fence()
        bench.log.trouble.let_go(step)
        with pytest.raises(FencedError):
            await zombie
        assert bench.written == []
        assert bench.offsets == {}


@simulated
async def test_an_error_of_a_stage_is_raised_after_what_came_before_it_is_committed() -> None:
    bench = Bench(chunk_bytes=1)
    bench.send(*numbered(8), POISON, b"behind")
    with pytest.raises(StageError):
        await bench.serve()
    assert bench.written == numbered(8)
    assert bench.offsets == {0: 8}


@simulated
async def test_trouble_while_committing_what_came_before_an_error_of_a_stage_wins() -> None:
    """Otherwise the pipeline would stop on a record whose predecessors are not committed."""
    bench = Bench(chunk_bytes=1)
    bench.send(*numbered(8), POISON)
    bench.log.trouble.fail("end", OutcomeUnknownError("o"))
    with pytest.raises(OutcomeUnknownError):
        await bench.serve()


@pytest.mark.parametrize("step", ["process", "end"])
@simulated
async def test_a_cancellation_that_nobody_asked_for_ends_the_run_aloud(step: str) -> None:
    bench = Bench()
    bench.send(*numbered(10))

    async def awaits_something_cancelled() -> None:
        raise asyncio.CancelledError

    if step == "process":
        bench.program.meanwhile = awaits_something_cancelled
    else:
        bench.log.trouble.fail(step, asyncio.CancelledError())
    with pytest.raises(InvariantError, match="cancelled"):
        await bench.serve()


@simulated
async def test_half_of_a_batch_is_never_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: an outbox that fails in the middle of a batch's outputs holds some of them."""
    bench = Bench()
    bench.program.copies = 2
    add, seal = MemoryOutbox.add, MemoryOutbox.seal
    sealed: list[list[bytes | None]] = []

    def add_or_fail(outbox: MemoryOutbox, outputs: OutputRecords) -> None:
        if any(earlier.value[0] == b"torn" for earlier in outbox._outputs):
            # At this very moment the commit loop is due, and it has its turn before it is cancelled.
            assert bench.run is not None
            bench.run._nudge.set()
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop.now += 1
            raise UnavailableError("the topic is gone")
        add(outbox, outputs)

    def seal_and_note(outbox: MemoryOutbox) -> MemorySealed:
        sealed.append([outputs.value[0] for outputs in outbox._outputs])
        return seal(outbox)

    monkeypatch.setattr(MemoryOutbox, "add", add_or_fail)
    monkeypatch.setattr(MemoryOutbox, "seal", seal_and_note)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(raises(UnavailableError, bench.serve()))
        await until(lambda: bench.run is not None)
        for value in (b"whole", b"before", b"torn"):
            bench.send(value)
            await asyncio.sleep(0.003)
    assert sealed == [[b"whole", b"whole"]]


@simulated
async def test_what_is_gathered_stays_within_its_bound_and_one_chunk_while_a_commit_hangs() -> None:
    bench = Bench()
    bench.log.piece_records = 1
    bench.send(*[bytes(50)] * 400)
    reached = bench.log.trouble.hold("end")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.serve({place(0): 400}))
        await reached.wait()
        await asyncio.sleep(5)
        assert bench.run is not None
        assert PACING.gathered_bytes_max <= bench.run._gathering.byte_count < PACING.gathered_bytes_max + 100
        bench.log.trouble.let_go("end")
    assert len(bench.written) == 400


@simulated
async def test_the_bound_holds_for_outputs_that_are_larger_than_their_inputs() -> None:
    bench = Bench(chunk_bytes=1)
    bench.log.piece_records = 1
    bench.program.copies = 10
    bench.send(*[bytes(20)] * 100)
    reached = bench.log.trouble.hold("end")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.serve({place(0): 100}))
        await reached.wait()
        await asyncio.sleep(5)
        assert bench.run is not None
        assert bench.run._gathering.byte_count <= PACING.gathered_bytes_max + 200
        bench.log.trouble.let_go("end")
    assert len(bench.written) == 1000


@simulated
async def test_while_one_transaction_commits_the_next_batch_is_computed() -> None:
    bench = Bench()
    bench.send(*numbered(8))
    reached = bench.log.trouble.hold("end")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.serve({place(0): 16}))
        await reached.wait()
        bench.send(*numbered(8, "next"))
        await until(lambda: sum(map(len, bench.program.batches)) == 16)
        assert bench.offsets == {}
        bench.log.trouble.let_go("end")
    assert bench.offsets == {0: 16}


@simulated
async def test_commits_are_told_with_their_counts_positions_and_outputs() -> None:
    bench = Bench()
    bench.send(*numbered(20))
    await bench.serve({place(0): 20})
    assert sum(commit.counts.records_in for commit in bench.commits) == 20
    assert bench.commits[-1].positions == {place(0): 20}
    assert [v for c in bench.commits for o in c.outputs for v in o.value.to_list()] == numbered(20)


@simulated
async def test_a_long_run_of_work_lets_others_have_their_turn() -> None:
    bench = Bench(chunk_bytes=1)
    bench.log.trouble.latency_s = lambda: 0.0
    bench.log.piece_records = 1
    bench.send(*numbered(150))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while len(bench.program.batches) < 150:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(count_turns())
        tasks.create_task(bench.serve({place(0): 150}))
    assert turns >= 150
