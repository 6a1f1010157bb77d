"""The stages that `make gpu-bench` measures: the examples' and some of its own, with rows for them.

The examples are found in the repository that this file is in; the device's process imports them by name as well.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from millstream.processor.errors import SettingsError
from millstream.processor.offloading import ArrayColumns, ColumnSchema, Equality, Offloadable, StageDefinition, Text

EXAMPLES: Final = ("fraud_model", "decision_tree", "fft_windows", "similarity_search", "json_filter")
_WIDE_IN, _WIDE = 256, 2048
_F4: Final = np.dtype(np.float32)


def example_stages() -> dict[str, StageDefinition]:
    """The examples' stages by name. Raises SettingsError where the repository is not there."""
    directory = Path(__file__).resolve().parent.parent / "examples"
    if not directory.is_dir():
        raise SettingsError("gpu-bench", [f"there is no {directory}; run it from a clone of the repository"])
    if str(directory) not in sys.path:
        sys.path.append(str(directory))
    stages = {}
    for name in EXAMPLES:
        (stage,) = importlib.import_module(name).pipeline.build().offloads
        stages[name] = stage.definition
    return stages


def wide_weights() -> dict[str, Any]:
    """Weights of a network of 10 million operations an event."""
    random = np.random.default_rng(23)
    shapes = {"w1": (_WIDE_IN, _WIDE), "w2": (_WIDE, _WIDE), "w3": (_WIDE, 64)}
    return {
        name: (random.standard_normal(shape) * np.sqrt(2.0 / shape[0])).astype(np.float32)
        for name, shape in shapes.items()
    }


def wide_score(xp: Any, columns: ArrayColumns, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Three layers; the answer is the mean of the last."""
    hidden = xp.maximum(columns["features"] @ weights["w1"], 0.0)
    hidden = xp.maximum(hidden @ weights["w2"], 0.0)
    return {"score": xp.mean(hidden @ weights["w3"], axis=1)}


def light(columns: ArrayColumns) -> dict[str, Any]:
    """A stage that no device is worth: one multiplication."""
    return {"doubled": columns["amount"] * 2.0}


def light_array(_xp: Any, columns: ArrayColumns) -> dict[str, Any]:
    """The same for a device."""
    return {"doubled": columns["amount"] * 2.0}


WIDE: Final = StageDefinition(
    "wide_network",
    Offloadable(array=wide_score, resident=wide_weights, equality=Equality(relative=1e-2, absolute=1e-3)),
    [ColumnSchema("features", _F4, (_WIDE_IN,))],
    [ColumnSchema("score", _F4)],
    20.0,
)
LIGHT: Final = StageDefinition(
    "light",
    Offloadable(cpu=light, array=light_array),
    [ColumnSchema("amount", np.dtype(np.float64))],
    [ColumnSchema("doubled", np.dtype(np.float64))],
    10.0,
)


def usual_rows(stage: StageDefinition, rows: int, seed: int) -> ArrayColumns:
    """Rows as a stream would have them: small numbers, short texts."""
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for column in stage.reads:
        shape = (rows, *column.shape)
        if column.is_text:
            columns[column.name] = _texts(random, rows)
        elif column.dtype.kind == "f":
            columns[column.name] = random.standard_normal(shape).astype(column.dtype)
        else:
            columns[column.name] = random.integers(-100, 100, shape).astype(column.dtype)
    masks = {column.name: np.ones(rows, np.bool_) for column in stage.reads if column.is_optional}
    return ArrayColumns(columns, masks, rows)


def adversarial_rows(stage: StageDefinition, rows: int, seed: int) -> ArrayColumns:
    """The same with what devices disagree about: NaN, infinities, zeros of both signs, subnormals, extreme integers."""
    random = np.random.default_rng(seed)
    usual = usual_rows(stage, rows, seed)
    columns: dict[str, Any] = dict(usual)
    for column in stage.reads:
        array = columns[column.name]
        if isinstance(array, Text):
            continue
        odd = _odd_values(column.dtype)
        chosen = random.random(array.shape) < 0.05
        array[chosen] = random.choice(odd, int(chosen.sum()))
    return ArrayColumns(columns, usual.masks, rows)


def _odd_values(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        least = np.finfo(dtype).smallest_subnormal
        return np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, least, -least], dtype)
    if dtype.kind == "b":
        return np.array([False, True])
    limits = np.iinfo(dtype)
    return np.array([limits.min, limits.max, 0], dtype)


def _texts(random: np.random.Generator, rows: int) -> Text:
    words = random.choice(np.array([b"FR", b"DE", b"US", b"", b"FRA"]), rows)
    lengths = np.char.str_len(words)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return Text(offsets, np.frombuffer(b"".join(words.tolist()), np.uint8))
