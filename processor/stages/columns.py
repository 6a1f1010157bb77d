"""Stages that call a function once for a batch, with columns instead of values.

They never see tombstones: those pass, in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from millstream.processor.columns import NULL_SIZE, Bools, Index, Slices
from millstream.processor.interfaces import ValueCodec
from millstream.processor.stages.batch import Batch, Failure, Identity
from millstream.processor.stages.calls import WrongAnswerError, refuse_awaitable
from millstream.processor.stages.column_calls import ColumnCaller, Columns, Piece
from millstream.processor.stages.encoding import Encoder
from millstream.processor.stages.flow import Flow, Stored
from millstream.processor.stages.layouts import Answer, Layout, Opened

__all__ = ["Columns", "ColumnsStage", "FilterColumnsStage", "checked_mask"]


@dataclass(frozen=True, slots=True)
class Given:
    """The values of a flow that a column function can be asked about, at `places` of the flow.

    `rows` are their rows in `opened`; `null` tells where the flow has tombstones.
    """

    flow: Flow
    null: Bools
    places: Index
    opened: Opened
    rows: Index
    columns: Columns


def open_columns(flow: Flow, encoder: Encoder, layout: Layout, identity: Identity, batch: Batch) -> Given:
    """The flow's values as columns; those that cannot be read are failures of the stage."""
    if not encoder.as_they_are(flow):
        flow = flow.decoded(batch)
    encoded = encoder.encode(flow)
    null_mask = flow.null_mask()
    null: Bools = np.zeros(len(flow), np.bool_) if null_mask is None else null_mask
    failed = dict(encoded.errors)
    readable = ~null
    readable[np.fromiter(failed, np.int64, len(failed))] = False
    whole = bool(readable.all())
    places = np.flatnonzero(readable)
    opened = layout.open(encoded.values if whole else encoded.values.take(places))
    failed |= {int(places[row]): error for row, error in opened.errors.items()}
    for place in sorted(failed):
        batch.fail(Failure(identity, int(flow.rows[place]), failed[place], 1))
    rows = np.arange(len(places))
    columns = _columns(flow, encoded.values, places, opened, batch)
    if opened.errors:
        rows = np.delete(rows, np.fromiter(opened.errors, np.int64, len(opened.errors)))
        columns = columns.take(rows)
    return Given(flow, null, places[rows], opened, rows, columns)


def _columns(flow: Flow, values: Slices, places: Index, opened: Opened, batch: Batch) -> Columns:
    whole = len(places) == len(flow)
    input_rows = flow.rows if whole else flow.rows[places]
    records = batch.records
    return Columns(
        opened.fields,
        opened.valid,
        values if whole else values.take(places),
        batch.of_rows(records.key, input_rows),
        records.timestamp[input_rows],
        batch.partitions(input_rows),
        records.offset[input_rows],
    )


@dataclass(frozen=True, slots=True)
class ColumnsStage:
    """Puts what the function answers into the values; all else in them stays as it is, byte for byte.

    `encoder` makes bytes of values that an earlier stage has changed; `codec` is that of the values that come out.
    """

    caller: ColumnCaller[Answer]
    layout: Layout
    encoder: Encoder
    codec: ValueCodec

    async def run(self, flow: Flow, batch: Batch) -> tuple[Flow]:
        """One flow of the new bytes."""
        given = open_columns(flow, self.encoder, self.layout, self.caller.identity, batch)
        pieces: list[Piece[Answer]] = []
        if len(given.columns):
            pieces, _ = await self.caller.call(given.columns, batch, given.flow.rows[given.places])
        return (write_back(given, pieces, self.layout, self.codec, self.caller.identity, batch),)


def write_back(
    given: Given, pieces: Sequence[Piece[Answer]], layout: Layout, codec: ValueCodec, identity: Identity, batch: Batch
) -> Flow:
    """What the pieces answer put into the values; tombstones stay, and rows without an answer are gone."""
    flow = given.flow
    alive = given.null.copy()
    parts: list[Slices] = []
    places: list[Index] = []
    for piece in pieces:
        at = given.places[piece.rows]
        written = layout.write(given.opened, given.rows[piece.rows], piece.answer)
        alive[at] = True
        for row in sorted(written.errors):
            alive[at[row]] = False
            batch.fail(Failure(identity, int(flow.rows[at[row]]), written.errors[row], 1))
        parts.append(written.values)
        places.append(at)
    values = _in_place(parts, places, len(flow))
    rows = flow.rows
    if not alive.all():
        values, rows = values.take(alive), rows[alive]
    stored = Stored(values, rows, codec, identity)
    return Flow(rows, stored, stored.order)


def _in_place(parts: Sequence[Slices], places: Sequence[Index], count: int) -> Slices:
    """The parts' rows at their places, null everywhere else."""
    if len(parts) == 1 and len(parts[0]) == count:
        return parts[0]
    start, size = np.zeros(count, np.int32), np.full(count, NULL_SIZE, np.int32)
    if not parts:
        return Slices(np.empty(0, np.uint8), start, size)
    values, at = Slices.concatenated(parts), np.concatenate(places)
    start[at], size[at] = values.start, values.size
    return Slices(values.buffer, start, size)


@dataclass(frozen=True, slots=True)
class FilterColumnsStage:
    """Lets through the values for which the function's array is true; they stay as they are."""

    caller: ColumnCaller[Bools]
    layout: Layout
    encoder: Encoder

    async def run(self, flow: Flow, batch: Batch) -> tuple[Flow]:
        """One flow of what is let through."""
        given = open_columns(flow, self.encoder, self.layout, self.caller.identity, batch)
        kept = given.null.copy()
        if len(given.columns):
            pieces: list[Piece[Bools]]
            pieces, _ = await self.caller.call(given.columns, batch, given.flow.rows[given.places])
            for piece in pieces:
                kept[given.places[piece.rows]] = piece.answer
        return (given.flow.kept(kept),)


def checked_mask(answer: Any, count: int) -> Bools:
    """A filter's answer. Raises WrongAnswerError for anything but `count` bools."""
    refuse_awaitable(answer)
    mask = np.asarray(answer)
    if mask.dtype != np.bool_ or mask.shape != (count,):
        raise WrongAnswerError(
            f"filter_columns needs an array of {count} bools; the function answered {mask.dtype} of shape {mask.shape}"
        )
    return mask
