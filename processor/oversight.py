"""A shard's batches on their way into the stages: each is put on the page, and those that have hung before are tried
with care."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

from millstream.processor.careful import Offsets, Piece, is_touched, pieces
from millstream.processor.columns import Records
from millstream.processor.event_log import EventLog
from millstream.processor.interfaces import Effects, Program
from millstream.processor.stage_mark import UNWATCHED
from millstream.processor.stage_page import StagePage
from millstream.processor.stalled import Stalled, place_of
from millstream.processor.turns import Turns

_log: Final = EventLog(logging.getLogger("millstream.engine"))


@dataclass(frozen=True, slots=True)
class Watched:
    """What all shards of a worker share. `page` is None where no agent looks. `attempts`: see `WatchPlan`."""

    page: StagePage | None
    turns: Turns
    attempts: int


class Oversight:
    """Runs the batches of one shard. `stalls` are those at which workers hung, in no order."""

    def __init__(self, shard: int, program: Program, watched: Watched, stalls: Sequence[Stalled] = ()) -> None:
        self._shard = shard
        self._program = program
        self._page = watched.page
        self._turns = watched.turns
        self._attempts = watched.attempts
        self._stalls = stalls

    async def process(self, records: Records, ranges: Offsets, record_bytes_max: Mapping[str, int]) -> list[Effects]:
        """All stages on a batch; `ranges` are its offsets by partition. Raises StageError."""
        if not self._stalls or not is_touched(ranges, self._stalls):
            return [await self._run(Piece(records, ranges, None), record_bytes_max)]
        effects = []
        for piece in pieces(records, self._stalls, self._attempts):
            effects.append(await self._run(piece, record_bytes_max))
            # There may be thousands of them, and commits, signals and the agent want to be heard in between.
            await asyncio.sleep(0)
        return effects

    async def _run(self, piece: Piece, record_bytes_max: Mapping[str, int]) -> Effects:
        if piece.suspect is None:
            await self._turns.begin()
            try:
                return await self._watched(piece, record_bytes_max, None)
            finally:
                self._turns.end()
        await self._turns.begin_alone()
        try:
            return await self._watched(piece, record_bytes_max, self._given_up(piece.suspect))
        finally:
            self._turns.end_alone()

    def _given_up(self, suspect: Stalled) -> Stalled | None:
        if suspect.attempts < self._attempts:
            return None
        _log.error("records.given_up", stage=suspect.stage, records=place_of(suspect), attempts=suspect.attempts)
        return suspect

    async def _watched(self, piece: Piece, record_bytes_max: Mapping[str, int], given_up: Stalled | None) -> Effects:
        page = nullcontext(UNWATCHED) if self._page is None else self._page.batch(self._shard, piece.ranges)
        with page as mark:
            return await self._program.process(piece.records, record_bytes_max, mark, given_up)
