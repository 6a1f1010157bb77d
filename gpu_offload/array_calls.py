"""Calling a stage's function for several workers' rows at once, on any namespace of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from millstream.gpu_offload.backend import (
    FunctionError,
    NotLoadableError,
    OutOfDeviceMemoryError,
    Resident,
    StickyError,
)
from millstream.gpu_offload.slots import Segment
from millstream.processor.offloading import ArrayColumns, ColumnSchema, StageDefinition, Text

Function = Callable[[ArrayColumns], Mapping[str, Any]]


def device_function(stage: StageDefinition, xp: Any, resident: Resident) -> Function:
    """The stage's form for a device: what its `gpu` factory answers, or `array` with this `xp`.

    Raises NotLoadableError where it has neither.
    """
    functions = stage.offloadable
    if functions.gpu is not None:
        return functions.gpu(*resident)
    array = functions.array
    if array is None:
        raise NotLoadableError(
            f"stage {stage.name!r} has no form for a device: give array= (array API) or gpu= (a factory of kernels)"
        )
    return lambda columns: array(xp, columns, *resident)


def called(stage: StageDefinition, function: Function, columns: ArrayColumns) -> Mapping[str, Any]:
    """The function's answer, where it has what the stage adds. Raises FunctionError; the device's errors pass."""
    try:
        answer = function(columns)
    except (FunctionError, NotLoadableError, OutOfDeviceMemoryError, StickyError):
        # The device's own function has found out already what is wrong.
        raise
    except MemoryError as error:
        raise OutOfDeviceMemoryError(f"stage {stage.name!r}: no memory for {columns.rows} rows") from error
    except Exception as error:
        # Its message may quote a record.
        raise FunctionError(f"stage {stage.name!r}: its function raised {type(error).__name__}") from error
    for column in stage.adds:
        _check(stage, column, answer, columns.rows)
    return answer


def _check(stage: StageDefinition, column: ColumnSchema, answer: Any, rows: int) -> None:
    if not isinstance(answer, Mapping) or column.name not in answer:
        raise FunctionError(f"stage {stage.name!r}: its function answered no column {column.name!r}")
    found = answer[column.name]
    shape, wanted = tuple(getattr(found, "shape", ())), (rows, *column.shape)
    if shape != wanted:
        raise FunctionError(f"stage {stage.name!r}: column {column.name!r} has shape {shape} and not {wanted}")
    # Other namespaces put their own name before that of the type.
    dtype = np.dtype(str(found.dtype).rpartition(".")[2])
    if not np.can_cast(dtype, column.dtype, "same_kind"):
        raise FunctionError(
            f"stage {stage.name!r}: column {column.name!r} is {dtype} and not {column.dtype}: convert it yourself"
        )


def joined(segments: Sequence[Segment]) -> ArrayColumns:
    """The rows of all segments, one after the other; of a single one without a copy."""
    first = segments[0].columns
    if len(segments) == 1:
        return first
    columns = {name: _joined([segment.columns[name] for segment in segments]) for name in first}
    masks = {name: np.concatenate([segment.columns.masks[name] for segment in segments]) for name in first.masks}
    return ArrayColumns(columns, masks, sum(segment.rows for segment in segments))


def scatter(answer: Mapping[str, npt.NDArray[Any]], segments: Sequence[Segment]) -> None:
    """Write NumPy arrays of all rows into the segments' outputs."""
    at = 0
    for segment in segments:
        for name, output in segment.outputs.items():
            np.copyto(output, answer[name][at : at + segment.rows], casting="same_kind")
        at += segment.rows


def _joined(parts: Sequence[Any]) -> Any:
    if not isinstance(parts[0], Text):
        return np.concatenate(parts)
    return Text(joined_offsets([part.offsets for part in parts]), np.concatenate([part.data for part in parts]))


def joined_offsets(parts: Sequence[npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    """Offsets of texts whose data stand one behind the other. Each part's data begins where its offsets say 0."""
    offsets = np.empty(sum(len(part) - 1 for part in parts) + 1, np.int32)
    offsets[0] = at = base = 0
    for part in parts:
        offsets[at + 1 : at + len(part)] = part[1:] + np.int32(base)
        at += len(part) - 1
        base += int(part[-1])
    return offsets
