"""The demo of an offloadable stage, in its short form: the device is taken, dies in a batch, and costs no record."""

from __future__ import annotations

import json
import subprocess

import pytest

from millstream.connectors.kafka.pytest_broker import Broker
from millstream.loadgen.node_process import MILLSTREAM

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

BOUND_S = 560


def test_the_planner_takes_the_device_and_its_death_in_a_batch_costs_no_record(broker: Broker) -> None:
    command = [*MILLSTREAM, "demo", "--offload", "--json", "--seconds=0.5", f"--brokers={broker.bootstrap}"]
    demo = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert demo.returncode == 0, demo.stderr + demo.stdout
    figures = json.loads(demo.stdout)
    assert figures["clean"] is True
    assert (figures["lost"], figures["doubled"], figures["reordered"]) == (0, 0, 0)
    assert (figures["scores_checked"], figures["scores_different"]) == (figures["events"], 0)
    assert {"cpu>gpu", "gpu>cpu"} <= {switch["switch"] for switch in figures["switches"]}
    assert all(switch["reason"] for switch in figures["switches"])
    assert sum(figures["fallbacks"].values()) > 0
    assert figures["fault_detection_ms"] is not None
    assert figures["readmitted_s"] > 0
    assert figures["records"]["gpu"] > 0
    assert "killed in the middle of a batch" in demo.stderr
