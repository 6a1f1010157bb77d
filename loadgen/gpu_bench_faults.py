"""A stage that can be made to fail on the device, in the ways of which real ones fail: for E7 of `make gpu-bench`.

On a CUDA device the rows carry the fault; a simulated one is told by a file. The CPU computes the same rows unharmed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from millstream.gpu_offload.simulated_faults import Fault, FaultKind, write_fault
from millstream.processor.offloading import ArrayColumns, ColumnSchema, Offloadable, StageDefinition

# No numbers that made-up rows could have.
NONE, ILLEGAL, MEMORY, SPIN = 0, 1_000_001, 1_000_002, 1_000_003
_KINDS: Final = {ILLEGAL: FaultKind.STICKY, MEMORY: FaultKind.OUT_OF_MEMORY, SPIN: FaultKind.HANG}
_ILLEGAL: Final = 'extern "C" __global__ void illegal() { *(volatile int*)8 = 1; }'
_SPIN: Final = 'extern "C" __global__ void spin(volatile int* flag) { while (*flag == 0) {} }'


def tripled(columns: ArrayColumns) -> dict[str, Any]:
    """The reference."""
    return {"tripled": columns["number"] * 3}


def tripled_on_gpu() -> Callable[[ArrayColumns], dict[str, Any]]:
    """The form for CUDA, which does what the first row's `fault` says."""
    import cupy

    illegal, spin = cupy.RawKernel(_ILLEGAL, "illegal"), cupy.RawKernel(_SPIN, "spin")

    def function(columns: ArrayColumns) -> dict[str, Any]:
        fault = int(columns["fault"][0])
        if fault == ILLEGAL:
            illegal((1,), (1,), ())
        elif fault == MEMORY:
            cupy.empty(1 << 44, cupy.uint8)
        elif fault == SPIN:
            spin((1,), (1,), (cupy.zeros(1, cupy.int32),))
        return {"tripled": columns["number"] * 3}

    return function


FAULTY: Final = StageDefinition(
    "faulty",
    Offloadable(cpu=tripled, gpu=tripled_on_gpu),
    [ColumnSchema("number", np.dtype(np.int64)), ColumnSchema("fault", np.dtype(np.int32))],
    [ColumnSchema("tripled", np.dtype(np.int64))],
    10.0,
)


def rows_with(fault: int, rows: int, faults: Path | None) -> ArrayColumns:
    """Rows that bring the fault about; with a simulated device the next batch fails, whatever is in it."""
    if faults is not None and fault != NONE:
        write_fault(faults, Fault(kind=_KINDS[fault], batches=1))
    columns = {"number": np.arange(rows, dtype=np.int64), "fault": np.full(rows, fault, np.int32)}
    return ArrayColumns(columns, {}, rows)
