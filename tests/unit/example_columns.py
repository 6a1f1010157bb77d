"""Rows for the examples' stages, and what plain NumPy makes of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
from documents import ROOT

from millstream.processor import ArrayColumns, Text

EXAMPLES = ("fraud_model", "decision_tree", "fft_windows", "similarity_search", "json_filter")


def example(name: str) -> ModuleType:
    """An example's module, found as `millstream run` finds it: from its own directory."""
    directory = str(ROOT / "examples")
    if directory not in sys.path:
        sys.path.append(directory)
    return importlib.import_module(name)


def payments(rows: int, seed: int) -> ArrayColumns:
    features = np.random.default_rng(seed).standard_normal((rows, 128)).astype(np.float32)
    return ArrayColumns({"features": features}, {}, rows)


def readings(rows: int, seed: int) -> ArrayColumns:
    """With NaN, infinities and zeros of both signs among them."""
    random = np.random.default_rng(seed)
    values = random.standard_normal((rows, 24)).astype(np.float32)
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    chosen = random.random(values.shape) < 0.1
    values[chosen] = random.choice(odd, int(chosen.sum()))
    return ArrayColumns({"values": values}, {}, rows)


def windows(rows: int, seed: int) -> ArrayColumns:
    """Noise and hums; the first has no energy at all."""
    random = np.random.default_rng(seed)
    at = np.arange(1024)
    hums = np.sin(2 * np.pi * at * random.integers(1, 512, (rows, 1)) / 1024)
    points = (hums + random.standard_normal((rows, 1024)) * random.random((rows, 1))).astype(np.float32)
    points[0] = 0.0
    return ArrayColumns({"points": points}, {}, rows)


def queries(rows: int, seed: int) -> ArrayColumns:
    vector = np.random.default_rng(seed).integers(-127, 128, (rows, 128), dtype=np.int8)
    return ArrayColumns({"vector": vector}, {}, rows)


def json_payments(rows: int, seed: int) -> ArrayColumns:
    """Countries of no, two and more letters; amounts at the border, and none that is a number."""
    random = np.random.default_rng(seed)
    amount = random.choice(np.array([99.0, 100.0, 100.5, 1e9, np.nan, -1.0]), rows)
    words = [str(word).encode() for word in random.choice(["FR", "DE", "", "F", "FRA", "ED", "US", "fr"], rows)]
    offsets = np.cumsum([0, *map(len, words)]).astype(np.int32)
    # The simulator writes all of a kernel's arrays back, so they have to be writable.
    text = Text(offsets, np.frombuffer(b"".join(words), np.uint8).copy())
    return ArrayColumns({"amount": amount, "country": text}, {}, rows)


def plain_scores(columns: ArrayColumns, weights: Mapping[str, Any]) -> dict[str, Any]:
    hidden = columns["features"].astype(np.float64)
    for number in ("1", "2"):
        hidden = np.maximum(hidden @ weights[f"w{number}"].astype(np.float64) + weights[f"b{number}"], 0)
    return {"score": (1 / (1 + np.exp(-(hidden @ weights["w3"]).ravel()))).astype(np.float32)}


def plain_walk(columns: ArrayColumns, nodes: Mapping[str, Any]) -> dict[str, Any]:
    answers = []
    for row in columns["values"]:
        node = 0
        while (feature := nodes["feature"][node]) != -1:
            node = nodes["left"][node] + (not row[feature] < nodes["threshold"][node])
        answers.append(nodes["threshold"][node])
    return {"answer": np.array(answers, np.float32)}


def plain_share(columns: ArrayColumns) -> dict[str, Any]:
    power = np.abs(np.fft.rfft(columns["points"].astype(np.float64))) ** 2
    total = power[:, 1:].sum(axis=1)
    share = np.divide(power[:, 128:].sum(axis=1), total, out=np.zeros(len(total)), where=total > 0)
    return {"high_share": share.astype(np.float32)}


def plain_nearest(columns: ArrayColumns, held: Mapping[str, Any]) -> dict[str, Any]:
    products = columns["vector"].astype(np.int32) @ held["vectors"].astype(np.int32).T
    return {"nearest": products.argmax(axis=1).astype(np.int32), "product": products.max(axis=1).astype(np.int32)}


def plain_wanted(columns: ArrayColumns) -> dict[str, Any]:
    text = columns["country"]
    words = [text.data[start:stop].tobytes() for start, stop in zip(text.offsets, text.offsets[1:], strict=False)]
    pairs = zip(columns["amount"], words, strict=True)
    return {"wanted": np.array([bool(amount > 100 and word in (b"FR", b"DE")) for amount, word in pairs])}
