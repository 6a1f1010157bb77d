"""A planner or a rival on one trace, in virtual time: arrivals, batches, service by the true laws, latencies, cost.

What stands between a planner and its devices is here as it is in the engine: a device is started and warmed up when it
is wanted, a batch that it does not answer is computed on the CPU after the deadline, and the breaker keeps it away for
a while. One batch is in service at a time. Times are seconds; a chooser's wishes take effect after 10 ms at the latest.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from millstream.gpu_offload.breaker import Breaker, BreakerSettings, BreakerState
from millstream.gpu_offload.cost import core_price
from millstream.gpu_offload.decision import DeviceSpec, DeviceState, Option
from millstream.gpu_offload.rivals import Chooser
from millstream.gpu_offload.service_law import ServiceLaw
from millstream.gpu_offload.traces import Floats, Trace
from millstream.gpu_offload.virtual_stage import Batches, Conditions, VirtualStage, conditions

SLICE_S: Final = 0.01
# How finely arrivals are told: parts of a slice.
_PARTS: Final = 20
# The least deadline of a batch on a device (five times its p99, and at least this): laws here are far quicker.
_DEADLINE_S: Final = 0.1
_CALIBRATION_RUNS: Final = 25
_CALIBRATION_SIZES: Final = tuple(2**power for power in range(15))


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Devices with their laws, and the budget of the stage. The first device is the CPU.

    A device takes `start_s` until it is ready. A change to a leased device, or from it, costs its price for `switch_s`.
    """

    name: str
    budget_s: float
    devices: tuple[DeviceSpec, ...]
    laws: dict[str, ServiceLaw]
    start_s: float = 3.0
    switch_s: float = 0.5

    @property
    def cpu(self) -> str:
        return self.devices[0].name

    @property
    def switch_cost(self) -> float:
        """What a change of device costs."""
        return self.switch_s * max(self.held_price(spec) for spec in self.devices)

    def busy_price(self, spec: DeviceSpec) -> float:
        """What a busy second costs, without what is paid for holding the device."""
        hourly = 0.0 if spec.charge == "leased" else spec.price_per_hour
        return (hourly + spec.feeder_cores * core_price(self.devices)) / 3600.0

    def held_price(self, spec: DeviceSpec) -> float:
        """What a second costs in which the device is chosen, whether it is busy or not."""
        return spec.price_per_hour / 3600.0 if spec.charge == "leased" else 0.0


@dataclass(slots=True)
class Outcome:
    """What came of a trial, by the second of the trace: arrays of length `duration_s`.

    `late` counts the events that arrived in a second and took longer than the budget; `devices` and `options` are what
    was chosen at the end of each second. `p99_s` is that of the events that are scored. `probe_s` is shadow time by
    device, `held_s` how long a device was not absent. `drained_s` is how long the lag took, 0 without one.
    """

    events: npt.NDArray[np.int64]
    late: npt.NDArray[np.int64]
    cost: Floats
    devices: list[str]
    options: list[Option]
    p99_s: float
    switches_s: list[float] = field(default_factory=list)
    probe_s: dict[str, float] = field(default_factory=dict)
    held_s: dict[str, float] = field(default_factory=dict)
    drained_s: float = 0.0


class _Device:
    """A device that is not the CPU, and how it is."""

    def __init__(self, spec: DeviceSpec, law: Conditions, start_s: float) -> None:
        self.spec = spec
        self.law = law
        self.start_s = start_s
        self.state: DeviceState = "absent"
        self.breaker = Breaker(BreakerSettings())
        self.ready_at = math.inf
        # It has not answered, which shows at the deadline: one of a batch, or at once.
        self.lost_at: float | None = None

    def next_state(self, now: float, *, is_wanted: bool) -> DeviceState:
        """The state from now on; what a wish begins takes its time."""
        if self.state == "absent" and is_wanted:
            self.ready_at = now + self.start_s
            return "warming"
        if self.state == "warming" and now >= self.ready_at and not self.law.down(now):
            return "ready"
        if self.state == "open" and self.breaker.is_cool(now) and not self.law.down(now):
            self.breaker.readmit(now)
            return "half-open"
        if self.state == "half-open" and self.breaker.state is BreakerState.CLOSED:
            return "ready"
        if self.state == "ready" and self.lost_at is None and not is_wanted:
            return "absent"
        return self.state


