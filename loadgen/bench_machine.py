"""The machine that figures come from, and whether it was disturbed while they were taken."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Self

_STEAL = 7
_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Machine:
    """What a reader must know to compare."""

    cores: int
    cpu_model: str
    system: str
    python: str
    confluent_kafka: str

    @classmethod
    def here(cls) -> Self:
        """This machine."""
        return cls(
            cores=_cores(),
            cpu_model=_cpu_model(),
            system=f"{platform.system()} {platform.release()}",
            python=platform.python_version(),
            confluent_kafka=version("confluent-kafka"),
        )

    def as_json(self) -> dict[str, object]:
        """One flat object."""
        return {
            "cores": self.cores,
            "cpu_model": self.cpu_model,
            "system": self.system,
            "python": self.python,
            "confluent_kafka": self.confluent_kafka,
        }


@dataclass(frozen=True, slots=True)
class Strain:
    """What else the machine did: its load before, and the time that its host has taken away so far."""

    load_average: float
    stolen: int
    total: int

    @classmethod
    def now(cls) -> Self:
        """Since the start of the machine; zeros where the system does not tell (not Linux)."""
        load = os.getloadavg()[0]
        try:
            ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        except OSError:
            return cls(load, 0, 0)
        return cls(load, ticks[_STEAL], sum(ticks[: _STEAL + 1]))

    def until_now(self) -> dict[str, object]:
        """What has happened since: a share of stolen time means that a virtual machine had to wait for its host."""
        now = self.now()
        total = now.total - self.total
        stolen_percent = _PERCENT * (now.stolen - self.stolen) / total if total else 0.0
        return {"load_average_before": round(self.load_average, 2), "stolen_percent": round(stolen_percent, 1)}


def _cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
