"""Every query of the dashboard and of the alerts, answered by a real Prometheus that scrapes a real node."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import yaml
from documents import ROOT
from podman import eventually

from millstream.connectors.kafka.broker_ports import free_ports
from millstream.connectors.kafka.pytest_broker import Broker

pytestmark = [pytest.mark.container, pytest.mark.timeout(300)]

DEPLOY = ROOT / "deploy"
MILLSTREAM = [sys.executable, "-c", "import sys; from millstream.processor.cli import main; sys.exit(main())"]
# What Grafana puts in: the chosen nodes, and four scrapes.
VARIABLES = {"$instance": ".*", "$__rate_interval": "4s"}
# What a single node without trouble has none of: its quantiles are there, and are not numbers.
RARE = ("millstream_takeover_seconds", "millstream_move_seconds", "millstream_beat_gap_seconds")
# Longer than the tests take; the load ends with them.
SECONDS_OF_LOAD = 120


class Prometheus:
    """A running one."""

    def __init__(self, address: str) -> None:
        self._address = address

    def asked(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its interface; it must be a success."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            answered = json.load(answer)
        assert answered["status"] == "success", answered
        return answered["data"]

    def values(self, expression: str) -> list[float]:
        """The value of each series that a query answers now."""
        return [float(series["value"][1]) for series in self.asked("query", query=expression)["result"]]

    def has_scraped(self) -> bool:
        try:
            return self.values("millstream_records_in_total") != []
        except OSError:
            return False


@pytest.fixture(scope="module")
def prometheus(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It scrapes a node under load every second, with the repository's rules."""
    directory = tmp_path_factory.mktemp("prometheus")
    name = f"scraped-{uuid.uuid4().hex[:8]}"
    app = directory / "app.py"
    app.write_text(
        "from millstream.processor import Pipeline\n"
        f'pipeline = Pipeline("{name}", missing_topics="create")\n'
        f'pipeline.read("{name}-in", dict).map(lambda event: event).write("{name}-out")\n'
    )
    node_port, prometheus_port = free_ports(2)
    configuration = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    configuration["rule_files"] = [str(DEPLOY / "alerts.yml")]
    (job,) = configuration["scrape_configs"]
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{node_port}"]}]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    brokers = f"--brokers={broker.bootstrap}"
    commands = [
        [*MILLSTREAM, "run", str(app), brokers, "--workers=2", f"--http=127.0.0.1:{node_port}"],
        [
            *(*MILLSTREAM, "load", brokers, f"--topic={name}-in", "--create-partitions=4", "--rate=2000"),
            *("--allow-late", f"--seconds={SECONDS_OF_LOAD}"),
        ],
        [
            *("prometheus", f"--config.file={directory / 'prometheus.yml'}"),
            *(f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address=127.0.0.1:{prometheus_port}"),
        ],
    ]
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            log = stack.enter_context((directory / f"log-{number}").open("wb"))
            process = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            stack.callback(process.kill)
        running = Prometheus(f"127.0.0.1:{prometheus_port}")

        def logs() -> str:
            return "\n".join(path.read_text()[-2000:] for path in sorted(directory.glob("log-*")))

        eventually(running.has_scraped, "a scrape", found=logs)
        eventually(lambda: running.values("sum(rate(millstream_records_in_total[4s])) > 0"), "records", found=logs)
        yield running


def panels() -> list[tuple[str, str]]:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/millstream.json").read_text())
    return [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_panel_has_an_answer(prometheus: Prometheus) -> None:
    assert len(panels()) > 20
    unanswered = []
    for title, expression in panels():
        for variable, value in VARIABLES.items():
            expression = expression.replace(variable, value)
        assert "$" not in expression
        values, is_rare = prometheus.values(expression), any(name in expression for name in RARE)
        # What is not a number is drawn as nothing.
        if not any(value == value or is_rare for value in values):
            unanswered.append((title, expression))
    assert unanswered == []


def test_the_choice_of_nodes_finds_the_node(prometheus: Prometheus) -> None:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/millstream.json").read_text())
    (variable,) = dashboard["templating"]["list"]
    metric = variable["query"]["query"].removeprefix("label_values(").removesuffix(", instance)")
    assert len(prometheus.asked("label/instance/values", **{"match[]": metric})) == 1


def test_every_alert_is_evaluated_and_none_fires_for_a_healthy_node(prometheus: Prometheus) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in prometheus.asked("rules")["groups"] for rule in group["rules"]]

    eventually(lambda: all(rule["health"] != "unknown" for rule in rules()), "an evaluation")
    assert {rule["name"]: rule["health"] for rule in rules()} == {rule["alert"]: "ok" for rule in alerts()}
    # Some may be pending: what waited while the node started is late, for instance.
    assert [rule["name"] for rule in rules() if rule["state"] == "firing"] == []
