"""Sends readings down a decision tree of 500,000 nodes.

    millstream run examples/decision_tree.py

About twenty loads for each event, each of which has to wait for the one before. The tree (8 MB) fits into a CPU's
cache and eight cores walk it at about 25 events a microsecond; a GPU with a fixed cost of 100 us is expected to be
quicker from about 3,000 events in a batch. So: the CPU at the batches of a stream, a GPU for a backlog. Expected,
from arithmetic: no GPU has measured it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from cuda_launch import empty_beside, stream_of

from millstream.processor import ArrayColumns, Offloadable, Pipeline

FEATURES = 24
NODES = 500_001
_THREADS = 128
READING = np.dtype([("sensor", "<u8"), ("values", "<f4", (FEATURES,))])


def tree(nodes: int = NODES) -> dict[str, npt.NDArray[Any]]:
    """A tree as arrays by node: the feature (-1 in a leaf), the threshold (in a leaf the answer), and the left child.

    The right child is the one after the left. A real program would read it from a file; this one is drawn, always the
    same, each time by splitting one of the oldest leaves, so that some paths are twice as long as others.
    """
    random = np.random.default_rng(21)
    feature = np.full(nodes, -1, np.int16)
    threshold = random.standard_normal(nodes).astype(np.float32)
    left = np.zeros(nodes, np.int32)
    leaves = [0]
    for child in range(1, nodes - 1, 2):
        place = int(random.integers(max(1, len(leaves) // 2)))
        node = leaves[place]
        leaves[place] = leaves[-1]
        leaves[-1] = child
        leaves.append(child + 1)
        feature[node] = random.integers(FEATURES)
        left[node] = child
    return {"feature": feature, "threshold": threshold, "left": left}


def walk(columns: ArrayColumns, nodes: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """The form for the CPU, on all cores."""
    return {"answer": _walk(columns["values"], nodes["feature"], nodes["threshold"], nodes["left"])}


@numba.njit(parallel=True, cache=True, nogil=True)
def _walk(
    values: npt.NDArray[np.float32],
    feature: npt.NDArray[np.int16],
    threshold: npt.NDArray[np.float32],
    left: npt.NDArray[np.int32],
) -> npt.NDArray[np.float32]:
    answers = np.empty(len(values), np.float32)
    for row in numba.prange(len(values)):
        node = 0
        while feature[node] >= 0:
            # What is not below a threshold goes right, and so does NaN.
            node = left[node] + (0 if values[row, feature[node]] < threshold[node] else 1)
        answers[row] = threshold[node]
    return answers


def _walk_row(values: Any, feature: Any, threshold: Any, left: Any, answers: Any) -> None:
    """The kernel: a thread for each row."""
    row = cuda.grid(1)
    if row < answers.shape[0]:
        node = 0
        while feature[node] >= 0:
            node = left[node] + (0 if values[row, feature[node]] < threshold[node] else 1)
        answers[row] = threshold[node]


def walk_on_gpu(nodes: Mapping[str, Any]) -> Callable[[ArrayColumns], dict[str, Any]]:
    """The form for a GPU; the kernel is compiled when it is first used."""
    # Imported where a device is, and as a global: among these alone numba's simulator looks for it.
    global cuda
    from numba import cuda

    kernel = cuda.jit(_walk_row)

    def function(columns: ArrayColumns) -> dict[str, Any]:
        values = columns["values"]
        answers = empty_beside(values, columns.rows, np.float32)
        blocks = (columns.rows + _THREADS - 1) // _THREADS
        launch = kernel[blocks, _THREADS, stream_of(values)]
        launch(values, nodes["feature"], nodes["threshold"], nodes["left"], answers)
        return {"answer": answers}

    return function


# Comparisons and a look-up: every device gives the same bits.
TREE = Offloadable(cpu=walk, gpu=walk_on_gpu, resident=tree, version="1")

pipeline = Pipeline("decision-tree")
(
    pipeline.read("readings", READING)
    .offload(TREE, adds={"answer": np.float32}, reads={"values": READING["values"]}, latency_budget_ms=10)
    .write("judged-readings")
)
