"""The stage that may run on a device: columns out of the values, computed here or there, and back into the values.

Whatever goes wrong on a device, the same columns are computed on the CPU, in the same batch. So no record fails for a
device's fault, and what is committed does not depend on where it was computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from millstream.processor.columns import Index
from millstream.processor.errors import StageError
from millstream.processor.interfaces import ValueCodec
from millstream.processor.offloading import CPU, ArrayColumns, OnCpu, Placement, Route, StageDefinition
from millstream.processor.stages.array_columns import array_columns, rows_of
from millstream.processor.stages.batch import Batch, Identity, error_text
from millstream.processor.stages.calls import WrongAnswerError
from millstream.processor.stages.column_calls import ColumnCaller, Columns, Piece
from millstream.processor.stages.columns import Given, open_columns, write_back
from millstream.processor.stages.encoding import Encoder
from millstream.processor.stages.flow import Flow
from millstream.processor.stages.layouts import Answer, Layout, as_mapping


class OffloadStage:
    """Adds the columns that the function answers. `placement` decides where; it can be replaced between batches."""

    def __init__(
        self, definition: StageDefinition, layout: Layout, encoder: Encoder, codec: ValueCodec, identity: Identity
    ) -> None:
        self.definition = definition
        self.placement: Placement = OnCpu()
        self._reads = tuple(definition.reads)
        self._adds = {schema.name: schema for schema in definition.adds}
        self._layout = layout
        self._encoder = encoder
        self._codec = codec
        self._identity = identity
        self._compute_s = 0.0
        self._resident: Sequence[Mapping[str, Any]] | None = None
        self._caller = ColumnCaller(self._computed, self._checked, identity)

    def load(self) -> None:
        """Have what `resident` answers at hand. Raises StageError where it cannot be had: no record is to blame."""
        resident = self.definition.offloadable.resident
        if self._resident is None and resident is not None:
            try:
                self._resident = [_checked_resident(resident())]
            except Exception as error:
                raise StageError(
                    f"pipeline {self._identity.pipeline!r}, stage {self._identity.stage!r}: resident() raised "
                    f"{type(error).__name__}: {error_text(error)}"
                ) from error

    @property
    def resident(self) -> Sequence[Mapping[str, Any]]:
        """What `load` has loaded, if there is something."""
        return self._resident or ()

    async def run(self, flow: Flow, batch: Batch) -> tuple[Flow]:
        """One flow of the new bytes."""
        began = perf_counter()
        self.load()
        given = open_columns(flow, self._encoder, self._layout, self._identity, batch)
        count = len(given.columns)
        time, pieces = _Time(None, 0.0), list[Piece[Answer]]()
        if count:
            # No value is null here.
            self.placement.arrived(count, int(given.columns.value.size.sum()))
            time, pieces = await self._answered(given, batch)
        written = write_back(given, pieces, self._layout, self._codec, self._identity, batch)
        if time.route is not None:
            self._tell_time(time.route, given.columns, pieces, perf_counter() - began, time.compute_s)
        return (written,)

    # -- where ------------------------------------------------------------------------------------------------------

    async def _answered(self, given: Given, batch: Batch) -> tuple[_Time, list[Piece[Answer]]]:
        """All rows' answers but those of rows at fault, and what the time that they took is worth."""
        route = self.placement.route(len(given.columns))
        portions = _portions(len(given.columns), route.records_max)
        pieces: list[Piece[Answer]] = []
        if route.device != CPU:
            began = perf_counter()
            pieces = await self._on_device(route, given.columns, portions, batch)
            if len(pieces) == len(portions):
                return _Time(route, perf_counter() - began), pieces
        # No other batch comes in between: nothing is awaited unless there are rows at fault, and then no time counts.
        self._compute_s = 0.0
        input_rows = given.flow.rows[given.places]
        more, _ = await self._caller.call(given.columns, batch, input_rows, portions[len(pieces) :])
        is_plain = route.device == CPU and len(more) == len(portions)
        return _Time(route if is_plain else None, self._compute_s), pieces + more

    async def _on_device(
        self, route: Route, columns: Columns, portions: Sequence[Index], batch: Batch
    ) -> list[Piece[Answer]]:
        """The device's answers, up to the first one that it does not give."""
        whole = array_columns(columns, self._reads)
        pieces: list[Piece[Answer]] = []
        batch.mark.rest()
        for rows in portions:
            part = whole if len(portions) == 1 else rows_of(whole, int(rows[0]), int(rows[-1]) + 1)
            answer = await self.placement.compute(route, part)
            if answer is None:
                break
            try:
                pieces.append(Piece(rows, self._checked(answer, len(rows))))
            except WrongAnswerError as error:
                self.placement.refused(route, str(error))
                break
        batch.mark.alive()
        return pieces

    def _tell_time(
        self, route: Route, columns: Columns, pieces: Sequence[Piece[Answer]], seconds: float, compute_s: float
    ) -> None:
        """Each call's share of the time, with reading and writing the values in it."""
        for piece in pieces:
            rows, share = piece.rows, len(piece.rows) / len(columns)
            part = partial(self._part, columns, rows)
            answer = piece.answer.columns
            self.placement.observed(route, len(rows), seconds * share, compute_s * share, part, answer)

    def _part(self, columns: Columns, rows: Index) -> ArrayColumns:
        return array_columns(columns if len(rows) == len(columns) else columns.take(rows), self._reads)

    # -- how --------------------------------------------------------------------------------------------------------

    def _computed(self, columns: Columns) -> Any:
        began = perf_counter()
        answer = self.definition.offloadable.compute(array_columns(columns, self._reads), self.resident)
        self._compute_s += perf_counter() - began
        return answer

    def _checked(self, answer: Any, count: int) -> Answer:
        answered = as_mapping(answer, self._adds, self._adds)
        for name, column in answered.items():
            if isinstance(column, np.ma.MaskedArray):
                raise WrongAnswerError(f"column {name!r} is masked; columns that are added have a value in each row")
        return self._layout.check(answered, count)


@dataclass(frozen=True, slots=True)
class _Time:
    """Where a batch was computed and how long that took. `route` is None where it says nothing: it was in two places,
    or rows were asked for one by one."""

    route: Route | None
    compute_s: float


def _portions(count: int, records_max: int) -> list[Index]:
    """The rows in portions of nearly one size, since the smallest one costs as much to start as the others."""
    parts = -(-count // max(1, records_max))
    return [np.arange(count)] if parts == 1 else np.array_split(np.arange(count), parts)


def _checked_resident(answer: Any) -> Mapping[str, Any]:
    if not isinstance(answer, Mapping) or not all(isinstance(array, np.ndarray) for array in answer.values()):
        raise TypeError(f"it answers a dict of NumPy arrays by name, not {type(answer).__name__}")
    return answer
