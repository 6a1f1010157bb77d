"""Hogs take CPU time and end with their owner; a quota holds what it is given and lets it go."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millstream.loadgen.cpu_pressure import CpuHogs, CpuQuota, Hierarchy
from millstream.loadgen.process_watch import cpu_s
from millstream.processor.errors import UnavailableError

HIERARCHY = Hierarchy.found(Path("/proc/mounts").read_text()) if Path("/proc/mounts").exists() else None
needs_quotas = pytest.mark.skipif(
    HIERARCHY is None or not os.access(HIERARCHY.root, os.W_OK), reason="no control groups that can be written"
)
PATIENCE_S = 20


def test_hogs_take_cpu_time_and_end_with_their_block() -> None:
    with CpuHogs(1) as hogs:
        (pid,) = hogs.pids
        deadline = time.monotonic() + PATIENCE_S
        while cpu_s(pid) < 0.1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()
    assert hogs.began is not None
    assert hogs.ended is not None
    assert hogs.began.done.monotonic_s <= hogs.ended.ordered.monotonic_s


def test_there_is_a_hog_for_every_core() -> None:
    with CpuHogs() as hogs:
        assert len(hogs.pids) == len(os.sched_getaffinity(0))


def test_hogs_whose_owner_died_end_by_themselves() -> None:
    code = (
        "import os; from millstream.loadgen.cpu_pressure import CpuHogs\n"
        "hogs = CpuHogs(1).__enter__(); print(hogs.pids[0], flush=True); os._exit(1)"
    )
    died = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False)
    hog = Path(f"/proc/{int(died.stdout)}")
    deadline = time.monotonic() + PATIENCE_S
    while hog.exists() and "Z" not in hog.joinpath("stat").read_text().rpartition(")")[2].split()[0]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@needs_quotas
def test_a_quota_slows_what_it_holds_and_what_that_starts() -> None:
    with CpuHogs(1) as hogs, CpuQuota(cores=0.1) as quota:
        strike = quota.hold([*hogs.pids, 1 << 22])
        assert quota.pids == hogs.pids
        assert strike.fault == "cpu quota of 0.1 cores"
        assert strike.target == f"processes {hogs.pids[0]}"
        used_s, began_s = cpu_s(hogs.pids[0]), time.monotonic()
        time.sleep(0.5)
        # Alone it would take all of this time; the kernel gives it a tenth, in slices.
        assert cpu_s(hogs.pids[0]) - used_s < 0.6 * (time.monotonic() - began_s)
    with CpuQuota(cores=0.1) as quota:
        code = "import subprocess, sys; sys.stdin.readline(); subprocess.run(['cat', '/proc/self/cgroup'])"
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            quota.hold([process.pid])
            shown, _ = process.communicate(b"\n", PATIENCE_S)
        assert f"millstream-{os.getpid()}-".encode() in shown


@needs_quotas
def test_what_a_quota_held_runs_free_afterwards_and_nothing_is_left() -> None:
    assert HIERARCHY is not None
    with CpuHogs(1) as hogs:
        with CpuQuota(cores=0.5) as quota:
            quota.hold(hogs.pids)
        assert hogs.pids[0] in [int(pid) for pid in (HIERARCHY.root / "cgroup.procs").read_text().split()]
    assert list(HIERARCHY.root.glob(f"millstream-{os.getpid()}-*")) == []


@needs_quotas
def test_a_quota_that_a_dead_program_left_is_taken_away() -> None:
    assert HIERARCHY is not None
    code = (
        "import os; from millstream.loadgen.cpu_pressure import CpuQuota\n"
        "CpuQuota(cores=0.5).__enter__(); print(os.getpid(), flush=True); os._exit(1)"
    )
    died = int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False).stdout)
    assert list(HIERARCHY.root.glob(f"millstream-{died}-*"))
    with CpuQuota(cores=0.5):
        assert not list(HIERARCHY.root.glob(f"millstream-{died}-*"))


def test_control_groups_of_the_second_version_are_told_in_their_own_words(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io\n")
    hierarchy = Hierarchy.found(f"proc /proc proc rw 0 0\ncgroup2 {tmp_path} cgroup2 rw,nosuid 0 0\n")
    assert hierarchy == Hierarchy(tmp_path, 2)
    hierarchy.delegate()
    hierarchy.limit(tmp_path, 0.5)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "cpu.max").read_text() == "50000 100000"


def test_control_groups_without_the_cpu_controller_are_none(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("hugetlb\n")
    mounts = f"cgroup2 {tmp_path} cgroup2 rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
    assert Hierarchy.found(mounts) is None


def test_a_quota_that_is_not_allowed_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"no CPU quota of 0\.5 cores .* needs root"):
        CpuQuota(cores=0.5, hierarchy=Hierarchy(tmp_path / "absent", 1)).__enter__()
