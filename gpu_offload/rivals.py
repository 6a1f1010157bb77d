"""What a planner is compared with: choices that are fixed, and the rules of other systems.

They are told what a planner is told, and are asked what a planner is asked. All but the last stay on one device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Protocol

from millstream.gpu_offload.decision import DeviceState, Option, Probe


class Chooser(Protocol):
    """What a trial needs of a planner; `Planner` says what each of these means.

    One with an attribute `listens` that is False is told of no batches and no arrivals: that saves a trial's time.
    """

    def arrived(self, now: float, records: int, byte_count: int = 0) -> None: ...
    def backlog(self, now: float, records: int) -> None: ...
    def observed(self, now: float, device: str, records: int, seconds: float) -> None: ...
    def calibrated(self, now: float, device: str, samples: Iterable[tuple[int, float]]) -> None: ...
    def latency(self, now: float, seconds: float) -> None: ...
    def device_state(self, now: float, device: str, state: DeviceState, why: str = "") -> None: ...
    def is_due(self, now: float) -> bool: ...
    def decide(self, now: float) -> object: ...
    @property
    def option(self) -> Option: ...
    def wants(self, device: str) -> bool: ...
    def probe(self, now: float) -> Probe | None: ...
    def probed(self, now: float, device: str, records: int, seconds: float, equal: bool) -> None: ...


class Fixed:
    """One option throughout, as a user would set it by hand; and what the other rivals have in common.

    With a wait it is the rule of Triton's dynamic batcher: a batch goes at its preferred size or after a fixed delay.
    """

    listens: bool = False

    def __init__(self, option: Option) -> None:
        self._option = option

    def arrived(self, now: float, records: int, byte_count: int = 0) -> None:
        pass

    def backlog(self, now: float, records: int) -> None:
        pass

    def observed(self, now: float, device: str, records: int, seconds: float) -> None:
        pass

    def calibrated(self, now: float, device: str, samples: Iterable[tuple[int, float]]) -> None:
        pass

    def latency(self, now: float, seconds: float) -> None:
        pass

    def device_state(self, now: float, device: str, state: DeviceState, why: str = "") -> None:
        pass

    def is_due(self, now: float) -> bool:
        return False

    def decide(self, now: float) -> object:
        return None

    @property
    def option(self) -> Option:
        return self._option

    def wants(self, device: str) -> bool:
        return device == self._option.device

    def probe(self, now: float) -> Probe | None:
        return None

    def probed(self, now: float, device: str, records: int, seconds: float, equal: bool) -> None:
        pass


class Aimd(Fixed):
    """Clipper's rule (NSDI'17): the batch grows by a step while all is in time, and shrinks by a tenth when not.

    It finds a batch size, never a device. Batches wait for nothing, as there.
    """

    listens = True
    STEP: Final = 10
    BACK_OFF: Final = 0.9
    MARGIN: Final = 0.92

    def __init__(self, device: str, budget_s: float) -> None:
        super().__init__(Option(device, self.STEP, 0.0))
        self._limit_s = self.MARGIN * budget_s
        self._size = float(self.STEP)

    def observed(self, now: float, device: str, records: int, seconds: float) -> None:
        """Clipper looks at the time of the batch, not at that of its events."""
        if seconds > self._limit_s:
            self._size = max(1.0, self._size * self.BACK_OFF)
        elif records >= self._option.records_max:
            self._size += self.STEP
        self._option = Option(self._option.device, int(self._size), 0.0)


class Saber(Fixed):
    """SABER's rule (SIGMOD'16): batches of a fixed size go to the device with the higher measured throughput.

    A device takes a batch that it is not the best for when the best one has more waiting than would take it longer.
    After ten on one device the next goes to the other, so that both stay measured. There is no budget in it.
    """

    listens = True
    THRESHOLD: Final = 10
    REFRESH_S: Final = 1.0

    def __init__(self, first: Option, second: Option) -> None:
        super().__init__(first)
        self._options = {first.device: first, second.device: second}
        self._seconds_per_event = dict.fromkeys(self._options, math.nan)
        self._sums = {name: [0.0, 0.0] for name in self._options}
        self._refreshed_at = 0.0
        self._run_length = 0
        self._waiting = 0
        self._ready = {first.device}

    def device_state(self, now: float, device: str, state: DeviceState, why: str = "") -> None:
        if state == "ready":
            self._ready.add(device)
        else:
            self._ready.discard(device)

    def backlog(self, now: float, records: int) -> None:
        self._waiting = records

    def wants(self, device: str) -> bool:
        return device in self._options

    def observed(self, now: float, device: str, records: int, seconds: float) -> None:
        sums = self._sums[device]
        sums[0] += seconds
        sums[1] += records
        self._run_length += 1
        if now - self._refreshed_at >= self.REFRESH_S or math.isnan(self._seconds_per_event[device]):
            self._refresh(now)
        self._option = self._options[self._next(device)]

    def _refresh(self, now: float) -> None:
        self._refreshed_at = now
        for name, (seconds, records) in self._sums.items():
            if records:
                self._seconds_per_event[name] = seconds / records
                self._sums[name] = [0.0, 0.0]

    def _next(self, last: str) -> str:
        ready = [name for name in self._options if name in self._ready]
        if len(ready) < 2:
            return ready[0] if ready else last
        other = next(name for name in ready if name != last)
        if self._run_length >= self.THRESHOLD or math.isnan(self._seconds_per_event[other]):
            self._run_length = 0
            return other
        best = min(ready, key=lambda name: self._seconds_per_event[name])
        slow = next(name for name in ready if name != best)
        takes = self._options[slow].records_max * self._seconds_per_event[slow]
        chosen = slow if self._waiting * self._seconds_per_event[best] > takes else best
        if chosen != last:
            self._run_length = 0
        return chosen
