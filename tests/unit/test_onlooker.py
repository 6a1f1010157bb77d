"""Whoever looks on sees what the nodes see, and does not take the log's silence for theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from ledger_histories import History
from memory_membership import MemoryMembership, MemoryMembershipLog
from virtual_time import simulated

from millstream.connectors.kafka.onlooker import Onlooker
from millstream.processor.beats import encode_beat
from millstream.processor.errors import RefusedError
from millstream.processor.ledger import CreatedRecord, DeadRecord, JoinRecord, LedgerRecord, WorkerUpRecord, encode
from millstream.processor.ledger_reader import snapshot
from millstream.processor.together import first_error

STARTED: list[LedgerRecord] = [
    CreatedRecord(2),
    *(record for node in ("a", "b") for record in (JoinRecord(node, node), WorkerUpRecord(node, 0, 0))),
]


class World:
    """A ledger and beats, and someone who looks at them."""

    def __init__(self, *records: LedgerRecord) -> None:
        self.shared = MemoryMembership()
        self.history = History()
        self.log: MemoryMembershipLog = self.shared.log()
        self.onlooker = Onlooker(self.log)
        self.silent: set[str] = set()
        self.say(*records)

    def say(self, *records: LedgerRecord) -> None:
        for record in records:
            self.history.add(record)
            self.shared.store([encode(record)])

    def states(self) -> dict[str, str]:
        return {row.node: row.state for row in self.onlooker.sight({}).view.nodes}

    def events(self) -> list[str]:
        return [event.what for event in self.onlooker.sight({}).story.events]

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            company = [tasks.create_task(self.onlooker.run()), tasks.create_task(self._beat())]
            await self.onlooker.caught_up.wait()
            await asyncio.sleep(1)
            yield
            for task in company:
                task.cancel()

    async def _beat(self) -> None:
        seq = 0
        while True:
            for node in ("a", "b"):
                if node not in self.silent:
                    self.shared.add_beat(encode_beat(node, seq))
            seq += 1
            await asyncio.sleep(0.05)


@simulated
async def test_it_sees_what_the_ledger_says_and_goes_on_with_it() -> None:
    world = World(*STARTED)
    async with world.looking():
        assert world.onlooker.membership == world.history.now
        assert world.states() == {"a": "in", "b": "in"}
        assert {event.at_ms for event in world.onlooker.sight({}).story.events} == {None}
        world.say(DeadRecord("a", "b", 280.0, 250.0, 200))
        world.silent.add("a")
        await asyncio.sleep(1)
        assert world.states() == {"b": "in"}
        assert world.events()[-2:] == ["found dead", "taken over"]
        last = world.onlooker.sight({}).story.events[-1]
        assert last.at_ms is not None
        assert last.at_ms > 0


@simulated
async def test_a_node_that_stops_to_beat_is_silent() -> None:
    world = World(*STARTED)
    async with world.looking():
        world.silent.add("b")
        await asyncio.sleep(0.3)
        assert world.states() == {"a": "in", "b": "in"}
        await asyncio.sleep(0.3)
        assert world.states() == {"a": "in", "b": "silent"}


@simulated
async def test_a_log_that_does_not_answer_is_no_silence_of_the_nodes_and_is_told() -> None:
    world = World(*STARTED)
    async with world.looking():
        world.log.is_cut = True
        await asyncio.sleep(5)
        assert world.states() == {"a": "in", "b": "in"}
        assert "nobody answers" in (world.onlooker.sight({}).trouble or "")
        world.log.is_cut = False
        await asyncio.sleep(1)
        assert world.onlooker.sight({}).trouble is None


@simulated
async def test_a_ledger_that_begins_with_a_snapshot_is_read_and_tells_nothing_of_before() -> None:
    world = World(*STARTED)
    world.say(snapshot(world.history.now))
    world.shared.delete_before(len(STARTED))
    async with world.looking():
        assert world.onlooker.membership == world.history.now
        assert world.events() == []


@simulated
async def test_a_ledger_that_has_lost_its_beginning_is_refused() -> None:
    world = World(*STARTED)
    world.shared.delete_before(2)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with world.looking():
            pass
    error = first_error(caught.value)
    assert isinstance(error, RefusedError)
    assert "the ledger begins at offset 2 and has no snapshot" in str(error)


@simulated
async def test_a_ledger_that_is_made_anew_is_read_from_its_start() -> None:
    world = World(*STARTED)
    async with world.looking():
        world.shared.make_anew()
        world.history = History()
        world.say(CreatedRecord(1))
        await asyncio.sleep(2)
        assert world.onlooker.membership == world.history.now
