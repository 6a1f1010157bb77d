"""What this process uses of the machine, cheaply enough to be asked several times a second."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Final

from millstream.processor.measures import ProcessUse

_STATM: Final = Path("/proc/self/statm")


def process_use() -> ProcessUse:
    """CPU time and resident memory of this process; where the system does not tell the latter, its highest ever."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return ProcessUse(used.ru_utime + used.ru_stime, _resident_bytes(used.ru_maxrss))


def _resident_bytes(peak: int) -> int:
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return peak if sys.platform == "darwin" else peak * 1024
