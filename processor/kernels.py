"""How compiled functions are declared.

One decorator, so that every kernel is cached on disk, releases the interpreter, and keeps its Python types
for the type checker. Kernels take and return NumPy arrays and numbers only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` with numba on its first call; later processes load it from the cache."""
    return cast("Callable[P, R]", numba.njit(cache=True, nogil=True)(function))
