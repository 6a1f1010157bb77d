"""A stage's placement with a planner and a simulated device in a real process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import device_functions as functions
import numpy as np
from device_world import FAST, DeviceWorld, device_world, rows, settings, until

from millstream.gpu_offload.device_client import DeviceClient
from millstream.gpu_offload.offload_settings import OffloadSettings
from millstream.gpu_offload.simulated_faults import Fault, FaultKind
from millstream.gpu_offload.stage_placement import StagePlacement
from millstream.processor import Offloadable, Pipeline
from millstream.processor.offloading import CPU, ON_CPU, ArrayColumns, Route
from millstream.processor.stages.offload import OffloadStage

GPU_ROUTE = Route("gpu", 2**31)
CHEAP = OffloadSettings(devices=(FAST,), price_gpu_hour=1e-6, gpu_charge="share")
DEAR = OffloadSettings(devices=(FAST,), price_gpu_hour=1e6)


def on_cpu(columns: ArrayColumns) -> Mapping[str, Any]:
    return functions.total(np, columns)


def stage() -> OffloadStage:
    pipeline = Pipeline("test")
    pipeline.read("in", dict).offload(
        Offloadable(cpu=on_cpu, array=functions.total),
        reads={"price": float, "count": int},
        adds={"total": float},
        latency_budget_ms=100,
        name=functions.TOTAL.name,
    ).write("out")
    return pipeline.build().offloads[0]


@asynccontextmanager
async def placed(world: DeviceWorld, with_settings: OffloadSettings = CHEAP) -> AsyncIterator[StagePlacement]:
    """A placement that has a device which is ready."""
    placement = StagePlacement(stage(), with_settings)
    client = DeviceClient("gpu0", world.child.path, [functions.TOTAL], placement, settings(detection_s=0.3))
    going = asyncio.get_running_loop().create_task(client.run())
    placement.use("gpu0", client)
    try:
        await until(lambda: placement.report().state == "ready")
        yield placement
    finally:
        placement.close()
        going.cancel()


def work(placement: StagePlacement, route: Route, count: int, seconds: float) -> None:
    """A batch of so many rows was computed there, and took so long."""
    columns = rows(count)
    placement.arrived(count, 100 * count)
    answer = functions.total(np, columns)
    placement.observed(route, count, seconds, 0.99 * seconds, lambda: columns, answer)


async def busy(placement: StagePlacement, seconds_each: float, for_s: float) -> None:
    """Batches of 200 rows on the CPU, 50 a second, each of which takes so long."""
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        placement.route(200)
        work(placement, ON_CPU, 200, seconds_each)
        await asyncio.sleep(0.02)


async def test_a_dear_cpu_and_a_cheap_device_bring_the_stage_to_the_device() -> None:
    async with device_world() as world, placed(world) as placement:
        placement.tick()
        assert placement.route(100).device == CPU
        for _ in range(40):
            # So much more than the device takes that a busy machine decides alike.
            await busy(placement, 0.1, 0.5)
            if placement.route(200).device == "gpu":
                break
        report = placement.report()
        assert report.runs_on == "gpu", report.explanation
        assert report.counts.switches == {"cpu>gpu": 1}
        assert report.decision is not None
        assert "gpu" in report.explanation


async def test_a_device_that_costs_too_much_is_not_even_wanted() -> None:
    async with device_world() as world, placed(world, DEAR) as placement:
        await busy(placement, 0.0005, 2.5)
        assert not placement.wants_device
        assert placement.route(200).device == CPU
        assert "could not win" in placement.report().explanation


async def test_a_right_answer_is_used() -> None:
    async with device_world() as world, placed(world) as placement:
        answer = await placement.compute(GPU_ROUTE, rows(100))
        assert answer is not None
        np.testing.assert_array_equal(answer["total"], functions.total(np, rows(100))["total"])
        assert placement.report().counts.fallbacks == {}


async def test_a_wrong_answer_is_not_used_and_puts_the_device_into_quarantine() -> None:
    async with device_world() as world, placed(world) as placement:
        world.fault(Fault(kind=FaultKind.WRONG, batches=1))
        assert await placement.compute(GPU_ROUTE, rows(100)) is None
        report = placement.report()
        assert (report.counts.fallbacks, report.state) == ({"wrong-answer": 100}, "open")
        assert placement.route(100) == ON_CPU


async def test_a_device_that_hangs_is_left_within_its_bound() -> None:
    async with device_world() as world, placed(world) as placement:
        world.fault(Fault(kind=FaultKind.HANG, batches=1))
        began = time.monotonic()
        assert await placement.compute(GPU_ROUTE, rows(100)) is None
        # The bound is 0.3 s; the rest is for a machine that is busy with other tests.
        assert time.monotonic() - began < 3
        assert placement.report().counts.fallbacks == {"device-trouble": 100}


async def test_memory_that_does_not_do_makes_smaller_batches() -> None:
    async with device_world() as world, placed(world) as placement:
        world.fault(Fault(kind=FaultKind.OUT_OF_MEMORY, rows=0))
        assert await placement.compute(GPU_ROUTE, rows(100)) is None
        assert placement.report().counts.fallbacks == {"out-of-memory": 100}


async def test_without_a_device_everything_is_on_the_cpu_and_says_why() -> None:
    placement = StagePlacement(stage(), OffloadSettings(why="there is no NVIDIA device"))
    await busy(placement, 0.0005, 1.5)
    assert placement.route(100) == ON_CPU
    assert await placement.compute(GPU_ROUTE, rows(100)) is None
    report = placement.report()
    assert (report.runs_on, report.why) == ("cpu", "there is no NVIDIA device")
    assert "no-device" in report.counts.decisions
