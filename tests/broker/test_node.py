"""A node of real worker processes on a real broker: one is killed under load, and the judge finds nothing amiss."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from millstream.connectors.kafka.pytest_broker import Broker

pytestmark = pytest.mark.broker

PATIENCE_S = 60.0
MILLSTREAM = [sys.executable, "-c", "import sys; from millstream.processor.cli import main; sys.exit(main())"]


def millstream(*arguments: str) -> str:
    finished = subprocess.run(
        [*MILLSTREAM, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


def test_a_worker_killed_under_load_loses_and_doubles_nothing_and_the_node_drains(
    broker: Broker, tmp_path: Path
) -> None:
    name = f"node-{uuid.uuid4().hex[:8]}"
    app, log = tmp_path / "app.py", tmp_path / "log"
    app.write_text(
        "from millstream.processor import Pipeline\n"
        f'pipeline = Pipeline("{name}", missing_topics="create", shards=4)\n'
        f'pipeline.read("{name}-in", bytes).map(lambda value: value).write("{name}-out")\n'
    )
    brokers = f"--brokers={broker.bootstrap}"
    load = [
        "load",
        brokers,
        f"--topic={name}-in",
        "--create-partitions=6",
        "--allow-late",
        "--seconds=6",
        "--rate=5000",
    ]
    with log.open("wb") as stderr, subprocess.Popen([*MILLSTREAM, *load], stdout=subprocess.DEVNULL) as loading:
        node = subprocess.Popen([*MILLSTREAM, "run", str(app), brokers, "--workers=2"], stderr=stderr)
        try:
            eventually(lambda: log.read_text().count("event=shard.started") >= 4, "shards are served")
            psutil.Process(node.pid).children()[0].kill()
            eventually(lambda: "incarnation=2" in log.read_text(), "the worker comes back")
            assert loading.wait(PATIENCE_S) == 0
            judge = ["verify", brokers, f"--input={name}-in", f"--output={name}-out", "--follow=30000", "--json"]
            verdict = json.loads(millstream(*judge))
            node.terminate()
            assert node.wait(PATIENCE_S) == 0, log.read_text()
        finally:
            node.kill()
            node.wait()
    assert (verdict["lost"], verdict["doubled"], verdict["reordered"]) == (0, 0, 0)
    assert verdict["events"] == 30_000
