"""A device as a worker uses it: connects, keeps its stages ready there, and has batches computed, or says at once no.

Whatever goes wrong, `compute` answers None and the caller computes the same columns on the CPU. Trouble that is the
device's opens the stage's breaker; one that hangs is killed, so that whoever watches it starts it anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy.typing as npt

from millstream.gpu_offload.breaker import Breaker, BreakerSettings, BreakerState
from millstream.gpu_offload.canary import difference
from millstream.gpu_offload.deadline import Deadline
from millstream.gpu_offload.decision import DeviceState
from millstream.gpu_offload.device_link import (
    Answer,
    BusyError,
    DeviceLink,
    DeviceTroubleError,
    GoneError,
    LateError,
    RefusedBatchError,
    StageNews,
)
from millstream.gpu_offload.protocol import StageOrder, StageReady, StageUnavailable, Timing, Trouble
from millstream.gpu_offload.references import NotByNameError
from millstream.gpu_offload.slots import PAGE_BYTES, bytes_needed
from millstream.gpu_offload.stage_order import order_for
from millstream.processor.event_log import EventLog
from millstream.processor.offloading import ArrayColumns, StageDefinition
from millstream.processor.seldom import SeldomWarning

_log: Final = EventLog(logging.getLogger("millstream.device"))
_RECONNECT_FIRST_S: Final = 0.02
_RECONNECT_MAX_S: Final = 1.0

_BY_BREAKER: Final[Mapping[BreakerState, DeviceState]] = {
    BreakerState.CLOSED: "ready",
    BreakerState.SUSPECT: "suspect",
    BreakerState.OPEN: "open",
    BreakerState.HALF_OPEN: "half-open",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """`detection_s` bounds how long a hang stays unseen. A slot has room for `rows_max` rows, within its bytes."""

    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    detection_s: float = 0.5
    warm_up_s: float = 60.0
    slots: int = 4
    rows_max: int = 1 << 16
    text_bytes: int = 64
    slot_bytes_max: int = 64 << 20
    memory_cap_s: float = 600.0


class DeviceListener(Protocol):
    """Who hears how a stage is on the device; called in the event loop."""

    def state(self, device: str, stage: str, state: DeviceState, why: str) -> None:
        """The stage's state is another one now."""

    def capped(self, device: str, stage: str, records_max: int, for_s: float) -> None:
        """The device's memory does not hold more records at once; not to be tried for so long."""

    def warmed(self, device: str, stage: str, timings: Sequence[Timing]) -> None:
        """What batches took in the device's process while it warmed up, without the way there."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """A copy of a batch, computed on the device beside the real one."""

    seconds: float
    equal: bool


@dataclass(slots=True)
class _Stage:
    """One stage on this device. `trouble` says why it cannot be had there, until the next connection."""

    number: int
    definition: StageDefinition
    order: StageOrder | None
    breaker: Breaker
    deadline: Deadline
    is_ready: bool = False
    trouble: str = ""
    told: tuple[DeviceState, str] = ("absent", "")
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


class DeviceClient:
    """One device, for all stages of a worker that may run there. Times are those of the running loop."""

    def __init__(
        self,
        device: str,
        path: str,
        stages: Sequence[StageDefinition],
        listener: DeviceListener,
        settings: ClientSettings | None = None,
    ) -> None:
        self._device = device
        self._path = path
        self._listener = listener
        self._settings = settings = settings or ClientSettings()
        self._link: DeviceLink | None = None
        self._stages = {stage.name: self._new(number, stage) for number, stage in enumerate(stages)}
        needs = max(
            (bytes_needed(stage, settings.rows_max, settings.text_bytes) for stage in stages), default=PAGE_BYTES
        )
        self._slot_bytes = -(-min(needs, settings.slot_bytes_max) // PAGE_BYTES) * PAGE_BYTES
        self._refused = SeldomWarning(_log, "device.batch_refused", device=device)

    # -- for the placement --------------------------------------------------------------------------------------

    def state(self, stage: str) -> DeviceState:
        """How the stage is on the device."""
        return self._stages[stage].told[0]

    async def compute(self, stage: str, columns: ArrayColumns) -> Mapping[str, npt.NDArray[Any]] | None:
        """The device's answer, in arrays of one's own; None for any trouble whatever."""
        known = self._stages[stage]
        if known.told[0] not in ("ready", "suspect"):
            return None
        answer, _ = await self._tried(known, columns)
        return None if answer is None else answer.arrays

    async def shadow(self, stage: str, columns: ArrayColumns, expected: Mapping[str, Any]) -> Shadow | None:
        """Compute a copy of a batch whose right answer is known; also where the device has yet to show that it works.

        None where it was not computed. A wrong answer puts the stage into quarantine.
        """
        known = self._stages[stage]
        if known.told[0] not in ("ready", "suspect", "half-open"):
            return None
        answer, seconds = await self._tried(known, columns, is_shadow=True)
        if answer is None:
            return None
        definition = known.definition
        found = difference(definition, expected, answer.arrays, definition.offloadable.equality)
        if found is None:
            known.breaker.succeeded(self._now())
        else:
            self._quarantine(known, f"wrong answer: {found}")
        self._tell(known)
        return Shadow(seconds, found is None)

    def reject(self, stage: str, why: str) -> None:
        """An answer of the device's is wrong or cannot be used: the stage goes into quarantine."""
        known = self._stages[stage]
        self._quarantine(known, f"wrong answer: {why}")
        self._tell(known)

    # -- the device ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Stay connected, and connect anew whenever the device's process is back; until cancelled."""
        if all(stage.order is None for stage in self._stages.values()):
            await asyncio.Event().wait()
        wait_s = _RECONNECT_FIRST_S
        try:
            while True:
                if await self._stay_connected():
                    wait_s = _RECONNECT_FIRST_S
                await asyncio.sleep(wait_s)
                wait_s = min(_RECONNECT_MAX_S, wait_s * 2)
        finally:
            for stage in self._stages.values():
                stage.is_ready = False
                _cancel_timers(stage)
                self._tell(stage)

    async def _stay_connected(self) -> bool:
        """One connection from its beginning to its end; False where none was made."""
        worker = str(os.getpid())
        try:
            link = await DeviceLink.connect(
                self._path, worker, self._settings.slots, self._slot_bytes, self._stage_news
            )
        except (OSError, TimeoutError, DeviceTroubleError):
            return False
        self._link = link
        try:
            for stage in self._stages.values():
                self._load(stage)
            # Shielded, since it is the link's own: a cancelled one would say nothing of its end.
            reason = await asyncio.shield(link.closed)
        finally:
            self._link = None
            link.close()
        self._gone(f"the device's process is gone ({reason})")
        return True

    def _load(self, stage: _Stage) -> None:
        if self._link is None or stage.order is None:
            return
        stage.trouble = ""
        self._link.load(stage.number, stage.order)
        self._later(stage, self._settings.warm_up_s, self._warm_up_is_over)
        self._tell(stage)

    def _stage_news(self, news: StageNews) -> None:
        stage = next((stage for stage in self._stages.values() if stage.number == news.stage), None)
        if stage is None:
            return
        _cancel_timers(stage)
        match news:
            case StageReady(_, is_proven, timings):
                stage.is_ready, stage.trouble = True, ""
                stage.breaker.readmit(self._now(), is_proven=is_proven)
                self._listener.warmed(self._device, stage.definition.name, timings)
            case StageUnavailable(_, why, is_wrong):
                stage.is_ready, stage.trouble = False, why
                _log.error("device.stage_unavailable", device=self._device, reason=why)
                if is_wrong or stage.breaker.state is BreakerState.OPEN:
                    stage.breaker.quarantine(self._now(), why)
        self._wait_for_cool_down(stage)
        self._tell(stage)

    def _warm_up_is_over(self, stage: _Stage) -> None:
        if stage.is_ready:
            # It was ready before, and was only to be tested once more: nothing answers any more.
            if self._link is not None:
                self._link.kill()
        else:
            stage.trouble = f"it was not ready within {self._settings.warm_up_s:g} s"
            self._tell(stage)

    def _gone(self, reason: str) -> None:
        for stage in self._stages.values():
            if stage.is_ready:
                stage.breaker.trip(self._now(), reason)
            stage.is_ready = False
            _cancel_timers(stage)
            self._tell(stage)

    # -- one batch ----------------------------------------------------------------------------------------------

    async def _tried(
        self, stage: _Stage, columns: ArrayColumns, *, is_shadow: bool = False
    ) -> tuple[Answer | None, float]:
        link = self._link
        if link is None or not stage.is_ready:
            return None, 0.0
        begun = time.perf_counter()
        try:
            answer = await link.compute(stage.number, stage.definition, columns, stage.deadline.wait_s)
        except DeviceTroubleError as error:
            self._in_trouble(stage, link, error, columns.rows)
            self._tell(stage)
            return None, 0.0
        seconds = time.perf_counter() - begun
        stage.deadline.observed(seconds)
        if answer.rows_max:
            self._cap(stage, answer.rows_max)
        if not is_shadow:
            stage.breaker.succeeded(self._now())
            self._tell(stage)
        return answer, seconds

    def _in_trouble(self, stage: _Stage, link: DeviceLink, error: DeviceTroubleError, rows: int) -> None:
        now = self._now()
        match error:
            case BusyError():
                self._refused(error)
            case RefusedBatchError(trouble=Trouble.OUT_OF_MEMORY):
                self._cap(stage, error.rows_max or max(1, rows // 2))
            case RefusedBatchError(trouble=Trouble.FUNCTION):
                stage.breaker.failed(now, str(error))
            case LateError(is_hung=True):
                stage.breaker.trip(now, f"the device hangs: {error}")
                link.kill()
            case _:
                stage.breaker.trip(now, str(error) if not isinstance(error, GoneError) else f"gone: {error}")
        self._wait_for_cool_down(stage)

    def _cap(self, stage: _Stage, rows_max: int) -> None:
        self._listener.capped(self._device, stage.definition.name, rows_max, self._settings.memory_cap_s)

    def _quarantine(self, stage: _Stage, reason: str) -> None:
        _log.error("device.wrong_answer", device=self._device, stage=stage.definition.name, reason=reason)
        stage.breaker.quarantine(self._now(), reason)
        self._wait_for_cool_down(stage)

    # -- states -------------------------------------------------------------------------------------------------

    def _wait_for_cool_down(self, stage: _Stage) -> None:
        """Have made-up rows tried when the breaker has cooled down."""
        breaker = stage.breaker
        if breaker.state is BreakerState.OPEN and self._link is not None:
            _cancel_timers(stage)
            self._later(stage, max(0.0, breaker.until_s - self._now()), self._load)

    def _tell(self, stage: _Stage) -> None:
        """Say how the stage is, where that is news."""
        told = self._state_of(stage)
        if told != stage.told:
            stage.told = told
            self._listener.state(self._device, stage.definition.name, *told)

    def _state_of(self, stage: _Stage) -> tuple[DeviceState, str]:
        breaker = stage.breaker
        if stage.trouble and breaker.state is not BreakerState.OPEN:
            return "absent", stage.trouble
        if breaker.state is BreakerState.OPEN:
            return "open", breaker.reason
        if self._link is None:
            return "absent", "no connection to the device's process"
        if not stage.is_ready:
            return "warming", ""
        return _BY_BREAKER[breaker.state], breaker.reason

    def _new(self, number: int, definition: StageDefinition) -> _Stage:
        settings = self._settings
        # A stage with a long budget may well take longer than a hang is to stay unseen elsewhere.
        deadline = Deadline(max(settings.detection_s, definition.latency_budget_ms / 1000))
        order, trouble = None, ""
        try:
            order = order_for(definition)
        except NotByNameError as error:
            trouble = f"stage {definition.name!r}: {error}"
            _log.error("device.stage_unavailable", device=self._device, reason=trouble)
        stage = _Stage(number, definition, order, Breaker(settings.breaker), deadline, trouble=trouble)
        stage.told = ("absent", trouble)
        return stage

    def _later(self, stage: _Stage, wait_s: float, what: Callable[[_Stage], None]) -> None:
        stage.timers.append(asyncio.get_running_loop().call_later(wait_s, what, stage))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _cancel_timers(stage: _Stage) -> None:
    for timer in stage.timers:
        timer.cancel()
    stage.timers.clear()
