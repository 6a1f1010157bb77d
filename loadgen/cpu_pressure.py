"""Too little CPU: hogs on every core, and a quota for chosen processes. Needs Linux; a quota needs root as well.

    with CpuHogs():                      # as many as there are cores
        ...
    with CpuQuota(cores=0.5) as quota:   # half a core for all of a node's processes together
        quota.hold(process.pid for process in node_processes(agent_pid))

What processes start after they were put under a quota is under it too.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from millstream.loadgen.moments import Moment, Strike
from millstream.processor.errors import UnavailableError

_END_S = 5.0
_PERIOD_US = 100_000
_NAMES = re.compile(r"millstream-(\d+)-\d+")
_NUMBERS = itertools.count()
# A hog whose parent is not the one that started it any more has nobody who could end it. It tells when it runs.
_HOG = """
import os, sys
parent = int(sys.argv[1])
print(flush=True)
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


class CpuHogs:
    """Processes that do nothing but take CPU time, one for each core unless told otherwise. A context manager."""

    def __init__(self, count: int | None = None) -> None:
        self._count = len(os.sched_getaffinity(0)) if count is None else count
        self._hogs: list[subprocess.Popen[bytes]] = []
        self.began: Strike | None = None
        self.ended: Strike | None = None

    def __enter__(self) -> Self:
        ordered = Moment.now()
        try:
            for _ in range(self._count):
                command = [sys.executable, "-S", "-E", "-c", _HOG, str(os.getpid())]
                self._hogs.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))
            for hog in self._hogs:
                assert hog.stdout is not None
                hog.stdout.readline()
        except BaseException:
            self._end()
            raise
        self.began = Strike("cpu hogs", _named(self.pids), ordered, Moment.now())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ordered = Moment.now()
        self._end()
        self.ended = Strike("end of cpu hogs", _named(self.pids), ordered, Moment.now())

    @property
    def pids(self) -> list[int]:
        """The hogs' process ids."""
        return [hog.pid for hog in self._hogs]

    def _end(self) -> None:
        for hog in self._hogs:
            hog.kill()
        for hog in self._hogs:
            hog.wait(_END_S)
            if hog.stdout is not None:
                hog.stdout.close()


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where the kernel takes orders about CPU time: control groups, of the first version or the second."""

    root: Path
    version: int

    @staticmethod
    def found(mounts: str) -> Hierarchy | None:
        """The one among these mounts (as /proc/mounts lists them) that has the CPU controller."""
        second = None
        for line in mounts.splitlines():
            _, root, kind, options, *_ = line.split()
            if kind == "cgroup" and "cpu" in options.split(","):
                return Hierarchy(Path(root), 1)
            if kind == "cgroup2" and "cpu" in _read(Path(root) / "cgroup.controllers").split():
                second = Hierarchy(Path(root), 2)
        return second

    def limit(self, group: Path, cores: float) -> None:
        """Give a group this much."""
        quota_us = round(cores * _PERIOD_US)
        if self.version == 1:
            (group / "cpu.cfs_period_us").write_text(f"{_PERIOD_US}")
            (group / "cpu.cfs_quota_us").write_text(f"{quota_us}")
        else:
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")

    def delegate(self) -> None:
        """Let groups below the root have quotas, which the second version asks for."""
        if self.version == 2:
            (self.root / "cgroup.subtree_control").write_text("+cpu")


class CpuQuota:
    """A group of processes that together get no more than `cores` of CPU time. A context manager.

    Leaving sets its processes free. Entering raises UnavailableError where the machine does not allow it, and takes
    away what programs that died without leaving have left behind.
    """

    def __init__(self, *, cores: float, hierarchy: Hierarchy | None = None) -> None:
        self._cores = cores
        self._hierarchy = hierarchy or _hierarchy()
        self._group = self._hierarchy.root / f"millstream-{os.getpid()}-{next(_NUMBERS)}"

    def __enter__(self) -> Self:
        try:
            _remove_stale(self._hierarchy.root)
            self._hierarchy.delegate()
            self._group.mkdir()
            self._hierarchy.limit(self._group, self._cores)
        except OSError as error:
            raise UnavailableError(
                f"no CPU quota of {self._cores:g} cores in {self._hierarchy.root}: {error.strerror}; this needs root, "
                "and control groups that can be written"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _remove(self._group)

    def hold(self, pids: Iterable[int]) -> Strike:
        """Put processes under the quota; those that are gone by now are passed over."""
        ordered = Moment.now()
        held = [pid for pid in pids if _move(pid, self._group)]
        return Strike(f"cpu quota of {self._cores:g} cores", _named(held), ordered, Moment.now())

    @property
    def pids(self) -> list[int]:
        """What is under the quota now."""
        return _members(self._group)


def _hierarchy() -> Hierarchy:
    hierarchy = Hierarchy.found(_read(Path("/proc/mounts")))
    if hierarchy is None:
        raise UnavailableError("there is no control group with the CPU controller; a quota needs Linux that mounts one")
    return hierarchy


def _named(pids: list[int]) -> str:
    return f"processes {', '.join(map(str, pids))}"


def _remove_stale(root: Path) -> None:
    for group in root.glob("millstream-*"):
        if (match := _NAMES.fullmatch(group.name)) and not Path(f"/proc/{match[1]}").exists():
            _remove(group)


def _remove(group: Path) -> None:
    """Set a group's processes free, and take it away."""
    for pid in _members(group):
        _move(pid, group.parent)
    group.rmdir()


def _members(group: Path) -> list[int]:
    return [int(pid) for pid in _read(group / "cgroup.procs").split()]


def _move(pid: int, group: Path) -> bool:
    try:
        (group / "cgroup.procs").write_text(str(pid))
    except ProcessLookupError:
        return False
    return True


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""
