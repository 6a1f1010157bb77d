"""The files that nobody here can run whole are at least what their tools take them for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT

pytestmark = pytest.mark.container

SCRIPTS = Path(sys.executable).parent


def checked(*command: str | Path, directory: Path = ROOT) -> str:
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=directory)
    output = finished.stdout + finished.stderr
    assert finished.returncode == 0, output
    return output


def test_the_dockerfile_has_no_fault_that_hadolint_knows() -> None:
    checked(SCRIPTS / "hadolint", "Dockerfile")


def test_the_compose_file_is_one() -> None:
    checked(SCRIPTS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml")


def test_the_compose_file_can_be_resolved() -> None:
    resolved = checked(SCRIPTS / "podman-compose", "--file", "docker-compose.yml", "config")
    assert "MILLSTREAM_BROKERS: kafka:9092" in resolved


def test_prometheus_takes_its_configuration_and_the_rules() -> None:
    assert "SUCCESS" in checked("promtool", "check", "config", "prometheus.yml", directory=ROOT / "deploy")


def test_every_alert_fires_when_it_should_and_only_then() -> None:
    checked("promtool", "test", "rules", "alerts_test.yml", directory=Path(__file__).parent)
