"""Functions for a device's process, which loads them from here by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from millstream.processor.offloading import ArrayColumns, ColumnSchema, Equality, Offloadable, StageDefinition


def total(xp: Any, columns: ArrayColumns) -> Mapping[str, Any]:
    return {"total": columns["price"] * xp.astype(columns["count"], xp.float64) + 1.0}


def lengths(xp: Any, columns: ArrayColumns) -> Mapping[str, Any]:
    text = columns["text"]
    sizes = text.offsets[1:] - text.offsets[:-1]
    return {"length": xp.where(columns.valid("text"), sizes, -1)}


def scaled(xp: Any, columns: ArrayColumns, resident: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"scaled": columns["price"] * resident["factor"]}


def factors() -> Mapping[str, Any]:
    return {"factor": np.array([3.0])}


def picky(xp: Any, columns: ArrayColumns) -> Mapping[str, Any]:
    if not bool(xp.all(columns["price"] >= 1000)):
        raise ValueError("a price below 1000")
    return {"total": columns["price"] * 2}


PRICE = ColumnSchema("price", np.dtype(np.float64))
COUNT = ColumnSchema("count", np.dtype(np.int64))
TEXT = ColumnSchema("text", np.dtype(np.uint8), is_text=True, is_optional=True)


def stage(function: Any, reads: list[ColumnSchema], adds: list[ColumnSchema], **more: Any) -> StageDefinition:
    equality = more.pop("equality", Equality())
    offloadable = Offloadable(array=function, resident=more.pop("resident", None), equality=equality)
    return StageDefinition(function.__name__, offloadable, reads, adds, more.pop("latency_budget_ms", 10.0), **more)


TOTAL = stage(total, [PRICE, COUNT], [ColumnSchema("total", np.dtype(np.float64))])
LENGTHS = stage(lengths, [TEXT], [ColumnSchema("length", np.dtype(np.int32))])
SCALED = stage(scaled, [PRICE], [ColumnSchema("scaled", np.dtype(np.float64))], resident=factors)
PICKY = stage(picky, [PRICE], [ColumnSchema("total", np.dtype(np.float64))])
