"""All devices' options, judged: by the formula, and by replay where there is a choice between devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from millstream.gpu_offload import candidates
from millstream.gpu_offload.candidates import Recorded
from millstream.gpu_offload.decision import Inputs
from millstream.gpu_offload.load import Load
from millstream.gpu_offload.outlook import Outlook
from millstream.gpu_offload.planner_settings import PlannerSettings
from millstream.gpu_offload.question import RATE_MIN, Question
from millstream.gpu_offload.replay import draw_luck
from millstream.gpu_offload.watched_device import WatchedDevice

_RECORDED_MIN_S: Final = 0.25
# Recorded arrivals are moved together where they are fewer than this part of what has to be coped with.
_ENOUGH: Final = 0.8


class Judge:
    """Puts the question of a decision, and judges every device's options by it."""

    def __init__(self, settings: PlannerSettings, budget_s: float, core_price_per_hour: float, seed: int) -> None:
        self._settings = settings
        self._budget_s = budget_s
        self._core_price_per_hour = core_price_per_hour
        self._luck = draw_luck(seed)

    def question(self, load: Load, inputs: Inputs, careful: float) -> Question:
        """What options are to be judged by, under these inputs; `careful` is the part of the limit to be used."""
        return Question(
            max(RATE_MIN, inputs.rate_planned),
            max(RATE_MIN, load.rate_paid),
            inputs.backlog if load.is_backlog else 0,
            self._budget_s,
            careful * self._settings.margin * self._budget_s,
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
    ) -> dict[str, Outlook]:
        """Every known device's outlook; the best of the CPU and of its `rivals` are replayed where there are any."""
        services = {name: found for name, device in devices.items() if (found := device.model.service()) is not None}
        judged = {}
        for name, service in services.items():
            device = devices[name]
            sizes = candidates.sizes_up_to(service, device.records_cap(now), question)
            options = candidates.grid(sizes, self._budget_s)
            judged[name] = candidates.by_formula(device.spec, service, options, question)
        recorded = None if question.backlog or cpu not in judged or not rivals else self._recorded(now, load, question)
        if recorded is not None:
            for name in (cpu, *rivals):
                candidates.replay_best(judged[name], services[name], recorded)
        return judged

    def _recorded(self, now: float, load: Load, question: Question) -> Recorded | None:
        """Arrivals of the load at hand, moved together where more has to be coped with than came."""
        times, counts = load.arrivals.replayable(now, max(_RECORDED_MIN_S, load.arrivals.steady_s(now)))
        if len(times) < 2 or times[-1] <= times[0]:
            return None
        part = float(counts[1:].sum()) / float(times[-1] - times[0]) / question.rate_planned
        is_enough = part >= _ENOUGH
        return Recorded((times - times[0]) * (1.0 if is_enough else part), counts, self._luck, is_enough)
