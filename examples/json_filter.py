"""Keeps the payments above 100 that come from two countries: a stage that belongs on the CPU.

    millstream run examples/json_filter.py

The fields are read out of the JSON by a compiled scanner, and what is left costs a few nanoseconds an event. A GPU
can never be quicker: the CPU has to touch every byte to send it, and is done when it has. The stage is marked all the
same, to see the planner say so (`millstream explain examples/json_filter.py`). From arithmetic: no GPU has measured
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from cuda_launch import empty_beside, stream_of

from millstream.processor import ArrayColumns, Columns, Offloadable, Pipeline

ABOVE = 100.0
_F, _R, _D, _E = b"FRDE"
_THREADS = 128


def wanted(columns: ArrayColumns) -> dict[str, Any]:
    """The form for the CPU, on all cores."""
    country = columns["country"]
    return {"wanted": _wanted(columns["amount"], country.offsets, country.data)}


@numba.njit(parallel=True, cache=True, nogil=True)
def _wanted(
    amount: npt.NDArray[np.float64], offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]
) -> npt.NDArray[np.bool_]:
    answers = np.zeros(len(amount), np.bool_)
    for row in numba.prange(len(amount)):
        start = offsets[row]
        if amount[row] > ABOVE and offsets[row + 1] - start == 2:
            first, second = data[start], data[start + 1]
            answers[row] = (first == _F and second == _R) or (first == _D and second == _E)
    return answers


def _wanted_row(amount: Any, offsets: Any, data: Any, answers: Any) -> None:
    """The kernel: a thread for each row."""
    row = cuda.grid(1)
    if row < answers.shape[0]:
        start = offsets[row]
        is_wanted = False
        if amount[row] > ABOVE and offsets[row + 1] - start == 2:
            first, second = data[start], data[start + 1]
            is_wanted = (first == _F and second == _R) or (first == _D and second == _E)
        answers[row] = is_wanted


def wanted_on_gpu() -> Callable[[ArrayColumns], dict[str, Any]]:
    """The form for a GPU; the kernel is compiled when it is first used."""
    # Imported where a device is, and as a global: among these alone numba's simulator looks for it.
    global cuda
    from numba import cuda

    kernel = cuda.jit(_wanted_row)

    def function(columns: ArrayColumns) -> dict[str, Any]:
        amount, country = columns["amount"], columns["country"]
        answers = empty_beside(amount, columns.rows, np.bool_)
        blocks = (columns.rows + _THREADS - 1) // _THREADS
        kernel[blocks, _THREADS, stream_of(amount)](amount, country.offsets, country.data, answers)
        return {"wanted": answers}

    return function


def keep(columns: Columns) -> npt.NDArray[np.bool_]:
    """What the stage has marked."""
    marked: npt.NDArray[np.bool_] = columns["wanted"]
    return marked


FILTER = Offloadable(cpu=wanted, gpu=wanted_on_gpu, version="1")

pipeline = Pipeline("json-filter")
(
    pipeline.read("payments", dict)
    .offload(FILTER, reads={"amount": float, "country": str}, adds={"wanted": bool}, latency_budget_ms=10)
    .filter_columns(keep, reads={"wanted": bool})
    .write("wanted-payments")
)
