"""The page that a worker shares with its agent, and when the agent calls a stage overdue, and whose batch it names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.processor.stage_mark import UNWATCHED, StageMark
from millstream.processor.stage_page import RANGES_MAX, SLOTS, Range, Seen, StagePage, StagePageReader
from millstream.processor.stage_watch import LOOK_INTERVAL_S, Overdue, StageWatch
from millstream.processor.stalled import StageLimit, Stalled, WatchPlan

READ, SYNC, ASYNC = range(3)
PLAN = WatchPlan([StageLimit("read", 60.0), StageLimit("score", 2.0), StageLimit("ask", 4.0, is_async=True)], ["in"])


class World:
    """A worker's page, its agent's view of it, and a clock."""

    def __init__(self, reader: StagePageReader) -> None:
        self.reader = reader
        self.page = StagePage(os.dup(reader.descriptor))
        self.page.name_topics(PLAN.topics)
        self.watch = StageWatch(PLAN)
        self.now = 1000.0

    def look(self, after_s: float = LOOK_INTERVAL_S, *, is_stopped: bool = False) -> Overdue | None:
        self.now += after_s
        return self.watch.look(self.now, self.reader.look(), self.reader.ranges, is_stopped=is_stopped)

    def overdue_after(self, limit_s: float = 100.0) -> tuple[float, Overdue]:
        """Look until something is overdue; answers after how long."""
        began = self.now
        while self.now < began + limit_s:
            if (overdue := self.look()) is not None:
                return self.now - began, overdue
        raise AssertionError(f"nothing was overdue after {limit_s} s")

    @contextmanager
    def running(self, shard: int, ranges: dict[tuple[str, int], tuple[int, int]]) -> Iterator[StageMark]:
        mark = self.page.begin(shard, ranges)
        try:
            yield mark
        finally:
            self.page.end(mark)

    def batch(self, stack: ExitStack, shard: int, stage: int, offsets: tuple[int, int] = (5, 9)) -> StageMark:
        mark = stack.enter_context(self.running(shard, {("in", shard): offsets}))
        mark.enter(stage)
        return mark


@pytest.fixture
def world() -> Iterator[World]:
    with closing(StagePageReader()) as reader:
        yield World(reader)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def shards(overdue: Overdue) -> list[int]:
    return [stalled.shard for stalled in overdue.stalls]


# -- the page ---------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(world: World) -> None:
    assert world.reader.look() == []
    with world.running(3, {("in", 7): (5, 2**40), ("unknown", 0): (0, 1)}) as mark:
        assert [(seen.stage, seen.shard) for seen in world.reader.look()] == [(None, 3)]
        mark.enter(2)
        (seen,) = world.reader.look()
        assert (seen.stage, seen.shard) == (2, 3)
        assert world.reader.ranges(seen) == (Range(0, 7, 5, 2**40), Range(-1, 0, 0, 1))
        mark.rest()
        assert world.reader.look()[0].stage is None
        mark.alive()
        assert world.reader.look()[0].stage == 2
    assert [seen.stage for seen in world.reader.look()] == [None]


def test_ranges_are_not_answered_once_the_worker_has_moved_on(world: World, stack: ExitStack) -> None:
    mark = world.batch(stack, 0, SYNC)
    (before,) = world.reader.look()
    mark.alive()
    assert world.reader.ranges(before) is None


def test_more_batches_than_slots_are_not_watched_and_a_free_slot_is_used_again(world: World) -> None:
    with ExitStack() as stack:
        marks = [stack.enter_context(world.running(shard, {})) for shard in range(SLOTS + 1)]
        assert marks[-1] is UNWATCHED
        assert UNWATCHED not in marks[:-1]
        assert len(world.reader.look()) == SLOTS
    with world.running(0, {}) as mark:
        assert mark is not UNWATCHED


def test_more_ranges_than_there_is_room_for_are_left_out(world: World) -> None:
    with world.running(0, {("in", partition): (0, 1) for partition in range(RANGES_MAX + 1)}) as mark:
        mark.enter(1)
        ranges = world.reader.ranges(world.reader.look()[0])
        assert ranges is not None
        assert [place.partition for place in ranges] == list(range(RANGES_MAX))


# -- when -------------------------------------------------------------------------------------------------------------


def test_a_stage_that_does_not_move_for_its_time_is_named_with_its_records(world: World, stack: ExitStack) -> None:
    world.batch(stack, 4, SYNC, (17, 30))
    waited_s, overdue = world.overdue_after()
    assert 2.0 <= waited_s <= 2.0 + 2 * LOOK_INTERVAL_S
    assert overdue == Overdue(PLAN.stages[SYNC], (Stalled(4, "score", "in", 4, 17, 30),))


def test_each_stage_has_its_own_time(world: World, stack: ExitStack) -> None:
    world.batch(stack, 0, ASYNC)
    waited_s, _ = world.overdue_after()
    assert waited_s >= 4.0


@pytest.mark.parametrize("sign", ["alive", "enter", "rest"])
def test_whoever_moves_is_never_overdue(world: World, stack: ExitStack, sign: str) -> None:
    mark = world.batch(stack, 0, SYNC)
    for _ in range(100):
        assert world.look() is None
        if sign == "enter":
            mark.enter(SYNC)
        else:
            getattr(mark, sign)()


def test_whoever_rests_or_has_ended_is_never_overdue(world: World) -> None:
    with world.running(0, {("in", 0): (0, 1)}) as mark:
        mark.enter(SYNC)
        mark.rest()
        assert all(world.look() is None for _ in range(100))
        mark.alive()
    assert all(world.look() is None for _ in range(100))


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=3))
def test_an_agent_that_was_stopped_itself_blames_nobody_for_that_time(gaps: list[float]) -> None:
    limit = StageLimit("slow", 1.0 + len(gaps))
    watch = StageWatch(WatchPlan([limit], ["in"]))
    seen = [Seen(0, 7, 0, 0)]
    now = 0.0
    assert watch.look(now, seen, lambda _: (Range(0, 0, 0, 1),)) is None
    for gap in gaps:
        now += gap
        assert watch.look(now, seen, lambda _: (Range(0, 0, 0, 1),)) is None


def test_a_worker_that_somebody_has_stopped_is_not_blamed(world: World, stack: ExitStack) -> None:
    world.batch(stack, 0, SYNC)
    assert all(world.look(is_stopped=True) is None for _ in range(100))
    waited_s, _ = world.overdue_after()
    assert waited_s >= 2.0 - LOOK_INTERVAL_S


def test_a_stage_or_topic_that_the_plan_does_not_know_is_nobodys(world: World, stack: ExitStack) -> None:
    world.batch(stack, 0, 99)
    stack.enter_context(world.running(1, {("unknown", 0): (0, 1)})).enter(SYNC)
    assert all(world.look() is None for _ in range(100))


# -- who --------------------------------------------------------------------------------------------------------------


def test_of_several_batches_the_one_that_holds_the_loop_is_named(world: World, stack: ExitStack) -> None:
    world.batch(stack, 0, ASYNC)
    for _ in range(10):
        world.look()
    world.batch(stack, 1, SYNC)
    _, overdue = world.overdue_after()
    assert (overdue.stage.name, shards(overdue)) == ("score", [1]), "the other one waits for the loop"


def test_where_the_loop_is_free_the_one_that_waits_is_named(world: World, stack: ExitStack) -> None:
    world.batch(stack, 0, ASYNC)
    busy = world.batch(stack, 1, ASYNC)
    overdue: Overdue | None = None
    while overdue is None:
        busy.alive()
        overdue = world.look()
    assert shards(overdue) == [0]


def test_where_it_cannot_be_told_all_that_have_not_moved_for_long_are_suspects(world: World, stack: ExitStack) -> None:
    marks = [world.batch(stack, shard, ASYNC) for shard in range(3)]
    for _ in range(6):
        world.look()
    marks[1].alive()
    for _ in range(3):
        world.look()
    marks[2].rest()
    marks[2].enter(ASYNC)
    _, overdue = world.overdue_after()
    assert shards(overdue) == [0, 1]


def test_a_batch_of_several_partitions_makes_suspects_of_all(world: World, stack: ExitStack) -> None:
    stack.enter_context(world.running(0, {("in", 0): (0, 5), ("in", 2): (7, 9)})).enter(SYNC)
    _, overdue = world.overdue_after()
    assert places(overdue.stalls) == [(0, 0, 5), (2, 7, 9)]


def places(stalls: Sequence[Stalled]) -> list[tuple[int, int, int]]:
    return [(stalled.partition, stalled.first_offset, stalled.next_offset) for stalled in stalls]
