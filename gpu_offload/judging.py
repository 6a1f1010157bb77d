"""All candidates of all devices, judged: by the formula, and by replay where there is a choice between devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from millstream.gpu_offload import candidates
from millstream.gpu_offload.candidates import RATE_MIN, Question, Recorded
from millstream.gpu_offload.choosing import Standing
from millstream.gpu_offload.decision import Candidate, Inputs
from millstream.gpu_offload.load import Load
from millstream.gpu_offload.planner_settings import PlannerSettings
from millstream.gpu_offload.replay import draw_luck
from millstream.gpu_offload.service_model import Service
from millstream.gpu_offload.watched_device import WatchedDevice

_RECORDED_MIN_S: Final = 0.25
# Recorded arrivals are moved together where they are fewer than this part of what has to be coped with.
_ENOUGH: Final = 0.8
_SHOWN: Final = 3


class Judge:
    """Puts the question of a decision, and judges the candidates by it."""

    def __init__(self, settings: PlannerSettings, budget_s: float, core_price_per_hour: float, seed: int) -> None:
        self._settings = settings
        self._budget_s = budget_s
        self._core_price_per_hour = core_price_per_hour
        self._luck = draw_luck(seed)

    def question(self, load: Load, inputs: Inputs) -> Question:
        """What candidates are to be judged by, under these inputs."""
        return Question(
            inputs.rate_planned,
            inputs.rate_now,
            inputs.backlog if load.is_backlog else 0,
            self._budget_s,
            self._settings.margin * self._budget_s,
            self._core_price_per_hour,
            self._settings,
        )

    def judged(
        self,
        now: float,
        devices: Mapping[str, WatchedDevice],
        cpu: str,
        rivals: Sequence[str],
        load: Load,
        question: Question,
    ) -> dict[str, list[Candidate]]:
        """Every known device's candidates; those of the CPU and its `rivals` are replayed where there are any."""
        services = {name: found for name, device in devices.items() if (found := device.model.service()) is not None}
        judged = {name: self._guessed(now, devices[name], found, question) for name, found in services.items()}
        recorded = None if question.backlog or cpu not in judged or not rivals else self._recorded(now, load, question)
        if recorded is not None:
            for name in (cpu, *rivals):
                judged[name] = candidates.replayed(devices[name].spec, services[name], judged[name], recorded, question)
        return judged

    def _guessed(self, now: float, device: WatchedDevice, service: Service, question: Question) -> list[Candidate]:
        choices = candidates.options(
            device.spec, service, self._budget_s, self._settings.stretch, device.records_cap(now)
        )
        return candidates.by_formula(device.spec, service, choices, question)

    def _recorded(self, now: float, load: Load, question: Question) -> Recorded | None:
        """Arrivals of the load at hand, moved together where more has to be coped with than came."""
        times, counts = load.arrivals.replayable(now, max(_RECORDED_MIN_S, load.arrivals.steady_s(now)))
        if len(times) < 2 or now <= times[0]:
            return None
        part = float(counts.sum()) / (now - float(times[0])) / max(question.rate_planned, RATE_MIN)
        return Recorded((times - times[0]) * (part if part < _ENOUGH else 1.0), counts, self._luck)


def shown(judged: Mapping[str, Sequence[Candidate]], standing: Mapping[str, Standing]) -> tuple[Candidate, ...]:
    """What is worth being kept of all candidates: each device's best, and those that come next to it."""
    kept: list[Candidate] = []
    for name, ones in judged.items():
        if name in standing:
            best = standing[name].candidate
            rest = sorted(
                (one for one in ones if one.option != best.option and one.by == best.by),
                key=lambda one: (not one.is_feasible, one.cost_per_million, one.p99_s),
            )
            kept += [best, *rest[: _SHOWN - 1]]
    return tuple(kept)
