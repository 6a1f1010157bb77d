"""A shard's batches on their way into the stages: each is put on the page, and those that have hung before are tried
with care."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
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
        if self._stalls and is_touched(ranges, self._stalls):
            return await self._carefully(records, record_bytes_max)
        if not self._turns.begin_nowait():
            await self._turns.begin()
        try:
            return [await self._watched(records, ranges, record_bytes_max, None)]
        finally:
            self._turns.end()

    async def _carefully(self, records: Records, record_bytes_max: Mapping[str, int]) -> list[Effects]:
        effects = []
        for piece in pieces(records, self._stalls, self._attempts):
            effects.append(await self._piece(piece, record_bytes_max))
            # There may be thousands of them, and commits, signals and the agent want to be heard in between.
            await asyncio.sleep(0)
        return effects

    async def _piece(self, piece: Piece, record_bytes_max: Mapping[str, int]) -> Effects:
        """Alone, so that a worker that hangs again can hang at nothing else."""
        given_up = None
        if piece.suspect is not None and piece.suspect.attempts >= self._attempts:
            given_up = piece.suspect
            _log.error("records.given_up", stage=given_up.stage, records=place_of(given_up), attempts=given_up.attempts)
        await self._turns.begin_alone()
        try:
            return await self._watched(piece.records, piece.ranges, record_bytes_max, given_up)
        finally:
            self._turns.end_alone()

    async def _watched(
        self, records: Records, ranges: Offsets, record_bytes_max: Mapping[str, int], given_up: Stalled | None
    ) -> Effects:
        if self._page is None:
            return await self._program.process(records, record_bytes_max, UNWATCHED, given_up)
        mark = self._page.begin(self._shard, ranges)
        try:
            return await self._program.process(records, record_bytes_max, mark, given_up)
        finally:
            self._page.end(mark)
