"""Functions of offload stages that several tests use; a device's process finds them here by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from millstream.processor import ArrayColumns


def fee(columns: ArrayColumns) -> dict[str, Any]:
    return {"fee": columns["amount"] * 0.5}


def fee_array(xp: Any, columns: ArrayColumns) -> dict[str, Any]:
    return {"fee": columns["amount"] * xp.asarray(0.5)}


def weights() -> dict[str, Any]:
    return {"weights": np.array([2.0])}


def weighted(columns: ArrayColumns, resident: Mapping[str, Any]) -> dict[str, Any]:
    return {"fee": columns["amount"] * resident["weights"][0]}


def ranked(columns: ArrayColumns) -> dict[str, Any]:
    """Not row by row: what a row gets depends on the others."""
    return {"fee": np.argsort(np.argsort(columns["amount"])).astype(np.float64)}


def text_sizes(columns: ArrayColumns) -> dict[str, Any]:
    return {"size": np.diff(columns["user"].offsets).astype(np.int64)}


async def later(columns: ArrayColumns) -> dict[str, Any]:
    return {"fee": columns["amount"]}
