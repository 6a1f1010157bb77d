"""A ledger and beats in memory that several members share, with the contract of Kafka's (`membership_contract.py`).

Works in virtual time. `MemoryMembershipLog.trouble` makes things go wrong for one member, by step: connect, follow,
append, delete, beat, beats. While `is_cut` nothing gets through for it in either direction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from trouble import Trouble

from millstream.processor.errors import PositionLostError, UnavailableError
from millstream.processor.membership_log import BeatsPage, Entry, LedgerPage

T = TypeVar("T")

FOLLOW_WAIT_S = 0.5
BEATS_WAIT_S = 0.1
BEATS_SPACING_S = 0.02
GIVEN_UP_AFTER_S = 0.2


class MemoryMembership:
    """What the members of one pipeline share."""

    def __init__(self, *, page_entries: int = 100) -> None:
        self.entries: list[Entry] = []
        self.log_start = 0
        self.end_offset = 0
        self.generation = 0
        self.beats: list[bytes] = []
        self.page_entries = page_entries
        self._waiting: set[asyncio.Event] = set()

    def log(self) -> MemoryMembershipLog:
        """One member's own."""
        return MemoryMembershipLog(self)

    def make_anew(self) -> None:
        """The ledger's topic is deleted and created again."""
        self.entries, self.log_start, self.end_offset = [], 0, 0
        self.generation += 1
        self.changed()

    def store(self, values: Sequence[bytes]) -> None:
        for value in values:
            self.entries.append(Entry(self.end_offset, value))
            self.end_offset += 1
        self.changed()

    def delete_before(self, offset: int) -> None:
        self.log_start = max(self.log_start, min(offset, self.end_offset))
        self.entries = [entry for entry in self.entries if entry.offset >= self.log_start]

    def page(self, offset: int) -> LedgerPage:
        if not self.log_start <= offset <= self.end_offset:
            raise PositionLostError(f"the ledger does not hold offset {offset}")
        entries = [entry for entry in self.entries if entry.offset >= offset][: self.page_entries]
        next_offset = entries[-1].offset + 1 if entries else offset
        return LedgerPage(entries, next_offset, self.log_start, self.end_offset)

    def add_beat(self, value: bytes) -> None:
        self.beats.append(value)
        self.changed()

    def changed(self) -> None:
        for event in self._waiting:
            event.set()

    async def until(self, condition: Callable[[], bool], wait_s: float) -> None:
        """Wait until the condition holds, but not longer than that."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            async with asyncio.timeout(wait_s):
                while not condition():
                    event.clear()
                    await event.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.remove(event)


class MemoryMembershipLog:
    """Implements `processor.membership_log.MembershipLog` for one member."""

    def __init__(self, shared: MemoryMembership) -> None:
        self.trouble = Trouble()
        self.is_cut = False
        self._shared = shared
        self._generation = -1
        self._beats_read: int | None = None
        self._beats_read_at = float("-inf")

    async def connect(self) -> None:
        await self._step("connect", lambda: None)

    async def follow(self, offset: int | None) -> LedgerPage:
        shared = self._shared
        if offset is None:
            self._generation, offset = shared.generation, shared.log_start
        start = offset
        await shared.until(lambda: shared.end_offset > start or self._generation != shared.generation, FOLLOW_WAIT_S)

        def read() -> LedgerPage:
            if self._generation != shared.generation:
                raise PositionLostError("the ledger was made anew")
            return shared.page(start)

        return await self._step("follow", read)

    async def append(self, values: Sequence[bytes]) -> None:
        await self._step("append", lambda: self._shared.store(values))

    async def delete_before(self, offset: int) -> None:
        await self._step("delete", lambda: self._shared.delete_before(offset))

    async def send_beat(self, value: bytes) -> None:
        await self._step("beat", lambda: self._shared.add_beat(value))

    async def read_beats(self) -> BeatsPage:
        loop, shared = asyncio.get_running_loop(), self._shared
        await asyncio.sleep(self._beats_read_at + BEATS_SPACING_S - loop.time())
        self._beats_read_at = loop.time()
        start = len(shared.beats) if self._beats_read is None else self._beats_read
        self._beats_read = start
        await shared.until(lambda: len(shared.beats) > start, BEATS_WAIT_S)

        def read() -> BeatsPage:
            values = shared.beats[start : start + shared.page_entries]
            self._beats_read = start + len(values)
            return BeatsPage(values, is_behind=start + len(values) < len(shared.beats))

        return await self._step("beats", read)

    def close(self) -> None:
        self.is_cut = True

    async def _step(self, name: str, act: Callable[[], T]) -> T:
        if self.is_cut:
            await asyncio.sleep(GIVEN_UP_AFTER_S)
            raise UnavailableError(f"{name}: nobody answers")
        later = await self.trouble.before(name)
        done = act()
        if later is not None:
            raise later
        return done
