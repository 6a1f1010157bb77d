"""The demo, small: it ends with a clean verdict, also when what it shows is killed, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

from millstream.connectors.kafka.pytest_broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

COMMAND = [sys.executable, "-c", "import sys; from millstream.processor.cli import main; sys.exit(main())", "demo"]
SMALL = ["--json", "--rate", "2000", "--workers", "2", "--partitions", "4"]
BOUND_S = 180


def _demo(broker: Broker, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *SMALL, "--brokers", broker.bootstrap, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_demo_prints_one_json_object_with_a_clean_verdict(broker: Broker) -> None:
    demo = _demo(broker, "--seconds", "2")
    out, err = demo.communicate(timeout=BOUND_S)
    assert demo.returncode == 0, err
    figures = json.loads(out)
    assert figures["events"] == 2 * 2000 + figures["warm_up_events"]
    assert (figures["lost"], figures["doubled"], figures["reordered"]) == (0, 0, 0)
    assert 0 < figures["latency_ms_p50"] <= figures["latency_ms_p99"]
    assert figures["events_per_s"] > 0
    assert "waiting for the first events to pass" in err


def test_the_demo_stays_clean_when_a_worker_and_the_node_are_killed(broker: Broker) -> None:
    demo = _demo(broker, "--seconds", "4", "--kill")
    out, err = demo.communicate(timeout=BOUND_S)
    assert demo.returncode == 0, err
    figures = json.loads(out)
    assert figures["killed"] == ["worker", "node"]
    assert (figures["lost"], figures["doubled"], figures["reordered"]) == (0, 0, 0)
    assert figures["output_pause_ms"] > 0


def test_one_of_three_nodes_is_killed_under_load_and_the_others_take_over(broker: Broker) -> None:
    demo = _demo(broker, "--nodes", "3", "--workers", "1", "--partitions", "6", "--kill-node")
    out, err = demo.communicate(timeout=BOUND_S)
    assert demo.returncode == 0, err
    figures = json.loads(out)
    assert (figures["nodes"], figures["killed"]) == (3, ["node-3"])
    assert (figures["lost"], figures["doubled"], figures["reordered"]) == (0, 0, 0)
    takeover = figures["takeover"]
    assert takeover["node"] == "node-3"
    assert takeover["found_dead_by"] in ("node-1", "node-2")
    assert takeover["silence_ms"] >= takeover["threshold_ms"] > 0
    assert len(takeover["shards"]) == len(takeover["output_ms"]) == 2
    assert takeover["takeover_ms_max"] == max(takeover["output_ms"].values()) > takeover["found_dead_ms"]
    said = ["takes about", "waiting for the nodes to share the shards", "node-3 killed", "node-3 found dead by"]
    assert [what for what in said if what not in err] == []


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_behind(broker: Broker, sent: signal.Signals) -> None:
    demo = _demo(broker, "--seconds", "60")
    try:
        deadline = time.monotonic() + BOUND_S
        while len(children := psutil.Process(demo.pid).children(recursive=True)) < 3:
            assert demo.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        demo.send_signal(sent)
        demo.communicate(timeout=60)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 130
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
