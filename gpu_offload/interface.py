"""The seam between a pipeline and a device: what an offloadable stage is, and what a device does with a batch.

Nothing here runs on a GPU, and nothing in millstream imports a GPU library. A stage is a pure function of columns, so
the choice of a device never enters exactly-once: the same batch can be computed again elsewhere before its commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Columns: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""Arrays of one length by name."""


@dataclass(frozen=True, slots=True)
class Equality:
    """How far a device's answer may be from the CPU's. Both 0: bit for bit."""

    relative: float = 0.0
    absolute: float = 0.0

    def holds(self, expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> bool:
        """Whether `found` may stand for `expected`. NaN equals NaN."""
        if expected.dtype != found.dtype or expected.shape != found.shape:
            return False
        if self.relative == self.absolute == 0.0:
            return expected.tobytes() == found.tobytes()
        return bool(np.allclose(found, expected, rtol=self.relative, atol=self.absolute, equal_nan=True))


class OffloadStage(Protocol):
    """A column stage that may run on a device. `cpu` is always there: it is the reference and the fallback."""

    @property
    def name(self) -> str:
        """The stage's name in messages and metrics."""

    @property
    def latency_budget_ms(self) -> float:
        """What the stage may add to an event's latency, at p99."""

    @property
    def equality(self) -> Equality:
        """How the answers of devices are compared with the CPU's."""

    def cpu(self, columns: Columns) -> Columns:
        """The answer for a batch. Row by row independent: f(x ++ y) equals f(x) ++ f(y)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where batches go for now, and why. `reason` is a sentence with the numbers that led to it."""

    device: str
    batch_records_max: int
    wait_ms_max: float
    reason: str


class Device(Protocol):
    """Something that can compute a stage for a batch."""

    @property
    def name(self) -> str:
        """Such as `cpu` or `gpu-0`."""

    async def compute(self, stage: OffloadStage, columns: Columns) -> Columns:
        """The answer for a batch. Any error means that the batch is computed on the CPU instead."""
