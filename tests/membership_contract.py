"""What a member relies on in its log, as one suite for Kafka's and for the one in memory that stands for it.

A test module subclasses `MembershipContract` and gives it a fixture `world`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import pytest

from millstream.processor.errors import PositionLostError, UnavailableError
from millstream.processor.membership_log import Entry, MembershipLog


class World(Protocol):
    """A cluster with the two topics of one pipeline."""

    def log(self) -> MembershipLog:
        """A new member's, not connected."""

    async def make_anew(self) -> None:
        """The ledger is another topic of the same name afterwards."""


@asynccontextmanager
async def connected(world: World) -> AsyncIterator[MembershipLog]:
    log = world.log()
    await log.connect()
    try:
        yield log
    finally:
        log.close()


async def read_all(log: MembershipLog, offset: int | None = None) -> list[Entry]:
    """Everything from there on."""
    entries: list[Entry] = []
    while True:
        page = await log.follow(offset)
        entries += page.entries
        offset = page.next_offset
        if page.caught_up:
            return entries


async def following(log: MembershipLog, offset: int) -> list[Entry]:
    """What comes next at that offset, whenever that is, and whatever is unavailable for a moment."""
    while True:
        try:
            if entries := (await log.follow(offset)).entries:
                return list(entries)
        except UnavailableError:
            pass


async def beats_until(log: MembershipLog, last: bytes) -> list[bytes]:
    """All beats up to that one."""
    values: list[bytes] = []
    while last not in values:
        values += (await log.read_beats()).values
    return values


class MembershipContract:
    async def test_an_empty_ledger_is_read_as_such(self, world: World) -> None:
        async with connected(world) as log:
            page = await log.follow(None)
            assert (list(page.entries), page.next_offset, page.log_start, page.end_offset) == ([], 0, 0, 0)
            assert page.caught_up

    async def test_records_are_read_in_order_from_any_offset_by_everyone(self, world: World) -> None:
        async with connected(world) as one, connected(world) as two:
            for number in range(5):
                await (one, two)[number % 2].append([b"%d" % number, b"%d and more" % number])
            entries = await read_all(one)
            assert [value for _, value in entries] == [b"%d%s" % (n, m) for n in range(5) for m in (b"", b" and more")]
            assert [offset for offset, _ in entries] == list(range(10))
            assert await read_all(two) == entries
            assert await read_all(two, 7) == entries[7:]

    async def test_who_follows_at_the_end_gets_what_comes(self, world: World) -> None:
        async with connected(world) as one, connected(world) as two:
            end = (await one.follow(None)).next_offset
            news = asyncio.create_task(following(one, end))
            await asyncio.sleep(0)
            await two.append([b"news"])
            assert await news == [Entry(end, b"news")]

    async def test_records_larger_than_a_topic_takes_as_they_are(self, world: World) -> None:
        snapshot = b'{"topic":"orders","partition":17},' * 60_000
        async with connected(world) as log:
            await log.append([b"before", snapshot, *[b"x" * 1000] * 2000])
            values = [value for _, value in await read_all(log)]
            assert values[:2] == [b"before", snapshot]
            assert values[2:] == [b"x" * 1000] * 2000

    async def test_what_was_deleted_is_reported_as_lost_and_reading_begins_anew_behind_it(self, world: World) -> None:
        async with connected(world) as one, connected(world) as two:
            await one.append([b"a", b"b", b"c"])
            await one.delete_before(2)
            await two.follow(None)
            with pytest.raises(PositionLostError):
                await two.follow(0)
            page = await two.follow(None)
            assert (page.entries[0], page.log_start) == (Entry(2, b"c"), 2)
            with pytest.raises(PositionLostError):
                await two.follow(99)

    async def test_a_ledger_that_was_made_anew_is_not_taken_for_the_old_one(self, world: World) -> None:
        async with connected(world) as log:
            await log.append([b"old"])
            assert await read_all(log) == [Entry(0, b"old")]
            await world.make_anew()
            with pytest.raises(PositionLostError):
                await following(log, 1)
            await log.append([b"new"])
            assert await read_all(log) == [Entry(0, b"new")]

    async def test_beats_are_read_in_order_from_where_reading_began(self, world: World) -> None:
        async with connected(world) as one, connected(world) as two:
            await one.send_beat(b"before anybody looked")
            await one.read_beats()
            await two.read_beats()
            for number in range(3):
                await asyncio.gather(one.send_beat(b"one %d" % number), two.send_beat(b"two %d" % number))
            await two.send_beat(b"last")
            seen, again = await beats_until(one, b"last"), await beats_until(two, b"last")
            assert seen == again
            assert len(seen) == 7
            assert [beat for beat in seen if beat.startswith(b"one")] == [b"one 0", b"one 1", b"one 2"]
            page = await one.read_beats()
            assert (list(page.values), page.is_behind) == ([], False)

    async def test_beats_that_overlap_keep_their_order(self, world: World) -> None:
        async with connected(world) as log:
            await log.read_beats()
            await log.send_beat(b"first")
            await asyncio.gather(*(log.send_beat(b"%02d" % number) for number in range(20)))
            assert await beats_until(log, b"19") == [b"first", *(b"%02d" % number for number in range(20))]