class Trial:
    """One site on one trace. The same seed gives every chooser the same luck, batch by batch."""

    def __init__(self, site: Site, trace: Trace, seed: int) -> None:
        self._site = site
        self._trace = trace
        self._laws = {spec.name: conditions(site.laws[spec.name], trace, seed) for spec in site.devices}
        self._arriving = self._count_arrivals()

    def _count_arrivals(self) -> npt.NDArray[np.int64]:
        """Events by the part of a slice, the lag left out."""
        parts = round(self._trace.duration_s / SLICE_S) * _PARTS
        edges = np.searchsorted(self._trace.arrivals, np.arange(parts + 1) * (SLICE_S / _PARTS))
        counts = np.diff(edges).astype(np.int64)
        if self._trace.lag:
            counts[round(self._trace.lag_at_s / SLICE_S * _PARTS)] -= self._trace.lag
        return counts

    def run(self, chooser: Chooser, *, batch_by_batch: bool = False) -> Outcome:
        """Try one. `batch_by_batch`: it chooses for each batch, and the devices work side by side."""
        run = _Run(self._site, self._trace, self._laws, chooser, batch_by_batch=batch_by_batch)
        for number in range(round(self._trace.duration_s / SLICE_S)):
            now = number * SLICE_S
            run.watch_devices(now)
            parts = self._arriving[number * _PARTS : (number + 1) * _PARTS]
            run.slice(now, now + SLICE_S, parts)
        return run.outcome()


