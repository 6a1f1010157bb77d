"""The ledger and beats in memory keep the contract that Kafka's keep."""

from __future__ import annotations

import asyncio

import pytest
from membership_contract import MembershipContract
from memory_membership import MemoryMembership
from virtual_time import simulated

from millstream.processor.errors import UnavailableError
from millstream.processor.membership_log import MembershipLog


class MemoryWorld:
    def __init__(self) -> None:
        self.shared = MemoryMembership()

    def log(self) -> MembershipLog:
        return self.shared.log()

    async def make_anew(self) -> None:
        self.shared.make_anew()


class TestMemoryMembership(MembershipContract):
    @pytest.fixture
    def world(self) -> MemoryWorld:
        return MemoryWorld()


@simulated
async def test_a_member_that_is_cut_off_hears_and_says_nothing_and_the_others_do_not_notice() -> None:
    shared = MemoryMembership()
    cut, other = shared.log(), shared.log()
    cut.is_cut = True
    await other.append([b"a"])
    for call in (cut.follow(None), cut.append([b"b"]), cut.send_beat(b"beat"), cut.read_beats(), cut.delete_before(1)):
        with pytest.raises(UnavailableError):
            await call
    assert [value for _, value in (await other.follow(None)).entries] == [b"a"]
    assert shared.beats == []


@simulated
async def test_an_append_whose_answer_is_lost_is_stored_all_the_same() -> None:
    shared = MemoryMembership()
    log = shared.log()
    log.trouble.fail("append", UnavailableError("nobody answered"), after=True)
    with pytest.raises(UnavailableError):
        await log.append([b"a"])
    assert [value for _, value in (await log.follow(None)).entries] == [b"a"]


@simulated
async def test_pages_are_bounded_and_say_that_there_is_more() -> None:
    shared = MemoryMembership(page_entries=2)
    log = shared.log()
    await log.read_beats()
    await log.append([b"a", b"b", b"c"])
    for _ in range(3):
        await log.send_beat(b"beat")
    assert [(await log.follow(offset)).caught_up for offset in (None, 2)] == [False, True]
    assert [(await log.read_beats()).is_behind for _ in range(2)] == [True, False]


@simulated
async def test_beats_are_not_read_more_often_than_every_20_ms() -> None:
    shared = MemoryMembership()
    log = shared.log()
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(10):
        shared.add_beat(b"beat")
        await log.read_beats()
    assert loop.time() - began >= 9 * 0.02
