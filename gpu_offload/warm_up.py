"""Making a stage ready in the device's process, away from the batches of others: load, compile, send, measure, prove.

A stage is proven when the device's answer for made-up rows is that of the reference. A function may refuse such rows
(an unknown currency, say). Then there is no proof before real batches have been compared.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millstream.gpu_offload.array_calls import called
from millstream.gpu_offload.backend import (
    Backend,
    FunctionError,
    NotLoadableError,
    OutOfDeviceMemoryError,
    Resident,
    Runner,
)
from millstream.gpu_offload.canary import difference, made_up_rows, plain_rows
from millstream.gpu_offload.protocol import StageOrder, Timing
from millstream.gpu_offload.references import NotByNameError
from millstream.gpu_offload.slots import Segment, bytes_needed
from millstream.gpu_offload.stage_order import definition_from
from millstream.processor.offloading import ArrayColumns, StageDefinition

# Few, since the reference may take milliseconds for each.
CANARY_ROWS: Final = 65
_BUCKETS: Final = tuple(8**power for power in range(6))
_RUNS: Final = 30
_RUNS_DROPPED: Final = 5
_BUCKET_S_MAX: Final = 0.25
_BUCKET_BYTES_MAX: Final = 64 << 20
_SEED: Final = 20


class WrongAnswerError(NotLoadableError):
    """The device's answer is not the reference's."""


@dataclass(frozen=True, slots=True)
class Canary:
    """Made-up rows whose answer is known."""

    stage: StageDefinition
    rows: ArrayColumns
    expected: Mapping[str, npt.NDArray[Any]]

    def prove(self, runner: Runner) -> None:
        """Compute the rows. Raises WrongAnswerError, and what the runner raises."""
        segment = with_outputs(self.stage, self.rows)
        runner.run([segment])
        found = difference(self.stage, self.expected, segment.outputs, self.stage.offloadable.equality)
        if found is not None:
            raise WrongAnswerError(f"stage {self.stage.name!r}: the device's answer is not the CPU's: {found}")


@dataclass(frozen=True, slots=True)
class WarmStage:
    """A stage that is ready."""

    definition: StageDefinition
    runner: Runner
    canary: Canary | None
    timings: tuple[Timing, ...]


def warm_up(backend: Backend, order: StageOrder) -> WarmStage:
    """Make the stage ready. Raises NotLoadableError with one line for the user, and StickyError."""
    try:
        definition = definition_from(order)
        resident = _resident(definition)
        runner = backend.load(definition, resident)
        canary = _canary(definition, resident)
        timings = () if canary is None else _timings(definition, runner)
        if canary is not None:
            canary.prove(runner)
    except NotByNameError as error:
        raise NotLoadableError(f"stage {order.name!r}: {error}") from error
    except (FunctionError, OutOfDeviceMemoryError) as error:
        raise NotLoadableError(str(error)) from error
    return WarmStage(definition, runner, canary, timings)


def with_outputs(stage: StageDefinition, columns: ArrayColumns) -> Segment:
    """The columns with new room for what the stage adds."""
    return Segment(
        columns, {column.name: np.zeros((columns.rows, *column.shape), column.dtype) for column in stage.adds}
    )


def _resident(definition: StageDefinition) -> Resident:
    make = definition.offloadable.resident
    return () if make is None else (make(),)


def _canary(definition: StageDefinition, resident: Resident) -> Canary | None:
    for rows in (made_up_rows(definition, CANARY_ROWS, _SEED), plain_rows(definition, CANARY_ROWS)):
        try:
            answer = called(definition, lambda columns: definition.offloadable.compute(columns, resident), rows)
        except FunctionError:
            continue
        return Canary(definition, rows, {name: np.asarray(array) for name, array in answer.items()})
    return None


def _timings(definition: StageDefinition, runner: Runner) -> tuple[Timing, ...]:
    """What batches of growing size take, until one takes too long to be repeated."""
    timings = []
    for rows in _BUCKETS:
        if bytes_needed(definition, rows, 0) > _BUCKET_BYTES_MAX:
            break
        segment = with_outputs(definition, made_up_rows(definition, rows, _SEED))
        try:
            runs = _runs(runner, segment)
        except (OutOfDeviceMemoryError, FunctionError):
            break
        kept = runs[_RUNS_DROPPED:]
        if not kept:
            break
        timings.append(Timing(rows, float(np.quantile(kept, 0.5)), float(np.quantile(kept, 0.99))))
    return tuple(timings)


def _runs(runner: Runner, segment: Segment) -> list[float]:
    runs: list[float] = []
    while len(runs) < _RUNS and sum(runs) < _BUCKET_S_MAX:
        begun = time.perf_counter()
        runner.run([segment])
        runs.append(time.perf_counter() - begun)
    return runs