class _Run:
    def __init__(
        self,
        site: Site,
        trace: Trace,
        laws: dict[str, Conditions],
        chooser: Chooser,
        *,
        batch_by_batch: bool,
    ) -> None:
        self._site = site
        self._trace = trace
        self._laws = laws
        self._chooser = chooser
        self._listens = getattr(chooser, "listens", True)
        self._batch_by_batch = batch_by_batch
        self._stage = VirtualStage(trace.arrivals)
        self._free = dict.fromkeys(laws, 0.0)
        self._specs = {spec.name: spec for spec in site.devices}
        self._others = [_Device(spec, laws[spec.name], site.start_s) for spec in site.devices if spec.name != site.cpu]
        self._done: list[Batches] = []
        self._untold: deque[tuple[float, str, int, float, float]] = deque()
        self._device = chooser.option.device
        self._shadows = 0
        self._lag_left_s = math.nan
        self._cost = np.zeros(trace.duration_s)
        self._devices: list[str] = []
        self._options: list[Option] = []
        self._switches: list[float] = []
        self._probe_s = dict.fromkeys(laws, 0.0)
        self._held_s = dict.fromkeys(laws, 0.0)

    # Devices.

    def watch_devices(self, now: float) -> None:
        """Let time pass for the devices' states."""
        for device in self._others:
            if device.lost_at is not None and now >= device.lost_at:
                self._trip(device.lost_at, device)
            is_wanted = self._chooser.wants(device.spec.name)
            state = device.next_state(now, is_wanted=is_wanted)
            if state == "ready" and device.state == "warming":
                self._chooser.calibrated(now, device.spec.name, self._calibration(now, device))
            self._tell_state(now, device, state)
            if state != "absent":
                self._held_s[device.spec.name] += SLICE_S

    def _calibration(self, now: float, device: _Device) -> list[tuple[int, float]]:
        return [
            (size, device.law.seconds(size, now, run * 31 + power))
            for power, size in enumerate(_CALIBRATION_SIZES)
            for run in range(_CALIBRATION_RUNS)
        ]

    def _tell_state(self, now: float, device: _Device, state: DeviceState) -> None:
        if state != device.state:
            device.state = state
            self._chooser.device_state(now, device.spec.name, state)

    def _trip(self, now: float, device: _Device) -> None:
        device.lost_at = None
        device.breaker.trip(now, "no answer within the deadline")
        self._tell_state(now, device, "open")
        self._look_at_option(now)

    # One slice of time.

    def slice(self, now: float, until_s: float, parts: npt.NDArray[np.int64]) -> None:
        """Arrivals, batches, results, shadow runs, and a decision if one is due."""
        if self._listens:
            self._tell_arrivals(now, parts)
        self._serve(until_s)
        self._tell_results(until_s)
        self._tell_backlog(until_s)
        self._shadow(until_s)
        if self._chooser.is_due(until_s):
            self._chooser.decide(until_s)
        self._look_at_option(until_s)
        self._charge_holding(now)

    def _tell_arrivals(self, now: float, parts: npt.NDArray[np.int64]) -> None:
        size = self._trace.bytes_per_event[min(round(now * 100), len(self._trace.bytes_per_event) - 1)]
        for part in np.flatnonzero(parts):
            count = int(parts[part])
            self._chooser.arrived(now + (part + 0.5) * (SLICE_S / _PARTS), count, int(count * size))

    def _serve(self, until_s: float) -> None:
        while True:
            option = self._chooser.option
            name = self._placed(option.device)
            self._stage.free_s = self._free[name]
            most = 1 if self._batch_by_batch else 1 << 14
            batches, is_down = self._stage.run(until_s, self._laws[name], option.records_max, option.wait_s, most)
            self._note(name, batches)
            if is_down:
                lost_at = self._stage.free_s + _DEADLINE_S
                self._set_free(name, lost_at)
                self._set_free(self._site.cpu, lost_at)
                next(one for one in self._others if one.spec.name == name).lost_at = lost_at
                continue
            self._set_free(name, self._stage.free_s)
            if not (self._batch_by_batch and len(batches.records)):
                return
            self._tell_results(math.inf)

    def _placed(self, device: str) -> str:
        is_there = device == self._site.cpu or any(
            one.state == "ready" and one.lost_at is None for one in self._others if one.spec.name == device
        )
        return device if is_there else self._site.cpu

    def _set_free(self, name: str, at_s: float) -> None:
        for device in [name] if self._batch_by_batch else self._free:
            self._free[device] = max(self._free[device], at_s)

    def _note(self, name: str, batches: Batches) -> None:
        if not len(batches.records):
            return
        first = self._stage.head - int(batches.records.sum())
        oldest = self._trace.arrivals[first + np.concatenate([[0], np.cumsum(batches.records)[:-1]])]
        seconds = batches.ends_s - batches.starts_s
        self._done.append(batches)
        self._charge(name, batches.starts_s, seconds)
        if self._listens:
            columns = (batches.ends_s, batches.records, seconds, batches.ends_s - oldest)
            for end, records, took, worst in zip(*(column.tolist() for column in columns), strict=True):
                self._untold.append((end, name, records, took, worst))

    def _tell_results(self, until_s: float) -> None:
        while self._untold and self._untold[0][0] <= until_s:
            end, name, records, took, worst = self._untold.popleft()
            self._chooser.observed(end, name, records, took)
            self._chooser.latency(end, worst)

    def _tell_backlog(self, until_s: float) -> None:
        waiting = self._stage.waiting(until_s)
        beyond = max(0, waiting - self._chooser.option.records_max)
        self._chooser.backlog(until_s, beyond)
        if self._trace.lag and until_s > self._trace.lag_at_s and math.isnan(self._lag_left_s):
            bound = self._site.budget_s * self._trace.rates[min(round(until_s * 100), len(self._trace.rates) - 1)]
            if waiting <= bound:
                self._lag_left_s = until_s

    def _shadow(self, now: float) -> None:
        for device in self._others:
            if device.state == "half-open":
                if not self._run_shadow(now, device.spec.name, self._chooser.option.records_max):
                    self._trip(now, device)
                else:
                    device.breaker.succeeded(now)
        wish = self._chooser.probe(now)
        if wish is not None and not self._run_shadow(now, wish.device, wish.records):
            self._trip(now, next(one for one in self._others if one.spec.name == wish.device))

    def _run_shadow(self, now: float, name: str, records: int) -> bool:
        """Whether the device answered."""
        if self._laws[name].down(now):
            return False
        self._shadows += 1
        took = self._laws[name].seconds(records, now, self._shadows * 17)
        self._probe_s[name] += took
        second = min(int(now), self._trace.duration_s - 1)
        spec = self._specs[name]
        is_paid = spec.charge != "leased" or self._chooser.option.device == name
        self._cost[second] += took * (self._site.busy_price(spec) + (0.0 if is_paid else self._site.held_price(spec)))
        self._chooser.probed(now, name, records, took, True)
        return True

    # Accounts.

    def _charge(self, name: str, starts: Floats, seconds: Floats) -> None:
        place = np.minimum(starts.astype(np.int64), self._trace.duration_s - 1)
        np.add.at(self._cost, place, seconds * self._site.busy_price(self._specs[name]))

    def _charge_holding(self, now: float) -> None:
        second = int(now + SLICE_S / 2)
        names = list(self._specs) if self._batch_by_batch else [self._device]
        for name in names:
            self._cost[second] += self._site.held_price(self._specs[name]) * SLICE_S
        if round((now + SLICE_S) * 100) % 100 == 0:
            self._devices.append(self._device)
            self._options.append(self._chooser.option)

    def _look_at_option(self, now: float) -> None:
        device = self._chooser.option.device
        if device != self._device:
            self._device = device
            if not self._batch_by_batch:
                self._switches.append(now)
                self._cost[min(int(now), self._trace.duration_s - 1)] += self._site.switch_cost

    def outcome(self) -> Outcome:
        """Serve what is left and add everything up."""
        while not self._stage.is_done:
            # What does not come out within a day never does; no law here is so slow.
            self._serve(86_400.0)
        ends = np.concatenate([batches.ends_s for batches in self._done])
        records = np.concatenate([batches.records for batches in self._done])
        latencies = np.repeat(ends, records) - self._trace.arrivals
        seconds = np.minimum(self._trace.arrivals.astype(np.int64), self._trace.duration_s - 1)
        is_late = latencies > self._site.budget_s
        is_scored = self._trace.arrivals >= self._trace.scored_from_s
        if self._trace.lag:
            # The budget is lost for what came with the lag or while it lasted, whatever is chosen.
            first, last = np.searchsorted(self._trace.arrivals, [self._trace.lag_at_s, self._lag_left_s])
            is_late[first:last] = False
            is_scored[first:last] = False
        return Outcome(
            np.bincount(seconds, minlength=self._trace.duration_s),
            np.bincount(seconds[is_late], minlength=self._trace.duration_s),
            self._cost,
            self._devices,
            self._options,
            float(np.quantile(latencies[is_scored], 0.99)),
            self._switches,
            self._probe_s,
            self._held_s,
            self._lag_left_s - self._trace.lag_at_s if self._trace.lag else 0.0,
        )
