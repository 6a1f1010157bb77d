"""Keeping freed memory, for processes that allocate megabytes many times a second.

glibc hands large blocks back to the kernel as soon as they are freed and gets new ones with every page unmapped; at a
hundred megabytes a second that is a page fault for every 4 KiB of input and of output.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 64 * 1024 * 1024


def tune_allocator() -> None:
    """Have freed blocks of up to 64 MiB stay with this process. Does nothing where the C library is not glibc."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
