"""A stage under a load of events in real time, with a planner or a fixed choice: E5, E6 and E9 of `make gpu-bench`.

The events are made here and have their times of arrival; batches are gathered, computed on the CPU or on the device,
and the latency of each event is from its arrival to the end of its batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from millstream.gpu_offload.decision import DeviceSpec
from millstream.gpu_offload.rivals import Chooser
from millstream.gpu_offload.trial import Site
from millstream.loadgen.gpu_bench_lab import DEVICE, Lab
from millstream.loadgen.gpu_bench_stages import usual_rows
from millstream.processor.offloading import ArrayColumns, StageDefinition
from millstream.processor.stages.array_columns import rows_of

CPU: Final = "cpu"
_ROWS: Final = 1 << 16
_IDLE_S: Final = 100e-6


@dataclass(frozen=True, slots=True)
class Step:
    """So many events a second for so long."""

    rate: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Lived:
    """What came of it. `bad_seconds` had over 1 % late events although no step was in the second before."""

    events: int
    late_share: float
    p50_ms: float
    p99_ms: float
    p99_settled_ms: float
    bad_seconds: int
    cost_per_million: float
    gpu_share: float
    switches: int
    probe_share: float
    refused: int

    def as_json(self) -> dict[str, object]:
        """Rounded to what means something."""
        return {name: round(float(getattr(self, name)), 5) for name in self.__slots__}


class Live:
    """One run. `devices` are the prices, the CPU first; `lab` None where there is to be no device at all."""

    def __init__(
        self, stage: StageDefinition, chooser: Chooser, devices: Sequence[DeviceSpec], budget_s: float, lab: Lab | None
    ) -> None:
        self._stage = stage
        self._chooser = chooser
        self._lab = lab
        self._site = Site(name="live", budget_s=budget_s, devices=tuple(devices), laws={})
        self._specs = {spec.name: spec for spec in devices}
        self._rows = usual_rows(stage, _ROWS, seed=1)
        make = stage.offloadable.resident
        self._resident = () if make is None else (make(),)
        self._latest = ("", ArrayColumns({}, {}, 0), 0.0)
        self._latencies: list[np.ndarray] = []
        self._arrivals = np.empty(0)
        self._cost = 0.0
        self._on_gpu = 0
        self._switches = 0
        self._refused = 0
        self._probe_s = 0.0

    async def run(self, steps: Sequence[Step]) -> Lived:
        """Live through the steps, one after the other."""
        self._arrivals = np.concatenate(
            [
                np.arange(0.0, step.seconds, 1.0 / step.rate) + sum(one.seconds for one in steps[:place])
                for place, step in enumerate(steps)
            ]
        )
        self._calibrate_cpu()
        begun = time.perf_counter()
        head, told = 0, 0
        while head < len(self._arrivals):
            now = time.perf_counter() - begun
            come = int(np.searchsorted(self._arrivals, now, side="right"))
            if come > told:
                self._chooser.arrived(now, come - told)
                told = come
            self._decide(now)
            option = self._chooser.option
            oldest = self._arrivals[head]
            is_gathering = come - head < option.records_max and now < oldest + option.wait_s
            if come == head or is_gathering:
                await self._idle(now)
                continue
            count = min(come - head, option.records_max, _ROWS)
            name = await self._compute(option.device, count, begun)
            ended = time.perf_counter() - begun
            self._latencies.append(ended - self._arrivals[head : head + count])
            self._chooser.latency(ended, ended - float(oldest))
            self._on_gpu += count if name == DEVICE else 0
            head += count
        return self._lived(steps, time.perf_counter() - begun)

    def _calibrate_cpu(self) -> None:
        """Compile, so that the first event does not wait for it."""
        for _ in range(3):
            self._on_cpu(64)

    def _decide(self, now: float) -> None:
        if self._chooser.is_due(now):
            before = self._chooser.option.device
            self._chooser.decide(now)
            self._switches += self._chooser.option.device != before

    async def _idle(self, now: float) -> None:
        """Time in which nothing is due: a shadow run, if one is wished for, or a short sleep."""
        wish = self._chooser.probe(now) if self._lab is not None else None
        if wish is not None and self._lab is not None and wish.device == DEVICE:
            rows = rows_of(self._rows, 0, min(wish.records, _ROWS))
            started = time.perf_counter()
            answer = await self._lab.client.compute(self._stage.name, rows)
            took = time.perf_counter() - started
            self._probe_s += took
            self._chooser.probed(now + took, DEVICE, rows.rows, took, answer is not None)
        else:
            await asyncio.sleep(_IDLE_S)

    def _on_cpu(self, count: int) -> None:
        self._stage.offloadable.compute(rows_of(self._rows, 0, count), self._resident)

    async def _compute(self, device: str, count: int, begun: float) -> str:
        started = time.perf_counter()
        if device != CPU and self._lab is not None:
            if await self._lab.client.compute(self._stage.name, rows_of(self._rows, 0, count)) is not None:
                self._observe(device, count, started, begun)
                return device
            self._refused += 1
        self._on_cpu(count)
        self._observe(CPU, count, started, begun)
        return CPU

    def _observe(self, name: str, count: int, started: float, begun: float) -> None:
        ended = time.perf_counter()
        took = ended - started
        self._cost += took * self._site.busy_price(self._specs[name])
        if name != CPU:
            self._cost += took * self._site.held_price(self._specs[name])
        self._chooser.observed(ended - begun, name, count, took)

    def _lived(self, steps: Sequence[Step], lasted_s: float) -> Lived:
        latencies = np.concatenate(self._latencies)
        seconds = self._arrivals.astype(np.int64)
        is_late = latencies > self._site.budget_s
        edges = np.cumsum([0.0, *(step.seconds for step in steps[:-1])])
        settled = np.ones(len(latencies), np.bool_)
        for edge in edges:
            settled &= ~((self._arrivals >= edge) & (self._arrivals < edge + 1.0))
        if not settled.any():
            settled[:] = True
        shares = np.bincount(seconds[settled], is_late[settled]) / np.maximum(np.bincount(seconds[settled]), 1)
        p50, p99 = np.quantile(latencies, [0.5, 0.99])
        return Lived(
            len(latencies),
            float(is_late.mean()),
            float(p50) * 1e3,
            float(p99) * 1e3,
            float(np.quantile(latencies[settled], 0.99)) * 1e3,
            int(np.sum(shares > 0.01)),
            self._cost / len(latencies) * 1e6,
            self._on_gpu / len(latencies),
            self._switches,
            self._probe_s / lasted_s,
            self._refused,
        )
