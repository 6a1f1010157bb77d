"""The benchmark, small: it measures a row on both sides, and leaves neither topics nor processes behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from millstream.connectors.kafka.pytest_broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]

COMMAND = [sys.executable, "-m", "millstream.loadgen.bench", "--runs", "1", "--only", "raw_copy,cpu_raw_copy"]
BOUND_S = 100


def _bench(broker: Broker, report: Path, events: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "--brokers", broker.bootstrap, "--json", str(report), "--events", str(events)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _topics(broker: Broker) -> set[str]:
    found = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=20).topics
    return {topic for topic in found if topic.startswith("millstream-bench-")}


def test_a_row_is_measured_beside_its_baseline_and_nothing_is_left_in_kafka(broker: Broker, tmp_path: Path) -> None:
    bench = _bench(broker, tmp_path / "bench.json", 20_000)
    out, err = bench.communicate(timeout=BOUND_S)
    assert bench.returncode == 0, err
    speed, cpu = json.loads((tmp_path / "bench.json").read_text())
    assert (speed["name"], cpu["name"]) == ("raw_copy", "cpu_raw_copy")
    assert speed["value"] > 0
    assert speed["baseline"] > 0
    assert cpu["value"] > 0
    assert speed["ratio"] == pytest.approx(speed["value"] / speed["baseline"], rel=0.01)
    assert (speed["conditions"]["events"], speed["conditions"]["partitions"]) == (20_000, 6)
    assert "raw_copy" in out
    assert "run 1 of 1, baseline" in err
    assert not _topics(broker)


def test_an_interrupted_benchmark_leaves_no_process_and_no_topic(broker: Broker, tmp_path: Path) -> None:
    bench = _bench(broker, tmp_path / "bench.json", 20_000)
    try:
        deadline = time.monotonic() + BOUND_S
        while not (children := psutil.Process(bench.pid).children(recursive=True)):
            assert bench.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        bench.send_signal(signal.SIGINT)
        bench.communicate(timeout=60)
    finally:
        bench.kill()
        bench.wait()
    assert bench.returncode == 130
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert not _topics(broker)
    assert not (tmp_path / "bench.json").exists()
