"""Records at which workers hang are found among many, tried again, and then left to the error policy, and only they."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.processor import OnError, Pipeline, TestRecord
from millstream.processor.careful import Offsets, is_touched, pieces
from millstream.processor.columns import OutputRecords, Records, Slices
from millstream.processor.endings import hung
from millstream.processor.errors import StageError
from millstream.processor.interfaces import Effects
from millstream.processor.oversight import Oversight, Watched
from millstream.processor.partitions import TopicPartition
from millstream.processor.stage_watch import Overdue
from millstream.processor.stalled import STALLS_MAX, StageLimit, Stalled, counted, of_shards, place_of
from millstream.processor.testing import TestOutput, decoded_outputs, input_records
from millstream.processor.turns import Turns


def stalled(first: int, next_: int, attempts: int = 1, *, partition: int = 0, stage: str = "map double") -> Stalled:
    return Stalled(0, stage, "in", partition, first, next_, attempts)


# -- counting ---------------------------------------------------------------------------------------------------------


def test_attempts_at_the_same_records_add_up_and_the_newer_range_stays() -> None:
    known = counted((), [stalled(0, 5000)])
    known = counted(known, [stalled(100, 200)])
    assert known == (stalled(100, 200, 2),)
    # Batch borders differ from run to run.
    assert counted(known, [stalled(199, 300)]) == (stalled(199, 300, 3),)


def test_other_records_are_other_trouble() -> None:
    known = counted((), [stalled(0, 10), stalled(0, 10, partition=1)])
    known = counted(known, [stalled(10, 20), Stalled(1, "map double", "in", 0, 0, 10)])
    assert [one.attempts for one in known] == [1, 1, 1, 1]
    assert of_shards(known, {1}) == [Stalled(1, "map double", "in", 0, 0, 10)]


def test_what_is_remembered_is_bounded() -> None:
    known: tuple[Stalled, ...] = ()
    for offset in range(STALLS_MAX + 10):
        known = counted(known, [stalled(offset, offset + 1)])
    assert len(known) == STALLS_MAX
    assert known[-1].first_offset == STALLS_MAX + 9


def test_people_read_the_stage_its_time_and_the_records_and_how_often_it_was() -> None:
    overdue = Overdue(StageLimit("score", 60.0), (stalled(17, 42),))
    text = "stage 'score' did not come back within 60 s from in-0@17..41 (attempt 1)"
    assert hung(overdue, [stalled(90, 95, 7)]) == text
    assert "in-0@17 (attempt 2)" in hung(Overdue(StageLimit("score", 60.0), (stalled(17, 18),)), [stalled(17, 42)])
    many = Overdue(StageLimit("score", 60.0), tuple(stalled(0, 1, partition=p) for p in range(9)))
    assert hung(many, []).endswith("in-2@0 (attempt 1) and 6 more")
    assert place_of(stalled(3, 4)) == "in-0@3"


# -- cutting ----------------------------------------------------------------------------------------------------------


def records(counts: dict[int, int], first: int = 0) -> tuple[Records, Offsets]:
    """So many records of each partition, as they are taken: one partition after the other."""
    origins = tuple(TopicPartition("in", partition) for partition in counts)
    origin = np.repeat(np.arange(len(counts), dtype=np.int32), list(counts.values()))
    offset = np.concatenate([np.arange(first, first + count, dtype=np.int64) for count in counts.values()])
    values = Slices.from_list([str(number).encode() for number in offset.tolist()])
    nothing = Slices.repeated(None, len(offset))
    no_headers = Slices.repeated(b"\0", len(offset))
    taken = Records(origins, origin, offset, np.full(len(offset), -1), nothing, values, no_headers)
    return taken, {origin: (first, first + count) for origin, count in zip(origins, counts.values(), strict=True)}


def rows(taken: Records) -> list[tuple[TopicPartition, int]]:
    return [
        (taken.origins[at], offset) for at, offset in zip(taken.origin.tolist(), taken.offset.tolist(), strict=True)
    ]


RANGES = st.tuples(st.integers(0, 2), st.integers(0, 90), st.integers(1, 60), st.integers(1, 4))


@given(st.dictionaries(st.integers(0, 2), st.integers(1, 60), min_size=1), st.lists(RANGES, max_size=4))
def test_the_pieces_are_the_batch_in_order_and_no_suspect_shares_one(
    counts: dict[int, int], ranges: list[tuple[int, int, int, int]]
) -> None:
    taken, offsets = records(counts, first=10)
    stalls = [stalled(first, first + count, attempts, partition=p) for p, first, count, attempts in ranges]
    made = list(pieces(taken, stalls, 3))
    assert [row for piece in made for row in rows(piece.records)] == rows(taken)
    under_suspicion = {
        row
        for row in rows(taken)
        if any(one.partition == row[0].partition and one.first_offset <= row[1] < one.next_offset for one in stalls)
    }
    assert bool(under_suspicion) == is_touched(offsets, stalls)
    for piece in made:
        assert set(rows(piece.records)) <= under_suspicion or not set(rows(piece.records)) & under_suspicion
        assert (piece.suspect is not None) == set(rows(piece.records)).issubset(under_suspicion)
        for place, (first, next_) in piece.ranges.items():
            mine = [offset for origin, offset in rows(piece.records) if origin == place]
            assert (first, next_) == (mine[0], mine[-1] + 1)


@pytest.mark.parametrize("attempts_max", [2, 3, 5])
@pytest.mark.parametrize("count", [1, 63, 5000])
def test_what_is_given_up_is_one_record_after_as_many_deaths_as_allowed(attempts_max: int, count: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    taken, whole = records({0: count})
    poison = random.Random(seed).randrange(count)
    known: tuple[Stalled, ...] = ()
    for death in range(1, attempts_max + 1):
        ((_, hung),) = hung_at(taken, whole, known, poison, attempts_max).items()
        known = counted(known, [stalled(*hung)])
        assert known[0].attempts == death
    assert known == (stalled(poison, poison + 1, attempts_max),)
    (given_up,) = [piece for piece in pieces(taken, known, attempts_max) if piece.suspect is not None]
    assert given_up.records.offset.tolist() == [poison]


def hung_at(taken: Records, whole: Offsets, known: tuple[Stalled, ...], poison: int, attempts_max: int) -> Offsets:
    """What the page says when the worker hangs at the poison."""
    if not is_touched(whole, known):
        return whole
    return next(piece.ranges for piece in pieces(taken, known, attempts_max) if poison in piece.records.offset)


@given(
    st.dictionaries(st.integers(0, 2), st.integers(1, 300), min_size=1),
    st.sets(st.tuples(st.integers(0, 2), st.integers(0, 299)), max_size=5),
    st.integers(2, 4),
)
def test_several_culprits_in_one_batch_are_all_found_and_no_other_record_is_given_up(
    counts: dict[int, int], wanted: set[tuple[int, int]], attempts_max: int
) -> None:
    taken, whole = records(counts)
    culprits = {(TopicPartition("in", p), offset) for p, offset in wanted if offset < counts.get(p, 0)}
    known: tuple[Stalled, ...] = ()
    deaths = 0
    while True:
        given_up, hung = run_through(taken, whole, known, culprits, attempts_max)
        if hung is None:
            break
        deaths += 1
        known = counted(known, [stalled(*offsets, partition=p) for (_, p), offsets in hung.items()])
    assert given_up == culprits
    # The one more is where the first look at a batch of several partitions made suspects of all.
    assert deaths <= attempts_max * len(culprits) + len(counts)


def run_through(
    taken: Records,
    whole: Offsets,
    known: tuple[Stalled, ...],
    culprits: set[tuple[TopicPartition, int]],
    attempts_max: int,
) -> tuple[set[tuple[TopicPartition, int]], Offsets | None]:
    """What one worker gives up before it hangs, and where it hangs, if it does."""
    given_up: set[tuple[TopicPartition, int]] = set()
    if not is_touched(whole, known):
        return given_up, whole if culprits else None
    for piece in pieces(taken, known, attempts_max):
        if piece.suspect is not None and piece.suspect.attempts >= attempts_max:
            given_up.update(rows(piece.records))
        elif culprits.intersection(rows(piece.records)):
            return given_up, piece.ranges
    return given_up, None


def test_a_second_try_of_a_large_batch_takes_few_calls() -> None:
    taken, _ = records({0: 5000})
    assert len(list(pieces(taken, [stalled(0, 5000)], 3))) <= 64


# -- the policy -------------------------------------------------------------------------------------------------------


def double(value: dict[str, int]) -> dict[str, int]:
    assert value["n"] != 3, "it would hang"
    return {"n": 2 * value["n"]}


async def processed(pipeline: Pipeline, stalls: list[Stalled], count: int = 6) -> list[Effects]:
    built = pipeline.build()
    given = [TestRecord(value={"n": n}) for n in range(count)]
    oversight = Oversight(0, built.program, Watched(None, Turns(), 3), stalls)
    return await oversight.process(input_records(built, given, None), {("in", 0): (0, count)}, {})


def outcome(pipeline: Pipeline, effects: list[Effects]) -> tuple[dict[str, list[TestOutput]], list[TestOutput]]:
    return decoded_outputs(pipeline.build(), [outputs for effect in effects for outputs in effect.outputs])


def doubling(on_error: OnError) -> Pipeline:
    pipeline = Pipeline("p", on_error=on_error)
    stream = pipeline.read("in", format="json")
    stream.map(double).write("out")
    stream.write("copy")
    return pipeline


async def test_a_record_that_is_given_up_is_dead_lettered_by_its_stage_and_goes_on_in_other_branches() -> None:
    pipeline = doubling(OnError.dead_letter())
    outputs, dead = outcome(pipeline, await processed(pipeline, [stalled(3, 4, 3)]))
    assert [output.value["n"] for output in outputs["out"]] == [0, 2, 4, 8, 10]
    assert [output.value["n"] for output in outputs["copy"]] == [0, 1, 2, 3, 4, 5]
    (letter,) = dead
    headers = {name.removeprefix("millstream.error."): value for name, value in letter.headers}
    assert letter.raw == b'{"n":3}'
    assert (headers["stage"], headers["offset"], headers["attempts"]) == (b"map double", b"3", b"3")
    assert headers["type"] == b"StalledError"
    assert b"stage_timeout_s" in (headers["message"] or b"")


async def test_a_record_that_is_given_up_can_be_skipped() -> None:
    pipeline = doubling(OnError.skip())
    effects = await processed(pipeline, [stalled(3, 4, 3)])
    outputs, _ = outcome(pipeline, effects)
    assert [output.value["n"] for output in outputs["out"]] == [0, 2, 4, 8, 10]
    assert sum(effect.counts.skipped for effect in effects) == 1
    assert sum(effect.counts.records_in for effect in effects) == 6


async def test_a_record_that_is_given_up_stops_the_pipeline_by_default() -> None:
    with pytest.raises(StageError, match=r"stage 'map double': failed on in-0@3 after 3 attempts: StalledError"):
        await processed(doubling(OnError.stop()), [stalled(3, 4, 3)])


async def test_before_the_last_attempt_the_function_is_asked() -> None:
    asked: list[int] = []
    pipeline = Pipeline("p")
    pipeline.read("in", format="json").map(lambda value: asked.append(value["n"]) or value, name="ask").write("out")
    await processed(pipeline, [stalled(3, 4, 2, stage="ask")])
    assert asked == [0, 1, 2, 3, 4, 5]


async def test_a_stage_that_the_pipeline_no_longer_has_is_given_no_record() -> None:
    pipeline = doubling(OnError.stop())
    with pytest.raises(StageError, match="AssertionError"):
        await processed(pipeline, [stalled(3, 4, 3, stage="of old")])


# -- whose turn it is -------------------------------------------------------------------------------------------------


class Program:
    """Tells who runs together, and never ends by itself."""

    def __init__(self) -> None:
        self.running = 0
        self.together: list[int] = []
        self.go_on = asyncio.Event()

    async def process(self, records: Records, *_: Any) -> Effects:
        self.running += 1
        self.together.append(self.running)
        await self.go_on.wait()
        self.running -= 1
        return Effects([OutputRecords("out", *[records.key] * 3, *[records.timestamp] * 3)], counts=None)  # type: ignore[arg-type]


async def test_a_suspect_runs_alone_and_all_others_side_by_side() -> None:
    program = Program()
    watched = Watched(None, Turns(), 3)
    taken, ranges = records({0: 2})
    plain = [Oversight(shard, program, watched) for shard in range(3)]  # type: ignore[arg-type]
    suspect = Oversight(3, program, watched, [stalled(0, 2)])  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as tasks:
        for oversight in (plain[0], plain[1], suspect, plain[2]):
            tasks.create_task(oversight.process(taken, ranges, {}))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert program.together == [1, 2], "the suspect waits for those that run, and those that come later for it"
        program.go_on.set()
    assert sorted(program.together) == [1, 1, 1, 1, 2]


async def test_a_suspect_that_is_cancelled_while_it_waits_is_in_nobodys_way() -> None:
    turns = Turns()
    await turns.begin()
    waiting = asyncio.create_task(turns.begin_alone())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    async with asyncio.timeout(1):
        await turns.begin()
    turns.end()
    turns.end()
    async with asyncio.timeout(1):
        await turns.begin_alone()
    turns.end_alone()
