"""A device's process with a client for some stages, as `make gpu-bench` uses it: started, warmed, timed, ended."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from millstream.gpu_offload.breaker import BreakerSettings
from millstream.gpu_offload.decision import DeviceState
from millstream.gpu_offload.device_child import ChildState, DeviceChild
from millstream.gpu_offload.device_client import ClientSettings, DeviceClient
from millstream.gpu_offload.protocol import Timing
from millstream.loadgen.gpu_bench_fit import Measured, summary
from millstream.processor.errors import UnavailableError
from millstream.processor.offloading import ArrayColumns, StageDefinition
from millstream.processor.restarts import RestartPolicy

DEVICE: Final = "gpu"
_POLL_S: Final = 0.002
# Faults are many here and one after the other; in service the cool-down is 30 s.
_BREAKER: Final = BreakerSettings(cool_down_s=0.5, cool_down_max_s=1.0, shadows=3)


class Heard:
    """What the device's process and the client have said, with the time of each."""

    def __init__(self) -> None:
        self.child: list[tuple[float, ChildState]] = []
        self.states: list[tuple[float, str, DeviceState, str]] = []
        self.timings: dict[str, Sequence[Timing]] = {}

    def of_child(self, state: ChildState) -> None:
        self.child.append((time.perf_counter(), state))

    def state(self, device: str, stage: str, state: DeviceState, why: str) -> None:  # noqa: ARG002  # one device
        self.states.append((time.perf_counter(), stage, state, why))

    def capped(self, device: str, stage: str, records_max: int, for_s: float) -> None:
        pass

    def warmed(self, device: str, stage: str, timings: Sequence[Timing]) -> None:  # noqa: ARG002  # one device
        self.timings[stage] = timings


class Lab:
    """A running device and its client."""

    def __init__(self, child: DeviceChild, client: DeviceClient, heard: Heard) -> None:
        self.child = child
        self.client = client
        self.heard = heard

    async def ready(self, stage: StageDefinition, within_s: float = 90.0) -> None:
        """Wait until the stage is ready there. Raises UnavailableError with what the device has said of it."""
        begun = time.perf_counter()
        while self.client.state(stage.name) != "ready":
            gone = next((state.text for _, state in self.heard.child if state.state == "unavailable"), None)
            why = next((text for _, name, _, text in reversed(self.heard.states) if name == stage.name and text), "")
            if gone is not None or time.perf_counter() - begun > within_s:
                raise UnavailableError(
                    f"stage {stage.name!r} does not get ready on the device: {gone or why or 'late'}"
                )
            await asyncio.sleep(_POLL_S)

    async def measure(self, stage: StageDefinition, rows: ArrayColumns, runs: int, seconds_max: float) -> Measured:
        """Times of equal batches through the device's process. Raises UnavailableError where it computes none."""
        times: list[float] = []
        begun = time.perf_counter()
        while len(times) < runs and (len(times) < 3 or time.perf_counter() - begun < seconds_max):
            started = time.perf_counter()
            if await self.client.compute(stage.name, rows) is None:
                raise UnavailableError(f"stage {stage.name!r} was not computed for {rows.rows} rows")
            times.append(time.perf_counter() - started)
        return summary(rows.rows, times[1:])


@asynccontextmanager
async def lab(device: str, stages: Sequence[StageDefinition], detection_s: float = 0.5) -> AsyncIterator[Lab]:
    """A device's process for these stages; ended with the block."""
    heard = Heard()
    with tempfile.TemporaryDirectory(prefix="ms-gpu-") as directory:
        policy = RestartPolicy(delay_max_s=0.2)
        child = DeviceChild(DEVICE, device, Path(directory), heard.of_child, policy)
        settings = ClientSettings(breaker=_BREAKER, detection_s=detection_s)
        client = DeviceClient(DEVICE, child.path, stages, heard, settings)
        tasks = [asyncio.create_task(child.run()), asyncio.create_task(client.run())]
        try:
            yield Lab(child, client, heard)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def measure_cpu(function: Callable[[], object], records: int, runs: int, seconds_max: float) -> Measured:
    """Times of equal calls here; the first is not counted, since it may compile."""
    function()
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < runs and (len(times) < 2 or time.perf_counter() - begun < seconds_max):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return summary(records, times)
