"""Faults of a simulated device, switched on and off from outside by a file, while its process runs.

The file holds one fault as JSON. It is looked at before each run. A fault for a number of batches is over, and its file
gone, with the last of them, so that a process that is started anew in the place of a killed one is well.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

import msgspec


class FaultKind(Enum):
    """What goes wrong: the process is killed in the middle of a batch; a run never ends; it takes `factor` as long; its
    answer is wrong; it needs more memory than there is, with more than `rows` rows; the device is lost."""

    KILLED = "killed"
    HANG = "hang"
    SLOW = "slow"
    WRONG = "wrong"
    OUT_OF_MEMORY = "out-of-memory"
    STICKY = "sticky"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong with the next `batches` runs; with all where that is None."""

    kind: FaultKind
    batches: int | None = None
    factor: float = 10.0
    rows: int = 0


def write_fault(path: Path, fault: Fault | None) -> None:
    """From the next run on the devices that look at `path` have this fault; None: they are well again."""
    if fault is None:
        path.unlink(missing_ok=True)
        return
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_bytes(msgspec.json.encode(fault))
    new.replace(path)


class FaultFile:
    """The file as the device's process reads it; without a path there is never a fault."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._version: tuple[int, int] | None = None
        self._fault: Fault | None = None
        self._left: int | None = None

    def next(self) -> Fault | None:
        """The fault of the run that begins now. Raises OSError or msgspec.DecodeError for a file that is none."""
        if self._path is None:
            return None
        try:
            stat = self._path.stat()
            if self._version != (version := (stat.st_ino, stat.st_mtime_ns)):
                self._fault = msgspec.json.decode(self._path.read_bytes(), type=Fault)
                self._version, self._left = version, self._fault.batches
        except FileNotFoundError:
            self._version = self._fault = None
            return None
        return self._taken(self._path)

    def _taken(self, path: Path) -> Fault | None:
        if self._left is not None:
            if self._left <= 1:
                path.unlink(missing_ok=True)
            if self._left <= 0:
                return None
            self._left -= 1
        return self._fault
