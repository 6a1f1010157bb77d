"""The image as it is deployed: an unprivileged user, a read-only root, no capabilities, on a real Kafka."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from podman import RESTRICTED, Container, Podman, eventually, started

from millstream.connectors.kafka.broker_ports import free_ports
from millstream.connectors.kafka.pytest_broker import Broker

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]

USER = 10001
DRAIN_S = 10
PATIENCE_S = 60.0
EVENTS = 30_000
MILLSTREAM = [sys.executable, "-c", "import sys; from millstream.processor.cli import main; sys.exit(main())"]

# A stage over columns and one over events, so that kernels of every kind are needed.
APP = """
from millstream.processor import Pipeline

pipeline = Pipeline("{name}", missing_topics="create")
(
    pipeline.read("{name}-in", dict)
    .columns(lambda columns: {{"fee": columns["amount"] * 0.01}}, reads={{"amount": float}}, adds={{"fee": float}})
    .map(lambda event: event)
    .write("{name}-out")
)
"""


@dataclass(frozen=True)
class Service:
    """A pipeline that runs in a container."""

    name: str
    brokers: str
    http_port: int
    container: Container

    def load(self, *, seconds: float) -> subprocess.Popen[bytes]:
        """Events at a steady rate, EVENTS in all."""
        return subprocess.Popen(
            [
                *(*MILLSTREAM, "load", f"--brokers={self.brokers}", f"--topic={self.name}-in"),
                *("--create-partitions=6", "--allow-late", f"--events={EVENTS}", f"--rate={EVENTS / seconds}"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def verdict(self) -> dict[str, Any]:
        """What the judge says once every event has its effect."""
        judge = [
            *(*MILLSTREAM, "verify", f"--brokers={self.brokers}", f"--input={self.name}-in"),
            *(f"--output={self.name}-out", f"--follow={EVENTS}", "--json"),
        ]
        judged = subprocess.run(judge, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
        assert judged.stdout, f"{judged.stderr}\n{self.container.logs()}"
        verdict: dict[str, Any] = json.loads(judged.stdout)
        return verdict

    def starts(self) -> int:
        """How many nodes were started in this container."""
        return self.container.logs().count("event=http.listening")

    def is_ready(self) -> bool:
        """What /readyz says."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/readyz", timeout=5):
                return True
        except OSError:  # nobody listens, or the answer is 503
            return False


@pytest.fixture
def service(image: str, podman: Podman, broker: Broker, tmp_path: Path) -> Callable[..., Any]:
    @contextmanager
    def serving(*options: str) -> Iterator[Service]:
        name = f"container-{uuid.uuid4().hex[:8]}"
        # Another user than the one who writes it has to be able to read it.
        app = tmp_path / "app.py"
        app.write_text(APP.format(name=name))
        app.chmod(0o644)
        (port,) = free_ports(1)
        container = started(
            podman,
            [
                *(*RESTRICTED, *options, f"--volume={app}:/app/app.py:ro", f"--env=MILLSTREAM_HTTP=127.0.0.1:{port}"),
                f"--env=MILLSTREAM_BROKERS={broker.bootstrap}",
            ],
            ["run", "app.py", "--workers=2", f"--drain-timeout-s={DRAIN_S}"],
        )
        try:
            yield Service(name, broker.bootstrap, port, container)
        finally:
            podman.tried("rm", "--force", "--time=0", container.id)

    return serving


def assert_clean(verdict: dict[str, Any]) -> None:
    assert (verdict["lost"], verdict["doubled"], verdict["reordered"]) == (0, 0, 0), verdict
    assert verdict["events"] == EVENTS


def test_the_image_says_how_it_is_to_be_run(image: str, podman: Podman) -> None:
    configured = json.loads(podman("image", "inspect", image))[0]
    assert configured["Config"]["User"] == f"{USER}:{USER}"
    assert configured["Config"]["StopSignal"] == "SIGTERM"
    assert list(configured["Config"]["ExposedPorts"]) == ["9100/tcp"]
    assert configured["Healthcheck"]["Test"] == ["CMD", "millstream-healthy"]


def test_it_processes_without_privileges_and_drains_when_told_to(service: Callable[..., Any]) -> None:
    with service("--memory=1g", "--cpus=2") as running:
        container = running.container
        eventually(running.is_ready, "readiness")
        loading = running.load(seconds=3)
        assert_clean(running.verdict())
        assert loading.wait(PATIENCE_S) == 0

        status = Path(f"/proc/{container.first_process}/status").read_text()
        assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}" in status
        assert "CapEff:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        assert container.does("touch", "/app/anything").returncode != 0
        # Links to the image's kernels alone: not one had to be compiled.
        assert container.does("find", "/tmp/millstream-kernels", "-name", "*.nbc").stdout
        assert container.does("find", "/tmp/millstream-kernels", "-type", "f").stdout == ""
        assert is_healthy(container)

        before = time.monotonic()
        container.stop(timeout_s=3 * DRAIN_S)
        assert time.monotonic() - before < DRAIN_S + 5
        assert container.exit_code == 0, container.logs()
        assert_clean(running.verdict())


def test_a_kill_under_load_is_survived_by_a_restart(service: Callable[..., Any]) -> None:
    with service("--restart=on-failure") as running:
        eventually(running.is_ready, "readiness")
        loading = running.load(seconds=6)
        time.sleep(2)
        killed = running.container.first_process
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: running.starts() == 2, "a second start")
        assert running.container.first_process not in (0, killed)
        assert_clean(running.verdict())
        assert loading.wait(PATIENCE_S) == 0


def test_sigterm_while_it_starts_is_not_lost(service: Callable[..., Any]) -> None:
    with service() as running:
        before = time.monotonic()
        running.container.stop(timeout_s=3 * DRAIN_S)
        assert time.monotonic() - before < DRAIN_S + 5
        # Either the program was there already and drained, or the signal met it before.
        assert running.container.exit_code in (0, 128 + signal.SIGTERM)


def test_the_health_check_tells_a_frozen_agent(service: Callable[..., Any]) -> None:
    with service() as running:
        container = running.container
        eventually(lambda: is_healthy(container), "an agent that answers")
        agent = psutil.Process(container.first_process).children()[0]
        agent.suspend()
        try:
            assert not is_healthy(container)
        finally:
            agent.resume()
        eventually(lambda: is_healthy(container), "an agent that answers again")


def is_healthy(container: Container) -> bool:
    return container.podman.tried("healthcheck", "run", container.id).returncode == 0


def test_without_a_place_for_kernels_it_says_what_to_mount(image: str, podman: Podman) -> None:
    options = [option for option in RESTRICTED if not option.startswith("--tmpfs")]
    finished = podman.tried("run", "--rm", "--network=none", *options, image, "--version")
    assert finished.returncode == 2
    assert "--tmpfs /tmp" in finished.stderr
