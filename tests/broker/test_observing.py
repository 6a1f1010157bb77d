"""What a node on a real Kafka says of itself: lag that reaches zero, and an outage that it lives through."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from outside import Outside

from millstream.connectors.kafka.development_broker import DevelopmentBroker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

PATIENCE_S = 60.0
SLOWLY = """
import asyncio

async def slowly(value: bytes) -> bytes:
    await asyncio.sleep(0.002)
    return value

"""
MILLSTREAM = [sys.executable, "-c", "import sys; from millstream.processor.cli import main; sys.exit(main())"]


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.05)


class RunningNode:
    """`millstream run` as a process, asked over HTTP."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        eventually(lambda: "event=http.listening" in self.log, "the pages are there")
        self._address = self.log.split("http.listening address=")[1].split()[0]

    @property
    def log(self) -> str:
        return self._log.read_text()

    def get(self, page: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self._address}{page}", timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()

    def readiness(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.get("/readyz")[1])
        return body

    def metric(self, start: str) -> float:
        """The sum of the samples whose lines start so; -1 without any."""
        found = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(start)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found) if found else -1.0


@contextmanager
def running_node(
    bootstrap: str,
    directory: Path,
    name: str,
    source: str,
    target: str,
    *,
    before: str = "",
    stage: str = ".map(lambda value: value)",
) -> Iterator[RunningNode]:
    """`before` is code in front of the pipeline, `stage` what stands between its read and its write."""
    app, log = directory / "app.py", directory / "log"
    app.write_text(
        "from millstream.processor import Pipeline\n"
        f'pipeline = Pipeline("{name}")\n'
        f'{before}pipeline.read("{source}", bytes){stage}.write("{target}")\n'
    )
    with log.open("wb") as stderr:
        process = subprocess.Popen([*MILLSTREAM, "run", str(app), f"--brokers={bootstrap}"], stderr=stderr)
        try:
            yield RunningNode(process, log)
        finally:
            process.kill()
            process.wait()


def send_in_transactions(outside: Outside, topic: str, transactions: int) -> None:
    """Records of committed and of aborted transactions, so that markers lie between them and at the end."""
    producer = confluent_kafka.Producer({**outside.kafka, "transactional.id": outside.unique("writer")})
    producer.init_transactions(20)
    for number in range(transactions):
        producer.begin_transaction()
        for row in range(10):
            producer.produce(topic, f"{number}-{row}".encode(), f"{row}".encode())
        if number % 2:
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)


def test_lag_reaches_zero_on_a_topic_that_is_written_by_transactions_and_commits_are_measured(
    outside: Outside, tmp_path: Path
) -> None:
    source, target = outside.topic("in"), outside.topic("out")
    with running_node(outside.bootstrap, tmp_path, outside.unique("observed"), source, target) as node:
        send_in_transactions(outside, source, 6)
        eventually(lambda: node.metric("millstream_records_in_total") == 30, "all committed records are processed")
        eventually(lambda: node.metric("millstream_lag_records{") == 0, "the lag is zero")
        committed = node.metric('millstream_transactions_total{outcome="committed"}')
        assert committed >= 1
        assert node.metric("millstream_commit_seconds_count") == committed
        assert node.metric("millstream_event_latency_seconds_count") == 30
        assert node.metric('millstream_event_latency_seconds_bucket{le="3600.0"}') == 30
        assert 1 <= node.metric("millstream_batches_total") <= 30
        assert node.readiness() == node.readiness() | {"ready": True, "reason": "ready"}


def test_a_broker_that_is_away_leaves_the_node_alive_and_not_ready_and_does_not_hold_up_its_end(
    tmp_path: Path, unique: Callable[[str], str]
) -> None:
    with DevelopmentBroker(heap_mb=512, data_directory=tmp_path / "kafka") as own_broker:
        outside = Outside(own_broker.bootstrap, unique)
        source, target = outside.topic("in"), outside.topic("out")
        outside.load(source, 100)
        with running_node(outside.bootstrap, tmp_path, unique("patient"), source, target) as node:
            eventually(lambda: node.readiness()["ready"], "the node is ready")
            own_broker.kill()
            eventually(lambda: node.readiness()["reason"] == "broker-away", "the node notices")
            assert node.get("/readyz")[0] == 503
            assert "no shard has got an answer from the broker for" in node.readiness()["detail"]
            eventually(lambda: "no connection to" in node.readiness()["detail"], "it says why")
            assert node.get("/healthz") == (200, "ok\n")
            own_broker.start()
            eventually(lambda: node.readiness()["ready"], "the node recovers by itself")
            outside.load(source, 100, first_id=100)
            eventually(lambda: node.metric("millstream_records_in_total") == 200, "it works on")
            assert "worker.died" not in node.log
            own_broker.kill()
            eventually(lambda: not node.readiness()["ready"], "the node notices again")
            node.process.terminate()
            assert node.process.wait(PATIENCE_S) == 0, "nothing is in hand, so that nothing is left undone"


def test_sigterm_in_the_middle_of_batches_loses_and_doubles_nothing(outside: Outside, tmp_path: Path) -> None:
    source, target, name = outside.topic("in"), outside.topic("out"), outside.unique("drained")
    outside.load(source, 20_000)
    stage = ".map(slowly, concurrency=32)"
    with running_node(outside.bootstrap, tmp_path, name, source, target, before=SLOWLY, stage=stage) as node:
        eventually(lambda: node.metric("millstream_shards_owned{") > 0, "shards are given out")
        eventually(lambda: node.metric("millstream_records_in_total") > 0, "a part is done")
        node.process.terminate()
        assert node.process.wait(PATIENCE_S) == 0, node.log
    before = len(outside.read(target))
    assert 0 < before < 20_000, "there was work left"
    with running_node(outside.bootstrap, tmp_path, name, source, target) as node:
        eventually(
            lambda: node.metric("millstream_records_in_total") == 20_000 - before, "the rest is done, and no more"
        )
        node.process.terminate()
        assert node.process.wait(PATIENCE_S) == 0
    verdict = outside.judge(source, target, group=name)
    assert verdict.is_clean, verdict.as_json()
