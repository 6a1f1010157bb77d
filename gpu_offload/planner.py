"""Decides for one stage where its batches are computed, how large they get, and how long they wait.

Pure: told the time, what arrived, what batches took and how devices are; asked for a decision once a second and when
something happened (`is_due`). The same calls with the same seed give the same decisions. A CPU is always among the
devices, and it is the answer to every doubt: until it is measured, when a device is not ready, not known, late, wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from millstream.gpu_offload import choosing, never_win
from millstream.gpu_offload.choosing import Standing
from millstream.gpu_offload.cost import core_price
from millstream.gpu_offload.decision import Decision, DeviceSpec, DeviceState, Option, Probe, ReasonCode
from millstream.gpu_offload.guard import Guard
from millstream.gpu_offload.judging import Judge
from millstream.gpu_offload.load import Load
from millstream.gpu_offload.planner_settings import PlannerSettings
from millstream.gpu_offload.probing import Probing
from millstream.gpu_offload.question import Question
from millstream.gpu_offload.reasons import reason_for
from millstream.gpu_offload.reports import report
from millstream.gpu_offload.service_model import bucket_of
from millstream.gpu_offload.steadiness import Patience, Steadiness, Trouble
from millstream.gpu_offload.watched_device import WatchedDevice

_RECORDS_AT_FIRST: Final = 256
# How often the load is looked at between decisions; looking costs a few microseconds.
_LOOK_S: Final = 0.01
# A batch that ends soon after a switch or a change of the load says nothing about the device.
_SETTLING_S: Final = 1.0
# A context that was worth making is kept for a while.
_KEEP_WANTED_S: Final = 60.0
# So many candidates of each device are kept in the record.
_SHOWN: Final = 3


class Planner:
    """One stage's planner.

    `budget_s` is the stage's budget for p99, from arrival to result. The first device of kind "cpu" is the reference
    and the fallback. Raises ValueError without one, for a budget that is not above 0, or for two devices of one name.
    """

    def __init__(
        self,
        stage: str,
        budget_s: float,
        devices: Sequence[DeviceSpec],
        settings: PlannerSettings | None = None,
        seed: int = 0,
    ) -> None:
        if not budget_s > 0.0:
            raise ValueError(f"the budget of stage {stage!r} is {budget_s} s: it must be more than 0")
        self._devices = {spec.name: WatchedDevice(spec) for spec in devices}
        if len(self._devices) != len(devices):
            raise ValueError(f"two devices of stage {stage!r} have the same name: {[spec.name for spec in devices]}")
        cpu = next((spec.name for spec in devices if spec.kind == "cpu"), None)
        if cpu is None:
            raise ValueError(f"stage {stage!r} has no CPU among its devices: give it one, it is the fallback")
        self._cpu = cpu
        self._stage = stage
        self._budget_s = budget_s
        self._settings = settings or PlannerSettings()
        self._load = Load(budget_s)
        self._judge = Judge(self._settings, budget_s, core_price(devices), seed)
        self._steadiness = Steadiness(self._settings)
        self._guard = Guard(self._settings.breaches_max)
        self._trouble = Trouble(self._settings)
        self._patience = Patience(self._settings)
        self._probing = Probing(self._settings)
        self._option = Option(cpu, _RECORDS_AT_FIRST, 0.0)
        self._decided_at = -math.inf
        self._looked_at = -math.inf
        self._switched_at = -math.inf
        self._left_for_money_at = -math.inf
        self._alarm = ""
        # Whether the current option is predicted to keep the budget.
        self._is_promised = False

    # What the planner is told.

    def arrived(self, now: float, records: int, byte_count: int = 0) -> None:
        """So many records came in for the stage."""
        self._load.arrivals.add(now, records, byte_count)

    def backlog(self, now: float, records: int) -> None:
        """So many records are known to wait elsewhere, in Kafka or before the stage."""
        self._load.backlog(now, records)

    def observed(self, now: float, device: str, records: int, seconds: float) -> None:
        """A batch took so long, from bytes to bytes."""
        one = self._devices[device]
        one.usage.worked(seconds)
        if one.model.observed(now, records, seconds):
            self._alarm = f"{device} is known better or has changed"
            if one.model.has_changed(now):
                self._measure_others_again(now, device)

    def calibrated(self, now: float, device: str, samples: Iterable[tuple[int, float]]) -> None:
        """Measurements of a warm-up, as (records, seconds): they are not counted as probes."""
        for records, seconds in samples:
            self._devices[device].model.observed(now, records, seconds)

    def latency(self, now: float, seconds: float) -> None:
        """The longest time in which an event of a batch that has just ended was answered."""
        is_late = seconds > self._budget_s and not self._is_excused(now)
        if self._guard.batch(now, is_late=is_late):
            self._alarm = "late batches"
            if self._option.device == self._cpu:
                self._guard.tighten(now)
            else:
                self._trouble.trip(now, self._option.device)

    def _is_excused(self, now: float) -> bool:
        """Whether a late batch says nothing about the device: the model had said so, or it is of another time."""
        is_settling = now - self._switched_at < _SETTLING_S
        return not self._is_promised or is_settling or self._load.is_backlog or self._load.is_overrun(now)

    def device_state(self, now: float, device: str, state: DeviceState, why: str = "") -> None:
        """How a device is; `why` is for the explanation."""
        if self._devices[device].now_is(now, state, why):
            self._alarm = f"{device} is {state}"

    def cap(self, now: float, device: str, records_max: int, for_s: float) -> None:
        """For a while no larger batches go to the device, because it ran out of memory."""
        self._devices[device].cap(now, records_max, for_s)
        self._alarm = f"{device} takes {records_max} records at most"

    def probed(
        self, now: float, device: str, records: int, seconds: float, equal: bool = True, busy_s: float | None = None
    ) -> None:
        """A probe took so long, from bytes to bytes, and the device for `busy_s` of it (None: all of it).

        `equal` False: its answer was not the CPU's, and the device is not to be used.
        """
        one = self._devices[device]
        self._probing.ran(now, device, seconds if busy_s is None else busy_s)
        one.usage.worked(seconds if busy_s is None else busy_s)
        if not equal:
            one.is_wrong = True
            self._alarm = f"{device} gives wrong answers"
            return
        if one.model.observed(now, records, seconds) or not self._probing.is_planned(device):
            self._alarm = f"{device} was measured"

    # What it answers.

    @property
    def option(self) -> Option:
        """What is chosen at present."""
        return self._option

    def wants(self, device: str) -> bool:
        """Whether the device could win, so that a context on it is worth being made, or kept."""
        one = self._devices[device]
        return one.chance.is_there or self._decided_at - one.wanted_at < _KEEP_WANTED_S

    def is_due(self, now: float) -> bool:
        """Whether it is time to decide: each second, and soon after something happened. Cheap; ask after each batch."""
        passed = now - self._decided_at
        if passed >= self._settings.interval_s:
            return True
        if passed < self._settings.alarm_s:
            return False
        if self._alarm or now >= self._steadiness.due_at:
            return True
        if now - self._looked_at < _LOOK_S:
            return False
        self._looked_at = now
        return self._load.has_left(now, is_dear=self._option.device != self._cpu)

    def probe(self, now: float) -> Probe | None:
        """A shadow run that is wanted now and can be paid, if there is one. Its outcome goes to `probed`."""
        for name, device in self._devices.items():
            if name != self._option.device and device.is_usable:
                wanted = self._probing.next(now, name, device.model)
                if wanted is not None:
                    return wanted
        return None

    def decide(self, now: float) -> Decision:
        """Choose anew, and say why."""
        inputs = self._load.inputs(now, self._patience.seconds(now), self._option.wait_s, self._states())
        question = self._judge.question(self._load, inputs, self._guard.part(now))
        rivals = [
            name
            for name in self._devices
            if name != self._cpu and self._is_sound(name) and not self._trouble.is_out(now, name)
        ]
        judged = self._judge.judged(now, self._devices, self._cpu, rivals, self._load, question)
        standing = {name: choosing.standing_of(outlook) for name, outlook in judged.items()}
        self._look_for_chances(now, standing, question)
        left = self._option.device
        chosen, code = self._choose(now, standing, rivals)
        if chosen != left:
            self._switch(now, left, standing, code)
        self._is_promised = chosen in standing and standing[chosen].candidate.is_feasible
        if chosen in standing:
            self._option = standing[chosen].candidate.option
        self._decided_at = now
        self._alarm = ""
        return Decision(
            now,
            self._stage,
            self._option,
            code,
            reason_for(code, chosen, left, standing, self._devices, question),
            inputs,
            tuple(one for outlook in judged.values() for one in outlook.first(_SHOWN)),
            chosen != left,
            tuple(report(now, one, standing, question) for one in self._devices.values()),
            question.limit_s,
        )

    def _states(self) -> dict[str, DeviceState]:
        return {name: device.state for name, device in self._devices.items()}

    def _is_sound(self, name: str) -> bool:
        """Whether the device works, is known, and can be within the budget at all."""
        device = self._devices[name]
        return device.is_usable and device.model.known and device.fixed_s <= self._budget_s

    def _look_for_chances(self, now: float, standing: dict[str, Standing], question: Question) -> None:
        """Which devices could win, and what has to be measured for that."""
        cpu = standing.get(self._cpu)
        for name, device in self._devices.items():
            if device.spec.kind != "cpu":
                device.chance = never_win.chance(device.spec, standing.get(name), cpu, question)
                if device.chance.is_there or name == self._option.device:
                    device.wanted_at = now
            if name == self._option.device or not device.is_usable:
                self._probing.drop(name)
            elif device.model.is_thin or device.model.age_s(now) > self._settings.stale_s:
                # What was seen long ago need not be true any more: only the floor rules a device out.
                if device.spec.kind == "cpu" or never_win.chance(device.spec, None, cpu, question).is_there:
                    self._probing.plan(now, name, self._worth_probing(device, question))
                else:
                    self._probing.drop(name)

    def _worth_probing(self, device: WatchedDevice, question: Question) -> int:
        """About how many records a batch would have there; on the CPU few, as its time is the pipeline's own."""
        records = question.rate_planned * self._budget_s / 2
        service = device.model.service()
        if device.spec.kind == "cpu" and service is not None:
            records = service.records_low / 8
        return int(2 ** bucket_of(max(1, round(records))))

    def _measure_others_again(self, now: float, changed: str) -> None:
        """What made one device slower may concern the others: those that could win are measured again."""
        for name, device in self._devices.items():
            if name not in (changed, self._cpu, self._option.device) and device.is_usable and device.chance.is_there:
                self._probing.plan(now, name, self._option.records_max)

    def _choose(self, now: float, standing: dict[str, Standing], rivals: list[str]) -> tuple[str, ReasonCode]:
        current = self._option.device
        can_be = {name: one for name, one in standing.items() if name == self._cpu or name in rivals}
        if self._cpu in can_be and can_be[self._cpu].candidate.load >= self._settings.stable_load:
            # A device that made trouble is better than a CPU that falls behind, if it can be used at all.
            can_be |= {name: one for name, one in standing.items() if self._is_sound(name)}
        if self._cpu not in can_be:
            return (current, "held") if current in can_be else (self._cpu, "unknown")
        if current not in can_be:
            code: ReasonCode = "breach" if self._devices[current].is_usable else "error"
            self._steadiness.settle()
            return choosing.winner(can_be, self._cpu), code
        is_dwelling = current == self._cpu and now - self._left_for_money_at < self._settings.dwell_s
        chosen, code = choosing.follow(
            now,
            current,
            choosing.winner(can_be, self._cpu),
            can_be,
            self._steadiness,
            is_dwelling=is_dwelling,
            is_backlog=self._load.is_backlog,
            waited_s=self._load.waited_s,
        )
        return chosen, code if chosen != self._cpu or current != self._cpu or rivals else self._why_cpu(now, code)

    def _why_cpu(self, now: float, code: ReasonCode) -> ReasonCode:
        """The reason where nothing but the CPU could be chosen."""
        others = [device for device in self._devices.values() if device.spec.kind != "cpu"]
        if others and not any(device.chance.is_there for device in others):
            return "never-win"
        if any(self._trouble.is_out(now, device.spec.name) for device in others):
            return "dwell"
        if any(device.is_usable for device in others):
            return "unknown"
        return code if code in ("slo-infeasible", "backlog") else "no-device"

    def _switch(self, now: float, left: str, standing: dict[str, Standing], code: ReasonCode) -> None:
        self._switched_at = now
        if code in ("error", "breach"):
            return
        was_good = standing[left].candidate.is_feasible
        if left != self._cpu and was_good:
            self._left_for_money_at = now
            self._patience.came_down(now)
        elif left == self._cpu and not was_good:
            self._patience.went_up(now)
