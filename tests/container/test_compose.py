"""Our services of docker-compose.yml as they stand there, run by podman-compose against the development broker."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from documents import ROOT
from podman import IMAGE, Container, Podman, eventually

from millstream.connectors.kafka.broker_ports import free_ports
from millstream.connectors.kafka.pytest_broker import Broker

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]

# It waits for ever where a dependency cannot start, so every call has a bound.
COMPOSE_S_MAX = 120
OURS = ("processor", "load", "judge")


def for_the_test(broker: Broker, project: str, http_port: int) -> dict[str, Any]:
    """The file without the images that are not at hand, on the host's network."""
    whole: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    services = {name: whole["services"][name] for name in OURS}
    for service in services.values():
        del service["depends_on"]
        service.pop("build", None)
        service["image"] = IMAGE
        service["network_mode"] = "host"
        service["environment"] = {
            "MILLSTREAM_BROKERS": broker.bootstrap,
            "MILLSTREAM_HTTP": f"127.0.0.1:{http_port}",
        }
        service["volumes"] = [volume.replace("./", f"{ROOT}/") for volume in service.get("volumes", [])]
    return {"name": project, "services": services}


@pytest.fixture
def compose(
    image: str, podman: Podman, broker: Broker, tmp_path: Path
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    project = f"composed-{uuid.uuid4().hex[:8]}"
    (http_port,) = free_ports(1)
    file = tmp_path / "compose.yml"
    file.write_text(yaml.safe_dump(for_the_test(broker, project, http_port)))
    program = Path(sys.executable).parent / "podman-compose"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(program), f"--podman-args={podman.global_arguments}", "--file", str(file), *arguments],
            env={**podman.environ, "RATE": "5000", "SECONDS_OF_LOAD": "3"},
            capture_output=True,
            text=True,
            timeout=COMPOSE_S_MAX,
            check=False,
        )

    yield run
    run("down", "--timeout", "0")


def test_the_services_process_a_load_that_the_judge_finds_clean_and_drain(
    compose: Callable[..., subprocess.CompletedProcess[str]], podman: Podman
) -> None:
    up = compose("up", "--detach", "processor")
    assert up.returncode == 0, up.stderr
    processor = Container(podman, podman("ps", "--quiet"))
    eventually(lambda: "event=shard.started" in processor.logs(), "a shard")
    loaded = compose("--profile", "load", "run", "--rm", "load")
    assert loaded.returncode == 0, loaded.stdout + loaded.stderr
    eventually(lambda: compose("--profile", "load", "run", "--rm", "judge").returncode == 0, "a clean verdict")
    stopped = compose("stop", "processor")
    assert stopped.returncode == 0, stopped.stderr
    assert processor.exit_code == 0, processor.logs()
