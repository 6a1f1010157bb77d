"""A stage in virtual time for a planner to decide about: arrivals, a queue, devices that take as long as a law says."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from millstream.gpu_offload.decision import Decision, DeviceSpec
from millstream.gpu_offload.planner import Planner

CPU = DeviceSpec("cpu", "cpu", 0.04, "used")
GPU = DeviceSpec("gpu0", "gpu", 3.5, "leased", feeder_cores=1.0)
SHARED = DeviceSpec("gpu0", "gpu", 3.5, "share", feeder_cores=1.0)
STEP_S = 0.0005


@dataclass
class Law:
    """A batch of n takes `fixed_s + per_event_s * n`, times a lognormal of mean 1 and `factor`."""

    fixed_s: float
    per_event_s: float
    spread: float = 0.0
    factor: float = 1.0

    def seconds(self, records: int, random: np.random.Generator) -> float:
        sigma = math.sqrt(math.log1p(self.spread**2))
        luck = math.exp(random.normal(-(sigma**2) / 2, sigma)) if sigma else 1.0
        return self.factor * (self.fixed_s + self.per_event_s * records) * luck


class World:
    """One stage and its planner, driven in steps of half a millisecond."""

    def __init__(
        self,
        rate: Callable[[float], float],
        laws: Mapping[str, Law],
        devices: Sequence[DeviceSpec] = (CPU, GPU),
        *,
        budget_s: float = 0.010,
        seed: int = 0,
        calibrate: bool = True,
    ) -> None:
        self.rate, self.laws = rate, laws
        self.planner = Planner("score", budget_s, devices, seed=seed)
        self.random = np.random.default_rng(seed)
        self.now = 0.0
        self.budget_s = budget_s
        self.decisions: list[Decision] = []
        self.events = 0
        self.late: list[tuple[float, int]] = []
        self.busy_s: Counter[str] = Counter()
        self.probed_s: Counter[str] = Counter()
        self.probes_equal = True
        self._step = 0
        self._queue: deque[list[float]] = deque()
        self._waiting = 0
        self._ends: tuple[float, str, int, float, float] | None = None
        for device in devices:
            if device.kind == "gpu" and calibrate:
                self.calibrate(device.name)

    def calibrate(self, device: str) -> None:
        """What a warm-up does: thirty batches of every size; then the device is ready."""
        sizes = [2**place for place in range(17) for _ in range(30)]
        samples = [(size, self.laws[device].seconds(size, self.random)) for size in sizes]
        self.planner.calibrated(self.now, device, samples)
        self.planner.device_state(self.now, device, "ready")

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / STEP_S)):
            self._one_step()

    def _one_step(self) -> None:
        came = int(self.random.poisson(self.rate(self.now) * STEP_S))
        if came:
            self._queue.append([self.now, came])
            self._waiting += came
            self.planner.arrived(self.now, came, 100 * came)
        if self._ends is not None and self._ends[0] <= self.now:
            end, device, records, took, oldest = self._ends
            self._ends = None
            self.planner.observed(end, device, records, took)
            self.planner.latency(end, end - oldest)
        if self._ends is None and self._queue:
            self._begin()
        self.planner.backlog(self.now, self._waiting)
        wanted = self.planner.probe(self.now)
        if wanted is not None:
            took = self.laws[wanted.device].seconds(wanted.records, self.random)
            self.probed_s[wanted.device] += took
            self.planner.probed(self.now, wanted.device, wanted.records, took, self.probes_equal)
        if self.planner.is_due(self.now):
            self.decisions.append(self.planner.decide(self.now))
        self._step += 1
        self.now = self._step * STEP_S

    def _begin(self) -> None:
        option = self.planner.option
        oldest = self._queue[0][0]
        if self._waiting < option.records_max and self.now - oldest < option.wait_s - 1e-9:
            return
        taken: list[tuple[float, int]] = []
        room = option.records_max
        while self._queue and room:
            at, there = self._queue[0]
            part = min(int(there), room)
            taken.append((at, part))
            room -= part
            self._queue[0][1] -= part
            if not self._queue[0][1]:
                self._queue.popleft()
        records = option.records_max - room
        self._waiting -= records
        took = self.laws[option.device].seconds(records, self.random)
        end = self.now + took
        self._ends = (end, option.device, records, took, oldest)
        self.busy_s[option.device] += took
        self.events += records
        self.late += [(at, part) for at, part in taken if end - at > self.budget_s]

    @property
    def last(self) -> Decision:
        return self.decisions[-1]

    @property
    def switches(self) -> list[tuple[float, str, str]]:
        """When to which device and why."""
        return [(one.at_s, one.option.device, one.reason_code) for one in self.decisions if one.switched]

    @property
    def late_share(self) -> float:
        return sum(part for _, part in self.late) / max(1, self.events)
