"""Where a shard begins: behind its last commit; where there is none, only a partition that never had one is new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pytest
from engine_bench import numbered, place
from memory_broker import MemoryBroker
from memory_log import MemoryLog
from virtual_time import simulated

from millstream.processor.errors import OffsetLostError, OutcomeUnknownError, UnavailableError
from millstream.processor.intake import InputPolicy
from millstream.processor.ledger import ReadingRecord, encode
from millstream.processor.log import Start
from millstream.processor.partitions import TopicPartition
from millstream.processor.positions import begin
from millstream.processor.preparation import read_state

LEDGER = "group.ledger"


class World:
    """A topic of two partitions with ten records each, and the ledger of a pipeline that has begun to read it."""

    def __init__(self, width: int = 2) -> None:
        self.broker = MemoryBroker()
        self.broker.create("in", 2)
        self.broker.create(LEDGER)
        self.broker.send(LEDGER, 0, [encode(ReadingRecord("in", width))])
        for partition in (0, 1):
            self.broker.send("in", partition, numbered(10))
        self.log = MemoryLog(self.broker, "group")

    async def begin(
        self, *partitions: int, start: Start = "earliest", lost: Literal["stop", "earliest", "latest"] = "stop"
    ) -> Mapping[TopicPartition, int]:
        shard_log = self.log.shard(0)
        permit = await shard_log.fence()
        known = await read_state(self.log, LEDGER)
        places = [place(partition) for partition in partitions or (0, 1)]
        begun = await begin(self.log, shard_log, permit, places, {"in": InputPolicy(start, lost)}, LEDGER, known)
        # The permit that is answered is the one for the next commit.
        await shard_log.commit(begun.permit, shard_log.outbox().seal(), begun.positions)
        return begun.positions

    @property
    def ledger_size(self) -> int:
        return len(self.broker.values(LEDGER))


@pytest.mark.parametrize(("start", "offset"), [("earliest", 0), ("latest", 10)])
@simulated
async def test_a_new_partition_begins_where_its_topic_says_and_that_is_committed_at_once(
    start: Literal["earliest", "latest"], offset: int
) -> None:
    world = World()
    assert await world.begin(start=start) == {place(0): offset, place(1): offset}
    assert world.broker.committed("group", "in") == {0: offset, 1: offset}
    assert [found.offset for found in world.broker.commits[0].values()] == [offset, offset]


@simulated
async def test_latest_is_decided_once() -> None:
    world = World()
    await world.begin(start="latest")
    world.broker.send("in", 0, numbered(5))
    assert await world.begin(start="latest") == {place(0): 10, place(1): 10}


@simulated
async def test_a_start_is_written_down_once_for_each_partition() -> None:
    world = World()
    await world.begin(0)
    assert world.ledger_size == 2
    await world.begin(0, 1)
    assert world.ledger_size == 3
    await world.begin(0, 1)
    assert world.ledger_size == 3


@simulated
async def test_a_committed_offset_that_is_gone_is_not_taken_for_a_new_partition() -> None:
    """I3."""
    world = World()
    await world.begin()
    del world.broker.offsets["group", place(1)]
    with pytest.raises(OffsetLostError, match=r"in-1: it had a committed offset once.*on_offset_lost='earliest'"):
        await world.begin()
    assert (await world.begin(lost="latest"))[place(1)] == 10


@simulated
async def test_an_offset_of_a_topic_that_was_made_anew_is_not_used() -> None:
    world = World()
    await world.begin()
    world.broker.delete("in")
    world.broker.create("in", 2)
    world.broker.send("in", 0, numbered(3))
    with pytest.raises(OffsetLostError, match="in-0: the topic was deleted and created again"):
        await world.begin()
    assert await world.begin(lost="latest") == {place(0): 3, place(1): 0}


@simulated
async def test_going_on_at_the_earliest_means_what_the_log_still_holds() -> None:
    world = World()
    await world.begin()
    world.broker.offsets.clear()
    world.broker.expire("in", 0, 7)
    assert await world.begin(lost="earliest") == {place(0): 7, place(1): 0}


@simulated
async def test_a_partition_that_was_added_later_begins_at_its_first_record_whatever_the_start() -> None:
    world = World(width=1)
    assert await world.begin(start="latest") == {place(0): 10, place(1): 0}


@pytest.mark.parametrize("step", ["committed", "starting", "offsets", "end", "append-ledger", "bounds"])
@pytest.mark.parametrize("after", [False, True])
@simulated
async def test_trouble_at_any_step_leaves_a_beginning_that_can_be_repeated(step: str, after: bool) -> None:
    world = World()
    error = OutcomeUnknownError("lost") if step in ("offsets", "end") else UnavailableError("not now")
    world.log.trouble.fail(step, error, after=after)
    if step != "bounds":  # not needed for a partition that is new
        with pytest.raises(type(error)):
            await world.begin()
    world.broker.send("in", 0, numbered(5))
    assert await world.begin() == {place(0): 0, place(1): 0}
    assert world.broker.committed("group", "in") == {0: 0, 1: 0}
