"""Podman with a storage of its own, and one container of the millstream image."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND_S_MAX = 60.0
PATIENCE_S = 60.0
BUILD_S_MAX = 600.0
IMAGE = "localhost/millstream"
BASE = "localhost/millstream-base"

# crun refuses the mixture of cgroup versions that some hosts have, and health checks would ask systemd for a timer.
CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[network]
network_backend = "netavark"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""

# As docker-compose.yml has it: nothing but /tmp can be written to.
RESTRICTED = (
    "--read-only",
    "--read-only-tmpfs=false",
    "--tmpfs=/tmp",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
)


def eventually(condition: Callable[[], object], what: str, *, found: Callable[[], object] | None = None) -> None:
    """Wait until the condition holds; `found` tells what there was instead."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"never happened: {what}; found {found() if found else 'nothing of it'}")
        time.sleep(0.05)


class Podman:
    """Commands on a storage below `directory`, apart from everybody else's containers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        configuration = directory / "containers.conf"
        configuration.write_text(CONTAINERS_CONF)
        self.environ = {**os.environ, "CONTAINERS_CONF": str(configuration)}
        self._places = [
            f"--root={directory / 'root'}",
            f"--runroot={directory / 'run'}",
            f"--tmpdir={directory / 'tmp'}",
        ]

    @property
    def global_arguments(self) -> str:
        """What other programs have to hand to podman."""
        return " ".join(self._places)

    def tried(self, *arguments: str, timeout_s: float = COMMAND_S_MAX) -> subprocess.CompletedProcess[str]:
        """Run a command; it may fail."""
        return subprocess.run(
            ["podman", *self._places, *arguments],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def __call__(self, *arguments: str, timeout_s: float = COMMAND_S_MAX) -> str:
        """What the command prints; it must not fail."""
        finished = self.tried(*arguments, timeout_s=timeout_s)
        assert finished.returncode == 0, f"podman {' '.join(arguments)}\n{finished.stdout[-4000:]}\n{finished.stderr}"
        return finished.stdout.strip()

    def remove_everything(self) -> None:
        """No container, image or mount of this storage is left."""
        self.tried("rm", "--all", "--force", "--time", "0")
        self.tried("rmi", "--all", "--force")
        shutil.rmtree(self._directory, ignore_errors=True)


@dataclass(frozen=True)
class Container:
    """One that was started, and that may have ended."""

    podman: Podman
    id: str

    def inspected(self) -> dict[str, Any]:
        """All that podman knows of it."""
        found: dict[str, Any] = json.loads(self.podman("inspect", self.id))[0]
        return found

    @property
    def is_running(self) -> bool:
        return bool(self.inspected()["State"]["Running"])

    @property
    def exit_code(self) -> int:
        assert not self.is_running
        return int(self.inspected()["State"]["ExitCode"])

    @property
    def first_process(self) -> int:
        """Process 1 of the container, as the host numbers it; 0 while there is none."""
        return int(self.inspected()["State"]["Pid"])

    def logs(self) -> str:
        finished = self.podman.tried("logs", self.id)
        return finished.stdout + finished.stderr

    def does(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command within it."""
        return self.podman.tried("exec", self.id, *command)

    def stop(self, timeout_s: int) -> None:
        """SIGTERM, and SIGKILL after so long."""
        self.podman("stop", "--time", str(timeout_s), self.id)


def started(podman: Podman, options: Sequence[str], command: Sequence[str]) -> Container:
    """A container of the image on the host's network."""
    return Container(podman, podman("run", "--detach", "--network=host", *options, IMAGE, *command))
