"""One batch of input on its way through the stages: its records, what it has caused so far, and what failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from millstream.processor.columns import NO_TIMESTAMP, Index, Int32s, OutputRecords, Records, Slices
from millstream.processor.errors import StageError
from millstream.processor.interfaces import Counts
from millstream.processor.policy import OnError
from millstream.processor.record import Record
from millstream.processor.stage_mark import UNWATCHED, StageMark

MESSAGE_LENGTH_MAX = 1000


@dataclass(frozen=True, slots=True)
class Identity:
    """Which stage of which pipeline, and what it does with a record that it fails on."""

    pipeline: str
    stage: str
    policy: OnError


@dataclass(frozen=True, slots=True)
class Failure:
    """A stage gave up on a record, after so many attempts."""

    stage: Identity
    row: int
    error: Exception
    attempts: int


def error_text(error: BaseException) -> str:
    """What the error says, bounded: other people's errors may quote whatever they like at any length."""
    text = str(error)
    return text if len(text) <= MESSAGE_LENGTH_MAX else text[: MESSAGE_LENGTH_MAX - 1] + "…"


class Batch:
    """What the stages share while one batch runs. Rows are positions in `records`."""

    def __init__(self, records: Records, record_bytes_max: Mapping[str, int], mark: StageMark = UNWATCHED) -> None:
        self.records = records
        self.record_bytes_max = record_bytes_max
        self.mark = mark
        self.counts = Counts()
        self.outputs: list[OutputRecords] = []
        self.dead: dict[tuple[int, str], Failure] = {}
        self._skipped: set[tuple[int, str]] = set()
        # Stages that keep every row hand this very array on, and `of_rows` then need not copy a column.
        self.all_rows: Index = np.arange(len(records), dtype=np.int64)
        self._views: tuple[Index | None, list[Record]] = (None, [])

    def fail(self, failure: Failure) -> None:
        """Apply the stage's policy. Raises StageError where that is to stop.

        A record that fails several times in one stage (as parts of a flat_map may) counts, and is dead-lettered, once.
        """
        identity = failure.stage
        place = (failure.row, identity.stage)
        match identity.policy.action:
            case "stop":
                raise self.stopped(failure) from failure.error
            case "dead-letter":
                if place not in self.dead:
                    self.dead[place] = failure
                    self.counts.dead_letters += 1
            case "skip":
                if place not in self._skipped:
                    self._skipped.add(place)
                    self.counts.skipped += 1

    def stopped(self, failure: Failure) -> StageError:
        """The error that stops the pipeline. It names the record's place, never what it holds."""
        attempts = f"{failure.attempts} attempt{'' if failure.attempts == 1 else 's'}"
        return StageError(
            f"pipeline {failure.stage.pipeline!r}, stage {failure.stage.stage!r}: failed on {self.place(failure.row)} "
            f"after {attempts}: {type(failure.error).__name__}: {error_text(failure.error)}"
        )

    def place(self, row: int) -> str:
        """Where a row was read from, as topic-partition@offset."""
        return f"{self.records.origins[self.records.origin[row]]}@{self.records.offset[row]}"

    def of_rows(self, column: Slices, rows: Index) -> Slices:
        """The column's values for these rows."""
        return column if rows is self.all_rows else column.take(rows)

    def partitions(self, rows: Index) -> Int32s:
        """The input partition of each row."""
        partition = np.array([origin.partition for origin in self.records.origins], np.int32)
        of_all = partition[self.records.origin]
        return of_all if rows is self.all_rows else of_all[rows]

    def views(self, rows: Index) -> list[Record]:
        """Rows as `Record` objects. The last ones made are kept, for the next stage that asks for the same."""
        made_for, views = self._views
        if made_for is not rows:
            views = self._made_views(rows)
            self._views = rows, views
        return views

    def _made_views(self, rows: Index) -> list[Record]:
        records = self.records if rows is self.all_rows else self.records.take(rows)
        topics = [origin.topic for origin in records.origins]
        columns = zip(
            [topics[origin] for origin in records.origin.tolist()],
            self.partitions(rows).tolist(),
            records.offset.tolist(),
            [None if at == NO_TIMESTAMP else at for at in records.timestamp.tolist()],
            records.key.to_list(),
            records.value.to_list(),
            records.headers.to_list(),
            strict=True,
        )
        return list(map(Record._make, columns))
