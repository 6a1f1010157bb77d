"""A simulated device under load on a real broker: whatever goes wrong with it, outputs are the CPU's, each once."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from outside import Outside

from millstream.connectors.kafka.pytest_broker import Broker
from millstream.gpu_offload.simulated_faults import Fault, FaultKind, write_fault
from millstream.loadgen.node_process import MILLSTREAM
from millstream.processor import ArrayColumns, Offloadable, Pipeline
from millstream.processor.errors import SettingsError

pytestmark = pytest.mark.broker

PATIENCE_S = 90.0

# The CPU takes 300 µs for an event, which the simulated device does in 0.2 µs: so clear that a busy machine decides
# alike.
APP = """
import time
from millstream.processor import Offloadable, Pipeline

def slow(columns):
    until = time.perf_counter() + 300e-6 * columns.rows
    while time.perf_counter() < until:
        pass
    return {{"fee": columns["amount"] * 0.5}}

def quick(xp, columns):
    return {{"fee": columns["amount"] * 0.5}}

pipeline = Pipeline("{name}", missing_topics="create", shards=2)
(pipeline.read("{name}-in", dict)
    .offload(Offloadable(cpu=slow, array=quick), reads={{"amount": float}}, adds={{"fee": float}},
             latency_budget_ms=1000, name="score")
    .write("{name}-out"))
"""


class Node:
    """`millstream run` with a simulated device, and what it says of its stage."""

    def __init__(self, name: str, directory: Path, bootstrap: str) -> None:
        self.name = name
        self.faults = directory / "faults.json"
        self.log = directory / "log"
        app = directory / "app.py"
        app.write_text(APP.format(name=name))
        device = f"simulated:fixed_us=200,event_us=0.2,faults={self.faults}"
        prices = ["--price-gpu-hour=0.001", "--gpu-charge=share"]
        self.command = [*MILLSTREAM, "run", str(app), f"--brokers={bootstrap}", f"--devices={device}", *prices]

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        with self.log.open("wb") as log:
            process = subprocess.Popen([*self.command, "--workers=1"], stderr=log)
        try:
            yield process
            process.terminate()
            assert process.wait(PATIENCE_S) == 0, self.log.read_text()
        finally:
            process.kill()
            process.wait()

    def stage(self) -> dict[str, Any]:
        """The stage's part of the status; nothing while there is none yet."""
        for line in self.log.read_text().splitlines():
            if "event=http.listening" in line:
                address = next(word for word in line.split() if word.startswith("address=")).partition("=")[2]
                with urllib.request.urlopen(f"http://{address}/status", timeout=10) as answer:
                    stages: list[dict[str, Any]] = json.load(answer)["offload"]
                return stages[0] if stages else {}
        return {}

    def eventually(self, what: str, condition: Any) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition(stage := self.stage()):
            assert time.monotonic() < deadline, f"never happened: {what}; {stage}; {self.log.read_text()[-3000:]}"
            time.sleep(0.1)


def on_gpu(stage: dict[str, Any]) -> int:
    count: int = stage.get("counts", {}).get("records", {}).get("gpu", 0)
    return count


def fallbacks(stage: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = stage.get("counts", {}).get("fallbacks", {})
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(kind=FaultKind.KILLED, batches=1), "device-trouble"),
        (Fault(kind=FaultKind.HANG, batches=1), "device-trouble"),
        (Fault(kind=FaultKind.WRONG, batches=1), "wrong-answer"),
        (Fault(kind=FaultKind.OUT_OF_MEMORY, rows=0), "out-of-memory"),
        (Fault(kind=FaultKind.SLOW, factor=3000, batches=1), "device-trouble"),
        (Fault(kind=FaultKind.STICKY, batches=1), "device-trouble"),
    ],
    ids=lambda value: value.kind.value if isinstance(value, Fault) else "",
)
def test_a_device_in_trouble_under_load_changes_no_output(
    broker: Broker, outside: Outside, tmp_path: Path, fault: Fault, reason: str
) -> None:
    name = f"offload-{uuid.uuid4().hex[:8]}"
    node = Node(name, tmp_path, broker.bootstrap)
    outside.create(f"{name}-in", 4)
    load = ["load", f"--brokers={broker.bootstrap}", f"--topic={name}-in", "--allow-late", "--rate=1000"]
    with node.running():
        loading = subprocess.Popen([*MILLSTREAM, *load, "--seconds=90"], stdout=subprocess.DEVNULL)
        try:
            node.eventually("the stage runs on the device", lambda stage: on_gpu(stage) > 500)
            write_fault(node.faults, fault)
            node.eventually("the CPU took over", lambda stage: fallbacks(stage).get(reason, 0) > 0)
            loading.send_signal(2)
            loading.wait(PATIENCE_S)
        finally:
            loading.kill()
            loading.wait()
        verdict = outside.judge(f"{name}-in", f"{name}-out")
    balance = verdict.balance
    assert (balance.lost, balance.doubled, balance.reordered) == (0, 0, 0), verdict.offenders
    assert balance.inputs > 500
    for message in outside.read(f"{name}-out"):
        assert message.value is not None
        event = json.loads(message.value)
        assert event["fee"] == event["amount"] * 0.5


def halved(xp: Any, columns: ArrayColumns) -> dict[str, Any]:
    """In this module, so that the device's process finds it."""
    return {"fee": columns["amount"] * xp.asarray(0.5)}


async def test_an_embedded_node_has_its_own_device(outside: Outside) -> None:
    source, target = outside.topic("in"), outside.topic("out")
    outside.send(source, [(b"k", b'{"amount":%d}' % number) for number in range(2000)])
    pipeline = Pipeline(outside.unique("embedded-offload"))
    pipeline.read(source, dict).offload(
        Offloadable(array=halved),
        reads={"amount": float},
        adds={"fee": float},
        latency_budget_ms=100,
        device="required",
    ).write(target)
    with pytest.raises(SettingsError, match="requires a device: devices are switched off"):
        await pipeline.run(brokers=outside.bootstrap, until="caught-up", devices="none")
    result = await pipeline.run(
        brokers=outside.bootstrap, until="caught-up", devices="simulated:fixed_us=50,event_us=0.1", timeout_s=60
    )
    assert result.counts.records_out == 2000
    fees = [json.loads(message.value or b"")["fee"] for message in outside.read(target)]
    assert sorted(fees) == [number * 0.5 for number in range(2000)]
