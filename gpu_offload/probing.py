"""When a device that is not in use is measured: by shadow runs of batches that were answered already.

A probe is worth it where a device is not known or known from long ago, and could win if it were as good as can be. Its
time is paid from a purse that fills with one percent of the time, so probing never takes more than that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.gpu_offload.decision import Probe
from millstream.gpu_offload.planner_settings import PlannerSettings
from millstream.gpu_offload.service_model import KNOWN_SAMPLES, ServiceModel

_PURSE_MAX_S = 1.0
_ANSWER_WITHIN_S = 1.0


@dataclass(slots=True)
class _Purse:
    """Seconds that may be spent on one device."""

    filled_at: float
    seconds: float = 0.0
    asked_at: float | None = None
    sizes: tuple[int, ...] = ()
    missing: dict[int, int] = field(default_factory=dict)


class Probing:
    """What to probe, device by device. Pure: told the time and what was seen."""

    def __init__(self, settings: PlannerSettings) -> None:
        self._settings = settings
        self._purses: dict[str, _Purse] = {}

    def plan(self, now: float, device: str, records: int) -> None:
        """A device that could win should be known at about this batch size, and at a smaller one for the slope."""
        purse = self._purses.setdefault(device, _Purse(now))
        sizes = tuple(sorted({max(1, records), max(1, records // 8)}, reverse=True))
        if purse.sizes != sizes or not any(purse.missing.values()):
            purse.sizes = sizes
            purse.missing = dict.fromkeys(sizes, KNOWN_SAMPLES)

    def drop(self, device: str) -> None:
        """Nothing need be known of this device for now."""
        if device in self._purses:
            self._purses[device].missing = {}

    def is_planned(self, device: str) -> bool:
        """Whether there are probes still to be run."""
        return device in self._purses and any(self._purses[device].missing.values())

    def next(self, now: float, device: str, model: ServiceModel) -> Probe | None:
        """The next probe, if there is one to be run and it can be paid; at most one at a time."""
        purse = self._purses.get(device)
        if purse is None or not self.is_planned(device):
            return None
        self._fill(now, purse)
        if purse.asked_at is not None and now - purse.asked_at < _ANSWER_WITHIN_S:
            return None
        records = next(size for size in purse.sizes if purse.missing.get(size))
        service = model.service()
        needed_s = service.p50_s(records) if service is not None else 0.0
        if purse.seconds <= 0.0 or purse.seconds < min(needed_s, _PURSE_MAX_S):
            return None
        purse.asked_at = now
        return Probe(device, records, "not known yet" if service is None else "known from long ago")

    def _fill(self, now: float, purse: _Purse) -> None:
        purse.seconds = min(_PURSE_MAX_S, purse.seconds + self._settings.probe_share * (now - purse.filled_at))
        purse.filled_at = now

    def ran(self, now: float, device: str, seconds: float) -> None:
        """A probe took so long. What it took too much is worked off before the next one."""
        purse = self._purses.setdefault(device, _Purse(now))
        self._fill(now, purse)
        purse.seconds -= seconds
        purse.asked_at = None
        for size in purse.sizes:
            if purse.missing.get(size):
                purse.missing[size] -= 1
                break
