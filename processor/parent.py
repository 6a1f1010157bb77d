"""The parent of a process, without which it is not to live."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final, NoReturn

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> None:
    """From now on this process is killed when its parent dies, however that happens; exits where that is the past."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the kernel was told. Elsewhere the end of the channel is what ends us.
    if os.getppid() != parent:
        die()


def die() -> NoReturn:
    """End this process at once, without any of its exit handlers."""
    os._exit(1)
