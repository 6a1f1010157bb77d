"""A simulated device in a real process, and workers' clients of it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from device_functions import TOTAL

from millstream.gpu_offload.breaker import BreakerSettings
from millstream.gpu_offload.decision import DeviceState
from millstream.gpu_offload.device_child import ChildState, DeviceChild
from millstream.gpu_offload.device_client import ClientSettings, DeviceClient
from millstream.gpu_offload.protocol import Timing
from millstream.gpu_offload.simulated_faults import Fault, write_fault
from millstream.processor.offloading import ArrayColumns, StageDefinition
from millstream.processor.restarts import RestartPolicy

# Long enough that no test meets its end unless it wants to.
LONG_S = 1000.0
LIVENESS_S = 30.0
FAST = "simulated:fixed_us=50,event_us=0.01"


def settings(cool_down_s: float = LONG_S, shadows: int = 2, **more: float) -> ClientSettings:
    breaker = BreakerSettings(cool_down_s=cool_down_s, cool_down_max_s=4 * cool_down_s, shadows=shadows)
    return ClientSettings(breaker=breaker, rows_max=4096, **more)  # type: ignore[arg-type]


def rows(count: int, first: int = 0) -> ArrayColumns:
    price = np.arange(first, first + count, dtype=np.float64)
    return ArrayColumns({"price": price, "count": np.full(count, 2)}, {}, count)


def expected_total(columns: ArrayColumns) -> np.ndarray:  # type: ignore[type-arg]
    return columns["price"] * 2 + 1.0  # type: ignore[no-any-return]


class News:
    """What a client says of its stages."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, DeviceState, str]] = []
        self.caps: list[tuple[str, str, int, float]] = []
        self.timings: dict[tuple[str, str], Sequence[Timing]] = {}

    @property
    def states(self) -> list[DeviceState]:
        return [state for _, _, state, _ in self.heard]

    @property
    def reason(self) -> str:
        """What was said with the last state."""
        return self.heard[-1][3] if self.heard else ""

    def state(self, device: str, stage: str, state: DeviceState, why: str) -> None:
        self.heard.append((device, stage, state, why))

    def capped(self, device: str, stage: str, records_max: int, for_s: float) -> None:
        self.caps.append((device, stage, records_max, for_s))

    def warmed(self, device: str, stage: str, timings: Sequence[Timing]) -> None:
        self.timings[device, stage] = timings


class DeviceWorld:
    """One device; `client` makes another worker of it."""

    def __init__(self, directory: Path, device: str, tasks: asyncio.TaskGroup) -> None:
        self.faults = directory / "faults.json"
        self.states: list[ChildState] = []
        text = f"{device},faults={self.faults}" if device.startswith("simulated") else device
        policy = RestartPolicy(delay_first_s=0.01, delay_max_s=0.1)
        self.child = DeviceChild("gpu0", text, directory, self.states.append, policy)
        self._tasks = tasks
        self.running: list[asyncio.Task[None]] = [tasks.create_task(self.child.run())]

    def client(
        self, stages: Sequence[StageDefinition] = (TOTAL,), with_settings: ClientSettings | None = None
    ) -> tuple[DeviceClient, News]:
        news = News()
        client = DeviceClient("gpu0", self.child.path, stages, news, with_settings or settings())
        self.running.append(self._tasks.create_task(client.run()))
        return client, news

    def fault(self, fault: Fault | None) -> None:
        write_fault(self.faults, fault)


@asynccontextmanager
async def device_world(device: str = FAST) -> AsyncIterator[DeviceWorld]:
    # Not below pytest's own directory, whose names are too long for a socket's path.
    with tempfile.TemporaryDirectory(prefix="millstream-") as directory:
        async with asyncio.TaskGroup() as tasks:
            world = DeviceWorld(Path(directory), device, tasks)
            try:
                yield world
            finally:
                for task in world.running:
                    task.cancel()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIVENESS_S):
        while not condition():  # noqa: ASYNC110  # processes tell no event of ours
            await asyncio.sleep(0.005)


async def ready(client: DeviceClient, stage: StageDefinition = TOTAL) -> None:
    await until(lambda: client.state(stage.name) == "ready")
