"""A device that is none: the stage's function on NumPy, and an answer as late as a law says.

What stays wrong with it: the function takes the CPU time that a device would not take, so that an answer can come later
than by the law, but never earlier.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

import numpy as np

from millstream.gpu_offload.array_calls import Function, called, device_function, joined, scatter
from millstream.gpu_offload.backend import OutOfDeviceMemoryError, Resident, StickyError
from millstream.gpu_offload.service_law import ServiceLaw
from millstream.gpu_offload.simulated_faults import Fault, FaultFile, FaultKind
from millstream.gpu_offload.slots import Bytes, Segment
from millstream.processor.offloading import StageDefinition, Text

_HANG_S: Final = 3600.0


class SimulatedBackend:
    """`Backend` by a law, with faults that a file switches."""

    def __init__(self, law: ServiceLaw, seed: int = 0, faults: Path | None = None) -> None:
        self._law = law
        self._random = np.random.default_rng(seed)
        self._faults = FaultFile(faults)
        self._begun_s = time.monotonic()

    @property
    def description(self) -> str:
        law = self._law
        return f"simulated: {law.fixed_s * 1e6:g} us a batch, {law.per_event_s * 1e6:g} us an event"

    def load(self, stage: StageDefinition, resident: Resident) -> SimulatedRunner:
        return SimulatedRunner(self, stage, numpy_function(stage, resident))

    def attach(self, memory: Bytes) -> Callable[[], None]:  # noqa: ARG002  # there is nothing to be pinned
        return lambda: None

    def free(self) -> None:
        pass

    def begin(self, rows: int, byte_count: int) -> _Run:
        """One run of so many rows begins, for which so many bytes have to get there."""
        now = time.monotonic()
        fault = self._faults.next()
        service_s = self._law.draw_s(self._random, rows, byte_count, at_s=now - self._begun_s)
        if fault is not None and fault.kind is FaultKind.SLOW:
            service_s *= fault.factor
        return _Run(fault, now + service_s)


class SimulatedRunner:
    """One stage on a simulated device."""

    def __init__(self, backend: SimulatedBackend, stage: StageDefinition, function: Function) -> None:
        self._backend = backend
        self._stage = stage
        self._function = function

    def run(self, segments: Sequence[Segment]) -> None:
        rows = sum(segment.rows for segment in segments)
        run = self._backend.begin(rows, sum(map(_byte_count, segments)))
        run.check_memory(rows)
        scatter(called(self._stage, self._function, joined(segments)), segments)
        run.end(segments)


class _Run:
    """One run: when it is to end, and what goes wrong with it."""

    def __init__(self, fault: Fault | None, end_s: float) -> None:
        self._fault = fault
        self._end_s = end_s

    def check_memory(self, rows: int) -> None:
        fault = self._fault
        if fault is not None and fault.kind is FaultKind.OUT_OF_MEMORY and rows > fault.rows:
            raise OutOfDeviceMemoryError(f"the simulated device has no memory for {rows} rows")

    def end(self, segments: Sequence[Segment]) -> None:
        """Go wrong where that is due, and wait for the end of the run."""
        kind = self._fault.kind if self._fault is not None else None
        if kind is FaultKind.KILLED:
            _wait_until(time.monotonic() + max(0.0, self._end_s - time.monotonic()) / 2)
            os.kill(os.getpid(), signal.SIGKILL)
        if kind is FaultKind.HANG:
            _hang()
        if kind is FaultKind.STICKY:
            raise StickyError("the simulated device is lost (an illegal address, say)")
        if kind is FaultKind.WRONG:
            _falsify(segments)
        _wait_until(self._end_s)


def numpy_function(stage: StageDefinition, resident: Resident) -> Function:
    """What stands for the stage's kernels where there is no device. Raises NotLoadableError where it has none."""
    if stage.offloadable.gpu is None:
        return device_function(stage, np, resident)
    return lambda columns: stage.offloadable.compute(columns, resident)


def _byte_count(segment: Segment) -> int:
    columns = segment.columns.values()
    return sum(len(column.data) if isinstance(column, Text) else column.nbytes for column in columns)


def _falsify(segments: Sequence[Segment]) -> None:
    for segment in segments:
        for output in segment.outputs.values():
            # All of it, as where a device answers what lay in its memory; one wrong row is for shadow runs to find.
            output[...] = ~output if output.dtype == np.bool_ else output * 2 + 1


def _wait_until(end_s: float) -> None:
    left_s = end_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)


def _hang() -> NoReturn:
    while True:
        time.sleep(_HANG_S)
