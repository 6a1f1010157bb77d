"""Looks for machines that hum: the share of high frequencies in windows of 1,024 points.

    millstream run examples/fft_windows.py

A real FFT of 1,024 points is about 25,000 floating-point operations over 4 KB: 5 to 10 us on one core. A GPU with a
fixed cost of 100 us is expected to be quicker from 100 to 150 windows in a batch. At 4 KB an event the bus is used as
well: 50K windows/s are 200 MB/s. Expected, from arithmetic: no GPU has measured it.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from millstream.processor import ArrayColumns, Equality, Offloadable, Pipeline

POINTS = 1024
HIGH_FROM = POINTS // 8
WINDOW = np.dtype([("machine", "<u8"), ("points", "<f4", (POINTS,))])
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_ROWS_EACH = 64


def high_share(xp: Any, columns: ArrayColumns) -> dict[str, Any]:
    """The form for every device. A window without any energy has a share of 0."""
    return {"high_share": _share(xp, columns["points"])}


def high_share_on_cores(columns: ArrayColumns) -> dict[str, Any]:
    """The form for the CPU: NumPy's FFT uses one core and lets others run, so each has its part of the rows."""
    points = columns["points"]
    if _CORES == 1 or len(points) <= _ROWS_EACH:
        return {"high_share": _share(np, points)}
    parts = np.array_split(points, min(_CORES, -(-len(points) // _ROWS_EACH)))
    with ThreadPoolExecutor(len(parts)) as threads:
        return {"high_share": np.concatenate(list(threads.map(lambda part: _share(np, part), parts)))}


def _share(xp: Any, points: Any) -> npt.NDArray[np.float32]:
    spectrum = xp.fft.rfft(points, axis=-1)
    power = xp.real(spectrum) ** 2 + xp.imag(spectrum) ** 2
    power = xp.astype(power, xp.float32)
    # The first is the mean, which says nothing of a hum.
    total = xp.sum(power[:, 1:], axis=-1)
    high = xp.sum(power[:, HIGH_FROM:], axis=-1)
    empty = total <= 0.0
    return xp.where(empty, xp.zeros_like(total), high / xp.where(empty, xp.ones_like(total), total))


# Sums of floats: the order differs between devices.
SPECTRUM = Offloadable(
    cpu=high_share_on_cores, array=high_share, version="1", equality=Equality(relative=1e-3, absolute=1e-5)
)

pipeline = Pipeline("fft-windows")
(
    pipeline.read("windows", WINDOW)
    .offload(SPECTRUM, adds={"high_share": np.float32}, reads={"points": WINDOW["points"]}, latency_budget_ms=20)
    .write("judged-windows")
)
