"""All options of one device with what they would come to, and which of them is the best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millstream.gpu_offload.curve import Floats
from millstream.gpu_offload.decision import Candidate, DeviceSpec, Option
from millstream.gpu_offload.question import Question


@dataclass(slots=True)
class Outlook:
    """Arrays of length n, one place for each option. `p50_s`, `p99_s`, `late_share` and `by_replay` a replay changes.

    With a backlog the times are those until it is cleared.
    """

    spec: DeviceSpec
    question: Question
    records_max: Floats
    wait_s: Floats
    p50_s: Floats
    p99_s: Floats
    busy: Floats
    load: Floats
    cost_per_million: Floats
    late_share: Floats
    by_replay: npt.NDArray[np.bool_]

    def feasible(self) -> npt.NDArray[np.bool_]:
        """Which options keep the budget, or clear the backlog in time, bool[n]. Of replayed ones only those count."""
        question = self.question
        if question.backlog:
            return question.rate_planned / np.maximum(self.load, 1e-12) >= question.drain_rate
        good = (self.load <= question.settings.load_max) & (self.p99_s <= question.limit_s)
        return good & self.by_replay if self.by_replay.any() else good

    def best(self) -> int:
        """The place of the best option.

        Of those that cost hardly more than the cheapest feasible one, the one with the lowest p99; with a backlog the
        fastest. Where none is feasible, the one with the lowest p99, and of such as grow without bound the fastest.
        """
        good = np.flatnonzero(self.feasible())
        if not len(good):
            # What was not replayed where others were may only look good.
            judged = np.flatnonzero(self.by_replay) if self.by_replay.any() else np.arange(len(self.p99_s))
            keys = (self.wait_s[judged], self.cost_per_million[judged], self.load[judged], self.p99_s[judged])
            return int(judged[np.lexsort(keys)[0]])
        costs = self.cost_per_million[good]
        near = good[costs <= self.question.settings.near_cheapest * costs.min()]
        keys = (
            self.records_max[near],
            self.wait_s[near],
            self.cost_per_million[near],
            self.load[near] if self.question.backlog else self.p99_s[near],
        )
        return int(near[np.lexsort(keys)[0]])

    def cheapest_cost(self) -> float | None:
        """What the cheapest feasible option costs, None where there is none."""
        good = self.feasible()
        return float(self.cost_per_million[good].min()) if good.any() else None

    def candidate(self, place: int) -> Candidate:
        """One of them by itself."""
        return Candidate(
            Option(self.spec.name, int(self.records_max[place]), float(self.wait_s[place])),
            float(self.p50_s[place]),
            float(self.p99_s[place]),
            float(self.busy[place]) / self.spec.servers,
            float(self.load[place]),
            float(self.cost_per_million[place]),
            float(self.late_share[place]),
            self._verdict(place),
            "replay" if self.by_replay[place] else "formula",
        )

    def _verdict(self, place: int) -> str:
        question = self.question
        load = float(self.load[place])
        if question.backlog:
            return "ok" if bool(self.feasible()[place]) else "is too slow"
        if load >= question.settings.stable_load:
            return "does not keep up"
        if load > question.settings.load_max:
            return "is too busy"
        return "ok" if self.p99_s[place] <= question.limit_s else "is too slow"

    def first(self, many: int) -> list[Candidate]:
        """The best one, and next to it the cheapest feasible ones."""
        best = self.best()
        order = np.lexsort((self.wait_s, self.p99_s, self.cost_per_million))
        alike = order[self.feasible()[order] & (order != best)]
        return [self.candidate(int(place)) for place in (best, *alike[: many - 1])]
