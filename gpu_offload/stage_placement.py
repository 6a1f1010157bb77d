"""Where the batches of one stage go, in one worker: the planner's word, a leased device, and the CPU for all doubts.

Everything here runs in the worker's event loop. What is measured of each batch goes to the planner, and the device is
compared with the CPU in the background, by batches that were answered already.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from millstream.gpu_offload.canary import difference
from millstream.gpu_offload.decision import Decision, DeviceState, Probe
from millstream.gpu_offload.device_client import DeviceClient
from millstream.gpu_offload.explanation import explain
from millstream.gpu_offload.offload_settings import CPU, GPU, OffloadSettings
from millstream.gpu_offload.planner import Planner
from millstream.gpu_offload.protocol import Timing
from millstream.gpu_offload.spot_check import SpotCheck
from millstream.gpu_offload.surroundings import Surroundings
from millstream.processor.event_log import EventLog
from millstream.processor.offload_report import OffloadCounts, OffloadReport
from millstream.processor.offloading import NO_WAIT, ON_CPU, ArrayColumns, Gathering, Route
from millstream.processor.stages.array_columns import chosen_rows
from millstream.processor.stages.offload import OffloadStage

_log: Final = EventLog(logging.getLogger("millstream.offload"))

Purpose: TypeAlias = Literal["readmission", "calibration", "probe"]

_USABLE: Final = ("ready", "suspect")
# The way to the device's process and back, which its warm-up does not see; what is measured later replaces it.
_HOP_S: Final = 150e-6
# Too few for a size to be known by them alone: the machine may have been busy with starting, and a device that looks
# too slow then would not be looked at again for minutes. Probes have the last word.
_WARM_UP_RUNS: Final = 3
# After a warm-up so many real batches, of two sizes, are computed beside the work without being counted as probes: once
# for each start of a device, and the device has nothing else to do then.
_CALIBRATIONS: Final = 24
# Input comes in pieces of its own: a batch may be so much larger than planned before it is cut.
_OVERSIZE: Final = 2
_SHADOW_PAUSE_S: Final = 0.02
# Of small batches, which come by the thousand in a second, a sample is enough: that is what keeps the mark cheap.
_SAMPLE_S: Final = 0.02
_LOOK_S: Final = 0.001


class StagePlacement:
    """Implements `offloading.Placement`, and is the listener of the stage's device."""

    def __init__(self, stage: OffloadStage, settings: OffloadSettings, seed: int = 0) -> None:
        self._stage = stage
        self._definition = definition = stage.definition
        self._name = definition.name
        specs = settings.specs()
        self._planner = Planner(self._name, definition.latency_budget_ms / 1000, specs, seed=seed)
        self._has_gpu = len(specs) > 1
        self._spot_check = SpotCheck(definition, seed)
        self._surroundings = Surroundings()
        self._counts = OffloadCounts()
        self._decision: Decision | None = None
        self._gathering = NO_WAIT
        self._client: DeviceClient | None = None
        self._device = ""
        self._state: DeviceState = "absent"
        self._why = settings.why
        self._memory_cap = 2**31
        self._timings: Sequence[Timing] = ()
        self._wish: Probe | None = None
        self._calibrations_left = 0
        self._next_shadow = 0.0
        self._next_sample = 0.0
        self._next_look = 0.0
        self._probing: asyncio.Task[None] | None = None

    # -- the stage asks -----------------------------------------------------------------------------------------

    @property
    def gathering(self) -> Gathering:
        """As the planner wants it, once it knows something."""
        return self._gathering

    def arrived(self, rows: int, byte_count: int) -> None:
        self._planner.arrived(_now(), rows, byte_count)

    def backlog(self, records: int) -> None:
        self._planner.backlog(_now(), records)

    def waited(self, seconds: float) -> None:
        self._planner.latency(_now(), seconds)

    def route(self, rows: int) -> Route:  # noqa: ARG002  # batches are gathered to the size that was planned
        now = _now()
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            self.tick()
        option = self._planner.option
        if option.device == CPU or self._client is None or self._state not in _USABLE:
            return ON_CPU
        return Route(option.device, min(option.records_max * _OVERSIZE, self._memory_cap))

    async def compute(self, route: Route, columns: ArrayColumns) -> Mapping[str, npt.NDArray[Any]] | None:  # noqa: ARG002
        """The device's answer, of which a few rows are known to be right; None for any trouble."""
        client = self._client
        if client is None:
            self._fallen_back(columns, "no-device")
            return None
        caps = self._memory_cap
        answer = await client.compute(self._name, columns)
        if answer is None:
            self._fallen_back(columns, self._trouble(caps))
            return None
        try:
            wrong = self._spot_check.trouble(columns, answer, self._stage.resident)
        except Exception:  # the user's own: the stage's rules for the CPU find the rows at fault
            self._fallen_back(columns, "function")
            return None
        if wrong is not None:
            client.reject(self._name, wrong)
            self._fallen_back(columns, "wrong-answer")
            return None
        return answer

    def refused(self, route: Route, why: str) -> None:  # noqa: ARG002
        _add(self._counts.fallbacks, "wrong-answer", 1)
        if self._client is not None:
            self._client.reject(self._name, why)

    def observed(
        self,
        route: Route,
        rows: int,
        seconds: float,
        compute_s: float,
        columns: Callable[[], ArrayColumns],
        answer: Mapping[str, Any],
    ) -> None:
        _add(self._counts.records, route.device, rows)
        self._counts.busy_s[route.device] = self._counts.busy_s.get(route.device, 0.0) + seconds
        now = _now()
        if route.device == CPU and now < self._next_sample:
            return
        self._next_sample = now + _SAMPLE_S
        self._surroundings.observed(rows, max(0.0, seconds - compute_s))
        self._planner.observed(now, route.device, rows, seconds)
        if self._timings:
            self._calibrate()
        if self._client is not None and self._probing is None:
            self._look_beside(route.device, columns, answer)

    # -- the device's news --------------------------------------------------------------------------------------

    @property
    def wants_device(self) -> bool:
        """Whether a lease of a device is worth having."""
        if not self._has_gpu or (
            self._definition.offloadable.array is None and self._definition.offloadable.gpu is None
        ):
            return False
        return self._definition.device == "required" or self._planner.wants(GPU)

    def use(self, device: str, client: DeviceClient) -> None:
        """The stage has a lease of this device; `client` is the way there, already on its way."""
        self._device, self._client = device, client
        _log.info("offload.device_leased", stage=self._name, device=device)

    def lose(self, why: str) -> None:
        """The stage has no device, or no longer."""
        if self._client is not None:
            _log.info("offload.device_given_up", stage=self._name, device=self._device, reason=why)
        self._client, self._device = None, ""
        self.state("", self._name, "absent", why)

    def state(self, device: str, stage: str, state: DeviceState, why: str) -> None:  # noqa: ARG002
        """The device is now like this for the stage."""
        if state != self._state:
            _log.info("offload.device_state", stage=self._name, device=self._device, state=state, reason=why or "-")
        self._state, self._why = state, why
        if self._has_gpu:
            self._planner.device_state(_now(), GPU, state, why)

    def capped(self, device: str, stage: str, records_max: int, for_s: float) -> None:  # noqa: ARG002
        """The device's memory holds no more records at once."""
        self._memory_cap = records_max
        asyncio.get_running_loop().call_later(for_s, self._uncap)
        self._planner.cap(_now(), GPU, records_max, for_s)

    def warmed(self, device: str, stage: str, timings: Sequence[Timing]) -> None:  # noqa: ARG002
        """What batches took in the device's process; taken in as soon as it is known what is done beside."""
        self._timings = timings
        self._calibrations_left = _CALIBRATIONS
        if self._surroundings.is_known:
            self._calibrate()

    def _calibrate(self) -> None:
        for timing in self._timings:
            beside = _HOP_S + self._surroundings.seconds(timing.rows)
            self._planner.calibrated(_now(), GPU, [(timing.rows, beside + timing.p50_s)] * _WARM_UP_RUNS)
        self._timings = ()

    def _uncap(self) -> None:
        self._memory_cap = 2**31

    # -- now and then -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Decide where that is due; called for each batch, and several times a second."""
        now = _now()
        if self._planner.is_due(now):
            self._decide(now)
        if self._client is not None and self._probing is None and self._wish is None:
            self._wish = self._planner.probe(now)

    def _decide(self, now: float) -> None:
        before = self._planner.option
        decision = self._planner.decide(now)
        option = decision.option
        self._decision = decision
        _add(self._counts.decisions, decision.reason_code, 1)
        self._gathering = Gathering(option.records_max, option.wait_s) if _is_sound(decision) else NO_WAIT
        if decision.switched:
            _add(self._counts.switches, f"{before.device}>{option.device}", 1)
            _log_switch(self._name, before.device, decision)

    def report(self) -> OffloadReport:
        """How the stage fares."""
        decision = self._decision
        return OffloadReport(
            stage=self._name,
            runs_on=self._planner.option.device,
            device=self._device,
            state=self._state,
            why=self._why,
            counts=self._counts,
            decision=None if decision is None else msgspec.to_builtins(decision),
            explanation="" if decision is None else explain(decision),
        )

    def close(self) -> None:
        """End what goes on in the background."""
        if self._probing is not None:
            self._probing.cancel()

    # -- beside the work ----------------------------------------------------------------------------------------

    def _look_beside(self, device: str, columns: Callable[[], ArrayColumns], answer: Mapping[str, Any]) -> None:
        """Have a copy of a batch computed elsewhere, where that is wanted. The answers have been checked by then."""
        if self._state == "half-open" and device == CPU:
            if _now() >= self._next_shadow:
                self._next_shadow = _now() + _SHADOW_PAUSE_S
                self._begin_probe(self._shadow(columns(), answer, "readmission"))
        elif self._calibrations_left and self._state in _USABLE and device == CPU:
            if _now() >= self._next_shadow:
                self._next_shadow = _now() + _SHADOW_PAUSE_S
                self._begin_calibration(columns(), answer)
        elif self._wish is not None and self._wish.device != device:
            wish, self._wish = self._wish, None
            sample, expected = _resized(columns(), answer, wish.records)
            if wish.device == CPU:
                self._begin_probe(self._compare_on_cpu(sample, expected))
            else:
                self._begin_probe(self._shadow(sample, expected, "probe"))

    def _begin_calibration(self, columns: ArrayColumns, answer: Mapping[str, Any]) -> None:
        self._calibrations_left -= 1
        records = columns.rows if self._wish is None else self._wish.records
        if self._calibrations_left % 2:
            records = max(1, records // 8)
        self._begin_probe(self._shadow(*_resized(columns, answer, records), "calibration"))

    def _begin_probe(self, work: Any) -> None:
        self._probing = asyncio.get_running_loop().create_task(work)
        self._probing.add_done_callback(self._probe_ended)

    def _probe_ended(self, task: asyncio.Task[None]) -> None:
        self._probing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("offload.probe_failed", stage=self._name, reason=f"{type(error).__name__}")

    async def _shadow(self, columns: ArrayColumns, expected: Mapping[str, Any], purpose: Purpose) -> None:
        if self._client is None:
            return
        shadow = await self._client.shadow(self._name, columns, expected)
        if shadow is None:
            return
        _add(self._counts.probes, GPU, 1)
        seconds = shadow.seconds + self._surroundings.seconds(columns.rows)
        if purpose == "calibration" and shadow.equal:
            self._planner.calibrated(_now(), GPU, [(columns.rows, seconds)])
        elif purpose == "probe" or not shadow.equal:
            self._planner.probed(_now(), GPU, columns.rows, seconds, shadow.equal, shadow.seconds)

    async def _compare_on_cpu(self, columns: ArrayColumns, found: Mapping[str, Any]) -> None:
        began = perf_counter()
        expected = self._definition.offloadable.compute(columns, self._stage.resident)
        seconds = perf_counter() - began + self._surroundings.seconds(columns.rows)
        _add(self._counts.probes, CPU, 1)
        self._planner.probed(_now(), CPU, columns.rows, seconds)
        wrong = difference(self._definition, expected, found, self._definition.offloadable.equality)
        if wrong is not None and self._client is not None:
            self._client.reject(self._name, wrong)

    # -- counting -----------------------------------------------------------------------------------------------

    def _fallen_back(self, columns: ArrayColumns, reason: str) -> None:
        _add(self._counts.fallbacks, reason, columns.rows)

    def _trouble(self, cap_before: int) -> str:
        if self._memory_cap < cap_before:
            return "out-of-memory"
        return "busy" if self._state in _USABLE else "device-trouble"


def _is_sound(decision: Decision) -> bool:
    """Whether the batches that were chosen are to be held to: small ones that do not keep the budget anyway would only
    cost throughput, and so would those of a planner that does not know the CPU yet."""
    return any(one.is_feasible and one.option == decision.option for one in decision.candidates)


def _log_switch(stage: str, before: str, decision: Decision) -> None:
    option, inputs = decision.option, decision.inputs
    chosen = next((one for one in decision.candidates if one.option == option), None)
    figures: dict[str, object] = {}
    if chosen is not None:
        figures = {"p99_ms": round(chosen.p99_s * 1000, 3), "cost_per_million": round(chosen.cost_per_million, 4)}
    _log.info(
        "offload.switched",
        stage=stage,
        switch=f"{before}>{option.device}",
        why=decision.reason_code,
        records_max=option.records_max,
        wait_ms=round(option.wait_s * 1000, 3),
        rate=round(inputs.rate_now),
        rate_high=round(inputs.rate_high),
        backlog=inputs.backlog,
        budget_ms=round(inputs.budget_s * 1000, 3),
        **figures,
        reason=decision.reason,
    )


def _resized(
    columns: ArrayColumns, answer: Mapping[str, Any], records: int
) -> tuple[ArrayColumns, Mapping[str, npt.NDArray[Any]]]:
    """So many rows: the first ones, or all of them again and again."""
    rows = np.arange(records) % columns.rows
    return chosen_rows(columns, rows), {name: np.asarray(array)[rows] for name, array in answer.items()}


def _add(counts: dict[str, int], key: str, value: int) -> None:
    counts[key] = counts.get(key, 0) + value


def _now() -> float:
    # Not the loop's time, which stands still while a stage computes.
    return time.monotonic()
