"""Made-up rows that look as a stage's schema says, to warm a device up and to see that its answers are right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millstream.processor.offloading import ArrayColumns, ColumnSchema, Equality, StageDefinition, Text

CANARY_TEXT_BYTES_MAX: Final = 24
_VALUES: Final = 100
_LETTERS: Final = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789", np.uint8)


def made_up_rows(stage: StageDefinition, rows: int, seed: int) -> ArrayColumns:
    """Rows that the stage could read: small numbers, short texts of plain letters, a fifth of optional ones empty."""
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    masks: dict[str, npt.NDArray[np.bool_]] = {}
    for column in stage.reads:
        valid = None
        if column.is_optional:
            valid = masks[column.name] = random.random(rows) < 0.8
        columns[column.name] = _texts(random, rows, valid) if column.is_text else _values(random, column, rows, valid)
    return ArrayColumns(columns, masks, rows)


def plain_rows(stage: StageDefinition, rows: int) -> ArrayColumns:
    """Rows that are all zeros and empty texts, for functions that do not take the others."""
    columns: dict[str, Any] = {
        column.name: Text(np.zeros(rows + 1, np.int32), np.empty(0, np.uint8))
        if column.is_text
        else np.zeros((rows, *column.shape), column.dtype)
        for column in stage.reads
    }
    masks = {column.name: np.zeros(rows, np.bool_) for column in stage.reads if column.is_optional}
    return ArrayColumns(columns, masks, rows)


def difference(
    stage: StageDefinition, expected: Mapping[str, Any], found: Mapping[str, npt.NDArray[Any]], equality: Equality
) -> str | None:
    """Where `found` may not stand for `expected`: the first column, and in how many rows. None where it may."""
    for column in stage.adds:
        # As the stage writes it: the reference may answer a wider type than is declared.
        reference = np.asarray(expected[column.name]).astype(column.dtype, copy=False)
        answer = found[column.name]
        if not equality.holds(reference, answer):
            return f"column {column.name!r} differs in {_rows_that_differ(reference, answer, equality)} rows"
    return None


def _rows_that_differ(expected: npt.NDArray[Any], found: npt.NDArray[Any], equality: Equality) -> str:
    if expected.shape != found.shape:
        return "all"
    differing = sum(not equality.holds(expected[row : row + 1], found[row : row + 1]) for row in range(len(expected)))
    return f"{differing} of {len(expected)}"


def _values(
    random: np.random.Generator, column: ColumnSchema, rows: int, valid: npt.NDArray[np.bool_] | None
) -> npt.NDArray[Any]:
    shape = (rows, *column.shape)
    if column.dtype.kind == "f":
        values = (random.random(shape) * _VALUES).astype(column.dtype)
    else:
        values = random.integers(0, 2 if column.dtype.kind == "b" else _VALUES, shape).astype(column.dtype)
    if valid is not None:
        values[~valid] = 0
    return values


def _texts(random: np.random.Generator, rows: int, valid: npt.NDArray[np.bool_] | None) -> Text:
    lengths = random.integers(0, CANARY_TEXT_BYTES_MAX + 1, rows)
    if valid is not None:
        lengths[~valid] = 0
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return Text(offsets, random.choice(_LETTERS, int(offsets[-1])))
