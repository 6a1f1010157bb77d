"""The experiments E0 to E9 of `make gpu-bench`. Each adds what it has found as soon as it is found.

All but E0 and the half of E1 go through a device's process, as a stage's batches do, and so can be tried with a
simulated device, whose figures mean nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from millstream.gpu_offload.canary import difference
from millstream.gpu_offload.decision import DeviceSpec, Option
from millstream.gpu_offload.explanation import explain
from millstream.gpu_offload.planner import Planner
from millstream.gpu_offload.rivals import Fixed
from millstream.loadgen.gpu_bench_faults import FAULTY, ILLEGAL, MEMORY, NONE, SPIN, rows_with
from millstream.loadgen.gpu_bench_fit import Measured, crossover, line
from millstream.loadgen.gpu_bench_lab import DEVICE, Lab, lab, measure_cpu
from millstream.loadgen.gpu_bench_live import CPU, Live, Step
from millstream.loadgen.gpu_bench_stages import LIGHT, WIDE, adversarial_rows, example_stages, usual_rows
from millstream.processor.errors import UnavailableError
from millstream.processor.offloading import StageDefinition

Found = MutableMapping[str, Any]
_CHILD_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is measured, and how much of it. `quick` is for tests: everything once, and small."""

    device: str
    core_price: float
    gpu_price: float
    quick: bool = False

    @property
    def is_cuda(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def specs(self) -> tuple[DeviceSpec, DeviceSpec]:
        """All cores as one server, since the CPU forms use them all; and the device, paid while it is chosen."""
        cores = os.cpu_count() or 1
        cpu = DeviceSpec(CPU, "cpu", self.core_price * cores, "used")
        return cpu, DeviceSpec(DEVICE, "gpu", self.gpu_price, "leased", feeder_cores=1.0 / cores)


@dataclass(frozen=True, slots=True)
class Experiment:
    """`seconds_max` is when it is stopped; what it has found by then is kept."""

    name: str
    title: str
    seconds_max: float
    run: Callable[[Bench, Found], Awaitable[None]]


async def copies(bench: Bench, found: Found) -> None:
    """E0: versions, and copies from pinned and pageable memory."""
    found.update(await _alone(bench, "copies"))
    found["accepted"] = found["pinned"]["r_squared"] > 0.99 and found["pinned"]["gb_per_s"] >= 40.0


async def floors(bench: Bench, found: Found) -> None:
    """E1: the least that a batch takes, by itself and through the device's process."""
    rows = usual_rows(LIGHT, 8192, seed=1)
    async with lab(bench.device, [LIGHT]) as one:
        await one.ready(LIGHT)
        through = await one.measure(LIGHT, rows, 50 if bench.quick else 3000, 15.0)
    found["through_process"] = _point(through)
    if bench.is_cuda:
        found["alone"] = await _alone(bench, "floor")
        best = min(way["p50_us"] for way in found["alone"].values())
        worst = min(way["p99_us"] for way in found["alone"].values())
        found["accepted"] = best <= 60.0 and worst <= 200.0 and through.p50_s <= 120e-6 and through.p99_s <= 400e-6


async def cold_start(bench: Bench, found: Found) -> None:
    """E2: from nothing to ready, and how much a CPU lane beside it is disturbed."""
    stage = example_stages()["decision_tree"]
    for cache in ("cold", "warm", "warm again")[: 1 if bench.quick else 3]:
        with tempfile.TemporaryDirectory() as place:
            if cache == "cold":
                os.environ["CUPY_CACHE_DIR"] = place
            begun = time.perf_counter()
            try:
                async with lab(bench.device, [stage]) as one:
                    beside = asyncio.create_task(_lane(one, stage))
                    await one.ready(stage)
                    found[cache] = {"ready_s": time.perf_counter() - begun, "cpu_lane": await beside}
            finally:
                os.environ.pop("CUPY_CACHE_DIR", None)
    if bench.is_cuda:
        found["phases"] = await _alone(bench, "start")


async def _lane(one: Lab, stage: StageDefinition) -> dict[str, float]:
    """Times of equal CPU batches while the device starts, and after it."""
    rows = usual_rows(stage, 64, seed=2)
    resident = _resident(stage)
    times: dict[str, list[float]] = {"while_starting": [], "after": []}
    while len(times["after"]) < 200:
        begun = time.perf_counter()
        stage.offloadable.compute(rows, resident)
        is_ready = one.client.state(stage.name) == "ready"
        times["after" if is_ready else "while_starting"].append(time.perf_counter() - begun)
        await asyncio.sleep(0.002)
    return {f"{name}_p99_us": float(np.quantile(seconds, 0.99)) * 1e6 for name, seconds in times.items() if seconds}


async def crossovers(bench: Bench, found: Found) -> None:
    """E3: the examples at growing batch sizes, on both sides."""
    for name, stage in example_stages().items():
        found[name] = await _compared(bench, stage, 20.0)


async def claims(bench: Bench, found: Found) -> None:
    """E4: a tree of 500,000 nodes and dense networks: who is quicker, at small batches and at large ones."""
    stages = example_stages()
    chosen = {name: stages[name] for name in ("decision_tree", "fraud_model")} | {WIDE.name: WIDE}
    for name, stage in chosen.items():
        found[name] = await _compared(bench, stage, 18.0)


async def _compared(bench: Bench, stage: StageDefinition, seconds_max: float) -> dict[str, Any]:
    sizes = [2**power for power in range(4, 7 if bench.quick else 17)]
    each_s = seconds_max / len(sizes) / 2
    resident = _resident(stage)
    cpu: list[Measured] = []
    gpu: list[Measured] = []
    async with lab(bench.device, [stage], detection_s=10.0) as one:
        await one.ready(stage)
        for size in sizes:
            rows = usual_rows(stage, size, seed=size)

            def compute(rows: Any = rows) -> object:
                return stage.offloadable.compute(rows, resident)

            cpu.append(measure_cpu(compute, size, 30, each_s))
            try:
                gpu.append(await one.measure(stage, rows, 30, each_s))
            except UnavailableError:
                # Larger batches than a slot holds are cut by the worker; they need not be measured.
                break
    return compared(cpu, gpu)


def compared(cpu: list[Measured], gpu: list[Measured]) -> dict[str, Any]:
    """Both sides' times with their lines, and where they cross."""
    answer: dict[str, Any] = {"cpu": [_point(one) for one in cpu], "gpu": [_point(one) for one in gpu]}
    if not gpu:
        return answer
    for name, points in (("cpu_line", cpu), ("gpu_line", gpu)):
        fitted = line(points)
        answer[name] = {
            "fixed_us": fitted.fixed_s * 1e6,
            "per_event_ns": fitted.per_event_s * 1e9,
            "residual": fitted.residual,
        }
    crossing = crossover(cpu, gpu)
    answer["crossover"] = {"predicted": crossing.predicted, "measured": crossing.measured}
    answer["accepted"] = crossing.is_predicted
    return answer


async def planned(bench: Bench, found: Found) -> None:
    """E5: the planner under steps of the load, beside fixed choices."""
    stage = example_stages()["fraud_model"]
    span = 1.0 if bench.quick else 5.5
    rates = (500.0, 2000.0) if bench.quick else (5_000.0, 50_000.0, 200_000.0, 50_000.0)
    steps = [Step(rate, span) for rate in rates]
    async with lab(bench.device, [stage]) as one:
        await one.ready(stage)
        planner = Planner(stage.name, 0.010, bench.specs)
        await calibrate(one, stage, planner)
        found["planner"] = (await Live(stage, planner, bench.specs, 0.010, one).run(steps)).as_json()
        for name, option in (("always CPU", Option(CPU, 512, 0.003)), ("always GPU", Option(DEVICE, 4096, 0.003))):
            found[name] = (await Live(stage, Fixed(option), bench.specs, 0.010, one).run(steps)).as_json()
    feasible = [found[name]["cost_per_million"] for name in ("always CPU", "always GPU") if _in_time(found[name])]
    found["accepted"] = _in_time(found["planner"]) and found["planner"]["cost_per_million"] <= 1.05 * min(
        feasible, default=float("inf")
    )


def _in_time(lived: dict[str, Any]) -> bool:
    return bool(lived["bad_seconds"] == 0)


async def calibrate(one: Lab, stage: StageDefinition, planner: Planner) -> None:
    """Tell a planner that the device is ready, and what batches take there."""
    samples = []
    for size in (1, 8, 64, 512, 4096, 16384):
        rows = usual_rows(stage, size, seed=3)
        for _ in range(10):
            begun = time.perf_counter()
            if await one.client.compute(stage.name, rows) is not None:
                samples.append((size, time.perf_counter() - begun))
    planner.calibrated(0.0, DEVICE, samples)
    planner.device_state(0.0, DEVICE, "ready")


async def motivating(bench: Bench, found: Found) -> None:
    """E6: 50K events a second, 10 ms, a light stage: the CPU, and no device is ever asked for."""
    seconds = 2.0 if bench.quick else 15.0
    rate = 5_000.0 if bench.quick else 50_000.0
    planner = Planner(LIGHT.name, 0.010, bench.specs)
    live = Live(LIGHT, planner, bench.specs, 0.010, None)
    found["planner"] = (await live.run([Step(rate, seconds)])).as_json()
    found["wants_device"] = planner.wants(DEVICE)
    found["explanation"] = explain(planner.decide(seconds + 1.0))
    found["accepted"] = not found["wants_device"] and found["planner"]["gpu_share"] == 0.0


async def faults(bench: Bench, found: Found) -> None:
    """E7: the process killed, an illegal address, no memory, a kernel without end: in the middle of a load."""
    with tempfile.TemporaryDirectory() as place:
        path = None if bench.is_cuda else Path(place) / "fault"
        device = bench.device if path is None else f"{bench.device},faults={path}"
        async with lab(device, [FAULTY]) as one:
            await one.ready(FAULTY)
            for name, kind, times in (("killed", NONE, 5), ("illegal address", ILLEGAL, 3), ("memory", MEMORY, 3),
                                      ("endless kernel", SPIN, 2)):  # fmt: skip
                found[name] = [await _faulted(one, kind, path) for _ in range(1 if bench.quick else times)]
    worst_ms = max(one["unanswered_ms"] for rounds in found.values() for one in rounds)
    found["unanswered_ms_max"] = worst_ms
    found["accepted"] = worst_ms <= 500.0


async def _faulted(one: Lab, kind: int, path: Path | None) -> dict[str, float]:
    """One fault: how long a batch waited in vain, and how long it took until the device was back."""
    await one.ready(FAULTY)
    rows = rows_with(kind, 1000, path)
    if kind == NONE:
        asyncio.get_running_loop().call_later(0.001, one.child.kill)
    begun = time.perf_counter()
    waited_s = 0.0
    while one.client.state(FAULTY.name) == "ready" and time.perf_counter() - begun < 5.0:
        started = time.perf_counter()
        answer = await one.client.compute(FAULTY.name, rows)
        if answer is None:
            waited_s = max(waited_s, time.perf_counter() - started)
            break
        await asyncio.sleep(0)
    well = rows_with(NONE, 1000, path)
    expected = FAULTY.offloadable.compute(well)
    while one.client.state(FAULTY.name) != "ready":
        if time.perf_counter() - begun > 20.0:
            raise UnavailableError("the device did not come back within 20 s")
        if one.client.state(FAULTY.name) == "half-open":
            await one.client.shadow(FAULTY.name, well, expected)
        await asyncio.sleep(0.01)
    answer = await one.client.compute(FAULTY.name, well)
    if answer is None or difference(FAULTY, expected, answer, FAULTY.offloadable.equality):
        raise UnavailableError("the device came back with wrong answers")
    return {"unanswered_ms": waited_s * 1e3, "back_s": time.perf_counter() - begun}


async def equality(bench: Bench, found: Found) -> None:
    """E8: answers for rows that devices disagree about, and whether they are the same each time."""
    stages = example_stages()
    async with lab(bench.device, list(stages.values()), detection_s=10.0) as one:
        for name, stage in stages.items():
            found[name] = await _answers(bench, one, stage)
    found["accepted"] = not any(found[name]["difference"] for name in stages)


async def _answers(bench: Bench, one: Lab, stage: StageDefinition) -> dict[str, Any]:
    rows = adversarial_rows(stage, 256 if bench.quick else 8192, seed=4)
    with warnings.catch_warnings(action="ignore"):
        expected = stage.offloadable.compute(rows, _resident(stage))
    await one.ready(stage)
    tried = [await one.client.compute(stage.name, rows) for _ in range(3 if bench.quick else 20)]
    given = [answer for answer in tried if answer is not None]
    if not given:
        return {"difference": "not computed", "same_each_time": False, "runs": 0}
    return {
        "difference": difference(stage, expected, dict(given[0]), stage.offloadable.equality) or "",
        "same_each_time": all(
            answer[column].tobytes() == given[0][column].tobytes() for answer in given for column in given[0]
        ),
        "runs": len(given),
    }


async def probing(bench: Bench, found: Found) -> None:
    """E9: a stage on the CPU while the device is probed, beside the same without a device."""
    stage = example_stages()["decision_tree"]
    steps = [Step(1_000.0 if bench.quick else 20_000.0, 2.0 if bench.quick else 13.0)]
    planner = Planner(stage.name, 0.010, bench.specs)
    found["without"] = (await Live(stage, planner, bench.specs, 0.010, None).run(steps)).as_json()
    async with lab(bench.device, [stage]) as one:
        await one.ready(stage)
        planner = Planner(stage.name, 0.010, bench.specs)
        planner.device_state(0.0, DEVICE, "ready")
        found["with"] = (await Live(stage, planner, bench.specs, 0.010, one).run(steps)).as_json()
    found["accepted"] = (
        found["with"]["probe_share"] <= 0.011 and found["with"]["p99_ms"] <= 1.02 * found["without"]["p99_ms"]
    )


EXPERIMENTS: Final = (
    Experiment("E0", "copies between host and device", 20.0, copies),
    Experiment("E1", "the least that a batch takes", 35.0, floors),
    Experiment("E2", "a cold start", 40.0, cold_start),
    Experiment("E3", "where the device overtakes the CPU", 110.0, crossovers),
    Experiment("E4", "trees and dense networks", 55.0, claims),
    Experiment("E5", "the planner under steps of the load", 75.0, planned),
    Experiment("E6", "a light stage at 50K events/s within 10 ms", 20.0, motivating),
    Experiment("E7", "faults", 45.0, faults),
    Experiment("E8", "equal answers", 30.0, equality),
    Experiment("E9", "probing", 35.0, probing),
)
"""Less than eight minutes together."""


async def _alone(bench: Bench, what: str) -> dict[str, Any]:
    """One measurement of CUDA by itself. Raises UnavailableError with the last line that it said."""
    if not bench.is_cuda:
        raise UnavailableError("it needs a CUDA device")
    number = bench.device.partition(":")[2] or "0"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "millstream.loadgen.gpu_bench_cuda", what, number,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_CHILD_S):
            printed, complained = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        lines = complained.decode(errors="replace").strip().splitlines() or ["nothing was said"]
        raise UnavailableError(f"{what}: {lines[-1]}")
    found: dict[str, Any] = orjson.loads(printed)
    return found


def _resident(stage: StageDefinition) -> tuple[Any, ...]:
    make = stage.offloadable.resident
    return () if make is None else (make(),)


def _point(one: Measured) -> dict[str, float]:
    return {"records": one.records, "p50_us": one.p50_s * 1e6, "p99_us": one.p99_s * 1e6, "runs": one.runs}
