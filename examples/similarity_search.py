"""Finds what is most alike in an index of 50,000 vectors that stays on the device.

    millstream run examples/similarity_search.py

Every event is compared with all of the index: 12.8 million operations over 6.4 MB that never cross the bus, 1 to 2 ms
on one core. A GPU with a fixed cost of 100 us is expected to be quicker from the first event on. An approximate index
on the CPU (HNSW) may beat both where it is exact enough. Expected, from arithmetic: no GPU has measured it.

The vectors are of whole numbers from -127 to 127, as quantised embeddings are. Their products add up exactly in
float32 (below 2^24) and in any order, so that every device finds the same one; of several alike, the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from millstream.processor import ArrayColumns, Offloadable, Pipeline

VECTORS, WIDTH = 50_000, 128
QUERY = np.dtype([("query", "<u8"), ("vector", "i1", (WIDTH,))])
# So many queries at a time: their products with the whole index have to be held.
_BLOCK = 256


def index(vectors: int = VECTORS) -> dict[str, npt.NDArray[Any]]:
    """The index, int8[vectors, 128]. A real program would read it from a file; this one is drawn, always the same."""
    return {"vectors": np.random.default_rng(22).integers(-127, 128, (vectors, WIDTH), dtype=np.int8)}


def nearest(xp: Any, columns: ArrayColumns, held: Mapping[str, Any]) -> dict[str, Any]:
    """The form for every device, as products of matrices."""
    columns_of_index = xp.astype(held["vectors"], xp.float32).T
    queries = xp.astype(columns["vector"], xp.float32)
    found, products = [], []
    for first in range(0, columns.rows, _BLOCK):
        block = queries[first : min(first + _BLOCK, columns.rows), :] @ columns_of_index
        found.append(xp.argmax(block, axis=1))
        products.append(xp.max(block, axis=1))
    return {
        "nearest": xp.astype(xp.concat(found), xp.int32),
        "product": xp.astype(xp.concat(products), xp.int32),
    }


def nearest_on_cores(columns: ArrayColumns, held: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """The form for the CPU, on all cores: bytes are multiplied as they are, without a copy as floats."""
    found, products = _nearest(columns["vector"], held["vectors"])
    return {"nearest": found, "product": products}


@numba.njit(parallel=True, cache=True, nogil=True)
def _nearest(
    queries: npt.NDArray[np.int8], vectors: npt.NDArray[np.int8]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    found = np.empty(len(queries), np.int32)
    products = np.empty(len(queries), np.int32)
    for row in numba.prange(len(queries)):
        query = queries[row]
        best, place = np.int32(-(2**31)), 0
        for other in range(len(vectors)):
            product = np.int32(0)
            for column in range(WIDTH):
                product += np.int32(query[column]) * np.int32(vectors[other, column])
            if product > best:
                best, place = product, other
        found[row] = place
        products[row] = best
    return found, products


SEARCH = Offloadable(cpu=nearest_on_cores, array=nearest, resident=index, version="1")

pipeline = Pipeline("similarity-search")
(
    pipeline.read("queries", QUERY)
    .offload(
        SEARCH,
        adds={"nearest": np.int32, "product": np.int32},
        reads={"vector": QUERY["vector"]},
        latency_budget_ms=20,
        memory_mb=64,
    )
    .write("found")
)
