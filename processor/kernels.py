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


def borrowing_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """As `kernel`, for a function that creates and returns no arrays (the compiler refuses one that does).

    Its arrays are borrowed from the caller, whose arguments keep them alive, and no references are counted. It matters
    where kernels call each other in a loop: numba counts around each call, with two atomic operations for each array,
    which cost a JSON scanner six times its work.
    """
    return cast("Callable[P, R]", numba.njit(cache=True, nogil=True, _nrt=False)(function))


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """A part of borrowing kernels that is compiled into each of them, for what runs once for each byte or token.

    Left to itself the compiler calls what has several callers. Inlining everywhere makes compilation longer and, for
    rare cases, nothing faster: those are better a `borrowing_kernel` of their own.
    """
    return cast("Callable[P, R]", numba.njit(nogil=True, _nrt=False, forceinline=True)(function))
