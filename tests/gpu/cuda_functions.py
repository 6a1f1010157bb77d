"""Functions that put a real device into trouble; a device's process loads them from here by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millstream.processor.offloading import ArrayColumns

GREEDY_ROWS = 1000
ILLEGAL_PRICE = -1.0


def doubled(columns: ArrayColumns) -> Mapping[str, Any]:
    return {"total": columns["price"] * 2}


def greedy(xp: Any, columns: ArrayColumns) -> Mapping[str, Any]:
    """Wants more memory than any device has for more than so many rows."""
    if columns.rows > GREEDY_ROWS and xp.__name__ != "numpy":
        xp.empty(1 << 50, dtype=xp.uint8)
    return {"total": columns["price"] * 2}


def illegal() -> Callable[[ArrayColumns], Mapping[str, Any]]:
    """Writes to an address that is nobody's where the first price is ILLEGAL_PRICE."""
    import cupy

    kernel = cupy.RawKernel(
        r"""extern "C" __global__ void run(const double* price, double* total, long long rows) {
            long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
            if (i >= rows) return;
            double* place = price[0] == -1.0 ? (double*)(0x10 + i) : total + i;
            *place = price[i] * 2;
        }""",
        "run",
        options=("--fmad=false",),
    )

    def function(columns: ArrayColumns) -> Mapping[str, Any]:
        total = cupy.empty(columns.rows, cupy.float64)
        kernel(((columns.rows + 255) // 256 or 1,), (256,), (columns["price"], total, cupy.int64(columns.rows)))
        return {"total": total}

    return function


def endless() -> Callable[[ArrayColumns], Mapping[str, Any]]:
    """Never comes back where the first price is ILLEGAL_PRICE."""
    import cupy

    kernel = cupy.RawKernel(
        r"""extern "C" __global__ void spin(const double* price, volatile double* total, long long rows) {
            while (price[0] == -1.0 && total[0] != 1e300) { total[0] = 1.0; }
            long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
            if (i < rows) total[i] = price[i] * 2;
        }""",
        "spin",
    )

    def function(columns: ArrayColumns) -> Mapping[str, Any]:
        total = cupy.zeros(columns.rows, cupy.float64)
        kernel(((columns.rows + 255) // 256 or 1,), (256,), (columns["price"], total, cupy.int64(columns.rows)))
        return {"total": total}

    return function
