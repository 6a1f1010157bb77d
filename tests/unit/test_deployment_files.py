"""What is deployed beside the program speaks of the program as it is: metrics, commands, settings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from documents import ROOT

from millstream.processor.cli import COMMANDS
from millstream.processor.membership_measures import MembershipMeasures
from millstream.processor.node_settings import NodeSettings
from millstream.processor.supervision import Supervisor
from millstream.processor.telemetry import Telemetry
from millstream.processor.totals import Totals

DASHBOARD = ROOT / "deploy/grafana/dashboards/millstream.json"
COMPOSE = (ROOT / "docker-compose.yml").read_text()


def exposed_metrics() -> set[str]:
    """The names of all samples that a node can have, from the types in its text."""
    text = (
        Telemetry(Supervisor(NodeSettings()), Totals(), lambda: 0.0, MembershipMeasures(), lambda: None)
        .metrics()
        .decode()
    )
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        names |= {f"{name}{suffix}" for suffix in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    return names


@pytest.mark.parametrize("file", [DASHBOARD, ROOT / "deploy/alerts.yml"], ids=lambda file: file.name)
def test_every_metric_that_is_asked_for_is_exposed(file: Path) -> None:
    asked = set(re.findall(r"\bmillstream_\w+", file.read_text()))
    assert len(asked) > 5
    assert asked - exposed_metrics() == set()


def test_the_dashboard_shows_every_counter_of_the_node() -> None:
    shown = DASHBOARD.read_text()
    assert [name for name in sorted(exposed_metrics()) if name.endswith("_total") and name not in shown] == []


def test_every_panel_has_a_place_of_its_own_and_knows_its_source() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(x < 24 for x, _ in cells)
    assert {panel["datasource"]["uid"] for panel in panels} == {"prometheus"}
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_services_run_commands_that_exist() -> None:
    commands = re.findall(r"^    command: \[(\w+)|^    command:\n      - (\w+)$", COMPOSE, re.MULTILINE)
    named = {first or second for first, second in commands}
    assert named == {"run", "load", "verify"}
    assert named <= set(COMMANDS)


def test_nothing_of_the_repository_gets_into_the_image_unasked() -> None:
    first, *rest = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert first == "*"
    for line in rest:
        wanted = line.removeprefix("!")
        assert wanted.startswith("**") or any(ROOT.glob(wanted)), f"{wanted} is not there"


def test_every_test_that_the_container_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/container.md").read_text()))
    tests = "\n".join(path.read_text() for path in (ROOT / "tests/container").glob("test_*.py"))
    assert len(named) > 5
    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []


def test_every_alert_is_on_the_container_page() -> None:
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "deploy/alerts.yml").read_text())
    page = (ROOT / "docs/container.md").read_text()
    assert [alert for alert in alerts if f"`{alert}`" not in page] == []
