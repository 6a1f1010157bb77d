"""A stage in virtual time, compiled: arrivals become batches, and batches take as long as a law says.

A batch starts when there are `records_max` events or its oldest has waited for `wait_s`, and the device is free; what
has come by then goes with it, up to `records_max`. That is the rule of an offload stage's gathering.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from millstream.gpu_offload.service_law import ServiceLaw
from millstream.gpu_offload.traces import GRID_S, Trace
from millstream.processor.kernels import kernel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_NOISE: Final = 1 << 16
_BATCHES: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Conditions:
    """A law over a trace's time, by the hundredth of a second: float64[n] and bool[n]; `noise` is by the batch."""

    fixed_s: Floats
    per_event_s: Floats
    is_down: npt.NDArray[np.bool_]
    noise: Floats

    def seconds(self, records: int, at_s: float, number: int) -> float:
        """How long a batch takes that begins then, the `number`th one."""
        place = min(max(int(at_s / GRID_S), 0), len(self.fixed_s) - 1)
        usual = self.fixed_s[place] + self.per_event_s[place] * records
        return float(usual * self.noise[number % len(self.noise)])

    def down(self, at_s: float) -> bool:
        return bool(self.is_down[min(max(int(at_s / GRID_S), 0), len(self.is_down) - 1)])


def conditions(law: ServiceLaw, trace: Trace, seed: int) -> Conditions:
    """A law as it is at each time of a trace."""
    at_s = np.arange(len(trace.rates)) * GRID_S
    slower = np.array([law.slowness_at(at) for at in at_s])
    return Conditions(
        law.fixed_s * slower,
        (law.per_event_s + law.per_byte_s * trace.bytes_per_event) * slower,
        np.array([law.is_down(at) for at in at_s]),
        law.noise(np.random.default_rng(seed), _NOISE),
    )


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches in their order, an array for each thing: `starts_s` and `ends_s`, and `records`."""

    starts_s: Floats
    ends_s: Floats
    records: Ints


class VirtualStage:
    """Where a stage is in its trace. One batch is in service at a time, whichever the device."""

    def __init__(self, arrivals: Floats) -> None:
        self._arrivals = arrivals
        self._starts = np.empty(_BATCHES)
        self._ends = np.empty(_BATCHES)
        self._records = np.empty(_BATCHES, dtype=np.int64)
        self.head = 0
        self.free_s = 0.0
        self.count = 0

    def run(
        self, until_s: float, device: Conditions, records_max: int, wait_s: float, most: int = _BATCHES
    ) -> tuple[Batches, bool]:
        """Start the batches that start before `until_s`, at most so many. Whether the device was down at the last.

        The batch that finds the device down is not among the answer, and its events still wait: `free_s` is then
        when it began.
        """
        starts, ends, records = self._starts[:most], self._ends[:most], self._records[:most]
        done, self.head, self.free_s, is_down = _run(
            self._arrivals, self.head, self.free_s, until_s, device.fixed_s, device.per_event_s, device.is_down,
            device.noise, self.count, records_max, wait_s, starts, ends, records,
        )  # fmt: skip
        self.count += done
        return Batches(starts[:done].copy(), ends[:done].copy(), records[:done].copy()), is_down

    def waiting(self, at_s: float) -> int:
        """How many events have come and are in no batch yet."""
        return int(np.searchsorted(self._arrivals, at_s, side="right")) - self.head

    @property
    def is_done(self) -> bool:
        return self.head >= len(self._arrivals)


@kernel
def _run(
    arrivals: Floats,
    head: int,
    free_s: float,
    until_s: float,
    fixed_s: Floats,
    per_event_s: Floats,
    is_down: npt.NDArray[np.bool_],
    noise: Floats,
    number: int,
    records_max: int,
    wait_s: float,
    starts: Floats,
    ends: Floats,
    records: Ints,
) -> tuple[int, int, float, bool]:
    total = len(arrivals)
    grid = len(fixed_s)
    done = 0
    while head < total and done < len(starts):
        closed = arrivals[head] + wait_s
        if head + records_max <= total:
            closed = min(closed, arrivals[head + records_max - 1])
        start = max(closed, free_s)
        if start >= until_s:
            break
        place = min(max(int(start * 100.0), 0), grid - 1)
        if is_down[place]:
            return done, head, start, True
        last = head + 1
        end_of_batch = min(total, head + records_max)
        while last < end_of_batch and arrivals[last] <= start:
            last += 1
        taken = last - head
        seconds = (fixed_s[place] + per_event_s[place] * taken) * noise[(number + done) % len(noise)]
        free_s = start + seconds
        starts[done] = start
        ends[done] = free_s
        records[done] = taken
        done += 1
        head = last
    return done, head, free_s, False
