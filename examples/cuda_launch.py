"""What a numba kernel needs to work on CuPy's arrays. Under numba's simulator of CUDA the arrays are NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np


def empty_beside(array: Any, rows: int, dtype: Any) -> Any:
    """An array of so many rows on the device of the other one."""
    if isinstance(array, np.ndarray):
        return np.empty(rows, dtype)
    import cupy

    return cupy.empty(rows, dtype)


def stream_of(array: Any) -> Any:
    """The stream that the array is being made on. On another one a kernel could begin before its input is there."""
    if isinstance(array, np.ndarray):
        return 0
    import cupy
    from numba import cuda

    return cuda.external_stream(cupy.cuda.get_current_stream().ptr)
