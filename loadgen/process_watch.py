"""What processes use while something runs: CPU time, memory, and whether memory grows. Needs Linux's /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from millstream.processor.errors import UnavailableError

# Memory rises while buffers and caches fill; what it does after that is the slope.
_SETTLED_FROM = 0.25
_SLOPE_S_MIN = 60.0
_S_PER_MINUTE = 60.0
_MB = 1e6
# Behind the name in brackets, which may hold anything; `man 5 proc` counts from 1, and these come at 14 and 15.
_USER_TICKS, _SYSTEM_TICKS = 11, 12


@dataclass(frozen=True, slots=True)
class Use:
    """What one process used while it was watched. `slope_mb_per_minute` is None where that was too short to tell."""

    cpu_percent: float
    mb_at_first: float
    mb_at_last: float
    slope_mb_per_minute: float | None

    def as_json(self) -> dict[str, object]:
        """One object; percent are of one core."""
        slope = self.slope_mb_per_minute
        return {
            "cpu_percent": round(self.cpu_percent, 1),
            "mb_at_first": round(self.mb_at_first, 1),
            "mb_at_last": round(self.mb_at_last, 1),
            "slope_mb_per_minute": None if slope is None else round(slope, 3),
        }


class ProcessWatch:
    """Looks at some processes each time that it is told to; a name may stand for several, which are added up."""

    def __init__(self, processes: Mapping[str, Sequence[int]]) -> None:
        self._processes = processes
        self._seconds: list[float] = []
        self._cpu_s: dict[str, list[float]] = {name: [] for name in processes}
        self._mb: dict[str, list[float]] = {name: [] for name in processes}

    def look(self) -> None:
        """Take one sample of each. Raises UnavailableError where a process is gone."""
        megabytes = {name: [resident_mb(pid) for pid in pids] for name, pids in self._processes.items()}
        if not all(map(all, megabytes.values())):
            # One of them has ended and waits to be reaped: it has no memory any more.
            return
        self._seconds.append(time.monotonic())
        for name, pids in self._processes.items():
            self._cpu_s[name].append(sum(map(cpu_s, pids)))
            self._mb[name].append(sum(megabytes[name]))

    def uses(self) -> dict[str, Use]:
        """What each used between the first look and the last; nothing before there were two."""
        if len(self._seconds) < 2:
            return {}
        seconds = self._seconds[-1] - self._seconds[0]
        return {
            name: Use(
                cpu_percent=100 * (self._cpu_s[name][-1] - self._cpu_s[name][0]) / seconds,
                mb_at_first=self._mb[name][0],
                mb_at_last=self._mb[name][-1],
                slope_mb_per_minute=slope_per_minute(self._seconds, self._mb[name]),
            )
            for name in self._processes
        }


def slope_per_minute(seconds: Sequence[float], values: Sequence[float]) -> float | None:
    """How values grow after they have settled; None where less than a minute of that was seen."""
    first = int(len(seconds) * _SETTLED_FROM)
    if len(seconds) - first < 2 or seconds[-1] - seconds[first] < _SLOPE_S_MIN:
        return None
    return float(np.polyfit(np.array(seconds[first:]) - seconds[first], values[first:], 1)[0]) * _S_PER_MINUTE


def cpu_s(pid: int) -> float:
    """The CPU seconds of a process so far, those of the kernel on its behalf included."""
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """What a process holds in memory now, in millions of bytes."""
    return int(_read(pid, "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MB


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError as error:
        raise UnavailableError(f"process {pid} cannot be watched ({error.strerror}); did it end?") from error
