"""A device as the planner of one stage sees it."""

from __future__ import annotations

import math
from typing import Final

from millstream.gpu_offload.cost import Usage
from millstream.gpu_offload.decision import DeviceSpec, DeviceState
from millstream.gpu_offload.never_win import Chance
from millstream.gpu_offload.service_model import ServiceModel

RECORDS_MAX: Final = 65536


class WatchedDevice:
    """What it is, how it is, and what was measured of it."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.spec = spec
        self.model = ServiceModel()
        self.state: DeviceState = "ready" if spec.kind == "cpu" else "absent"
        self.why = ""
        self.is_wrong = False
        """Whether it gave an answer that the CPU does not give."""
        self.chance = Chance(spec.kind == "cpu", "")
        self.wanted_at = -math.inf
        self.usage = Usage()
        self._cap = RECORDS_MAX
        self._cap_until = -math.inf

    def now_is(self, now: float, state: DeviceState, why: str) -> bool:
        """Take note of a state; whether it is another one. A device that begins anew is trusted anew."""
        is_other = state != self.state
        if state == "absent" or (state == "ready" and is_other):
            self.is_wrong = False
        self.state, self.why = state, why
        if self.spec.charge == "leased":
            if state == "absent":
                self.usage.let_go(now)
            else:
                self.usage.hold(now)
        return is_other

    def cap(self, now: float, records_max: int, for_s: float) -> None:
        """For a while no larger batches than this."""
        self._cap, self._cap_until = max(1, records_max), now + for_s

    def records_cap(self, now: float) -> int:
        """The largest batch that may be given to it."""
        return self._cap if now < self._cap_until else RECORDS_MAX

    @property
    def fixed_s(self) -> float:
        """What a batch takes at least: the smallest one as measured, or the floor that is taken for granted."""
        service = self.model.service()
        return self.spec.fixed_floor_s if service is None else service.p50_s(1)

    @property
    def is_usable(self) -> bool:
        """Whether batches may go to it, as far as its own state says."""
        return self.state == "ready" and not self.is_wrong
