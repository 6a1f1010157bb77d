"""Ledger and beats on the simulated network: `processor.membership_log.MembershipLog` for one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sim_network import REQUEST_TIMEOUT_S, Client, Network

from millstream.processor.errors import PositionLostError
from millstream.processor.membership_log import BeatsPage, Entry, LedgerPage

T = TypeVar("T")

LEDGER_BROKER = 1
_FOLLOW_WAIT_S = 0.5
# The connector has its broker hold a fetch of beats back, however much comes; here for a little longer.
BEATS_WAIT_S = 0.04


class Ledger:
    """The ledger's topic and that of the beats, as the brokers have them."""

    def __init__(self, page_records: int) -> None:
        self.entries: list[Entry] = []
        self.log_start = 0
        self.end = 0
        self.all_values: list[bytes] = []
        self.beats: list[bytes] = []
        self._page_records = page_records
        self._waiting: list[Callable[[], None]] = []
        self.on_store: Callable[[int, bytes], None] = lambda offset, value: None

    def values(self) -> list[bytes]:
        return [entry.value for entry in self.entries]

    def store(self, values: Sequence[bytes]) -> None:
        for value in values:
            self.entries.append(Entry(self.end, value))
            self.all_values.append(value)
            self.on_store(self.end, value)
            self.end += 1
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def delete_before(self, offset: int) -> None:
        self.log_start = max(self.log_start, min(offset, self.end))
        self.entries = [entry for entry in self.entries if entry.offset >= self.log_start]

    def page(self, offset: int) -> LedgerPage | PositionLostError:
        if not self.log_start <= offset <= self.end:
            return PositionLostError(f"the ledger does not hold offset {offset}")
        first = offset - self.log_start
        entries = self.entries[first : first + self._page_records]
        return LedgerPage(entries, offset + len(entries), self.log_start, self.end)

    def wait(self, callback: Callable[[], None]) -> None:
        """Call it when something new is there."""
        self._waiting.append(callback)


class MembershipLog:
    """One node's own way to it."""

    def __init__(self, network: Network, ledger: Ledger, client: Client, beats_broker: int) -> None:
        self._network = network
        self._ledger = ledger
        self._client = client
        self._beats_broker = beats_broker
        self._beats_read: int | None = None

    async def _ask(self, broker: int, kind: str, effect: Callable[[], T]) -> T:
        return await self._network.ask(self._client, broker, kind, lambda respond: respond(effect()))

    async def connect(self) -> None:
        await self._ask(LEDGER_BROKER, "Connect", lambda: None)

    async def follow(self, offset: int | None) -> LedgerPage:
        ledger, start = self._ledger, offset

        def handle(respond: Callable[[LedgerPage | PositionLostError], None]) -> None:
            at = ledger.log_start if start is None else start
            is_answered = False

            def answer() -> None:
                nonlocal is_answered
                if not is_answered:
                    is_answered = True
                    respond(ledger.page(at))

            if ledger.end != at:
                answer()
            else:
                ledger.wait(answer)
                self._network.later(_FOLLOW_WAIT_S, answer)

        timeout_s = _FOLLOW_WAIT_S + REQUEST_TIMEOUT_S
        page = await self._network.ask(self._client, LEDGER_BROKER, "Follow", handle, timeout_s)
        if isinstance(page, PositionLostError):
            raise page
        return page

    async def append(self, values: Sequence[bytes]) -> None:
        await self._ask(LEDGER_BROKER, "Append", lambda: self._ledger.store(values))

    async def delete_before(self, offset: int) -> None:
        await self._ask(LEDGER_BROKER, "DeleteRecords", lambda: self._ledger.delete_before(offset))

    async def send_beat(self, value: bytes) -> None:
        await self._ask(self._beats_broker, "Beat", lambda: self._ledger.beats.append(value))

    async def read_beats(self) -> BeatsPage:
        beats, start = self._ledger.beats, self._beats_read

        def handle(respond: Callable[[tuple[int, list[bytes]]], None]) -> None:
            at = len(beats) if start is None else start
            self._network.later(BEATS_WAIT_S, lambda: respond((at, beats[at:])))

        at, values = await self._network.ask(self._client, self._beats_broker, "Beats", handle)
        self._beats_read = at + len(values)
        return BeatsPage(values, is_behind=False)

    def close(self) -> None:
        pass
