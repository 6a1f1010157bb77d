"""Where a device overtakes the CPU: lines through measured times, and where they cross. Pure.

A batch of n takes a + b*n on either side. Between measured sizes times are taken to lie on a straight line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of batches of `records`, in seconds."""

    records: int
    p50_s: float
    p99_s: float
    runs: int


@dataclass(frozen=True, slots=True)
class Line:
    """`residual` is the median of the relative errors."""

    fixed_s: float
    per_event_s: float
    residual: float

    def at(self, records: float) -> float:
        return self.fixed_s + self.per_event_s * records


@dataclass(frozen=True, slots=True)
class Crossover:
    """From how many records on the device is quicker: as its first and last sizes predict, and as measured.

    None: not within the sizes that were measured. `is_predicted` is whether the two are within a factor of two.
    """

    predicted: float | None
    measured: float | None
    is_predicted: bool


def summary(records: int, seconds: Sequence[float]) -> Measured:
    """The times of equal batches as one point. There must be some."""
    p50, p99 = np.quantile(seconds, [0.5, 0.99])
    return Measured(records, float(p50), float(p99), len(seconds))


def line(points: Sequence[Measured]) -> Line:
    """Least squares of the relative errors of the medians, neither part below 0. At least one point is needed."""
    sizes = np.array([float(point.records) for point in points])
    times = np.array([point.p50_s for point in points])
    if len(points) == 1:
        return Line(0.0, float(times[0] / sizes[0]), 0.0)
    weights = 1.0 / times
    matrix = np.stack([weights, sizes * weights], axis=1)
    fixed_s, per_event_s = np.linalg.lstsq(matrix, np.ones(len(points)), rcond=None)[0]
    if fixed_s < 0.0:
        fixed_s, per_event_s = 0.0, float(np.sum(sizes / times) / np.sum((sizes / times) ** 2))
    elif per_event_s < 0.0:
        fixed_s, per_event_s = float(np.sum(1.0 / times) / np.sum(1.0 / times**2)), 0.0
    residual = float(np.median(np.abs((fixed_s + per_event_s * sizes) / times - 1.0)))
    return Line(float(fixed_s), float(per_event_s), residual)


def crossover(cpu: Sequence[Measured], gpu: Sequence[Measured]) -> Crossover:
    """The prediction is that of a planner before it has measured much: from every other size."""
    measured = _measured_crossing(cpu, gpu)
    low, high = gpu[0].records, min(cpu[-1].records, gpu[-1].records)
    predicted = _crossing(line(cpu[::2]), line(gpu[::2]), low, high)
    if measured is None or predicted is None:
        return Crossover(predicted, measured, measured is None and predicted is None)
    return Crossover(predicted, measured, abs(math.log2(predicted / measured)) <= 1.0)


def _crossing(cpu: Line, gpu: Line, low: float, high: float) -> float | None:
    if gpu.at(low) <= cpu.at(low):
        return low
    if gpu.per_event_s >= cpu.per_event_s:
        return None
    found = (gpu.fixed_s - cpu.fixed_s) / (cpu.per_event_s - gpu.per_event_s)
    return found if found <= high else None


def _measured_crossing(cpu: Sequence[Measured], gpu: Sequence[Measured]) -> float | None:
    """The least size from which on the device is quicker at every size that both have measured."""
    times = {point.records: point.p50_s for point in cpu}
    both = [(point.records, point.p50_s, times[point.records]) for point in gpu if point.records in times]
    if not both or both[-1][1] > both[-1][2]:
        return None
    last_slower = max((place for place, (_, own, other) in enumerate(both) if own > other), default=-1)
    if last_slower < 0:
        return float(both[0][0])
    (left, own_left, cpu_left), (right, own_right, cpu_right) = both[last_slower : last_slower + 2]
    gap_left, gap_right = own_left - cpu_left, own_right - cpu_right
    return left + (right - left) * gap_left / (gap_left - gap_right)
