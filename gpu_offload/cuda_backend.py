"""An NVIDIA device through CuPy: the one module that touches CUDA, and only in a device's process.

One batch at a time, on one stream: copies in, the stage's function, copies out, and a wait for an event. Workers' slots
are pinned where the driver allows it, so that a copy is one transfer. What copies go into is allocated once and grows
in powers of two.

Where exact answers are promised: CuPy's own operators are a kernel each, so that nothing is contracted across them, but
kernels of a user's need `options=("--fmad=false",)`. What differs between NumPy and a device all the same (floats out
of an integer's range, indices out of bounds, sums of floats) stands in docs/devices.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy.typing as npt

from millstream.gpu_offload.array_calls import Function, called, device_function, joined_offsets
from millstream.gpu_offload.backend import (
    FunctionError,
    NotLoadableError,
    OutOfDeviceMemoryError,
    Resident,
    StickyError,
    UnavailableDeviceError,
)
from millstream.gpu_offload.slots import Bytes, Segment
from millstream.processor.event_log import EventLog
from millstream.processor.offloading import ArrayColumns, StageDefinition, Text

_log: Final = EventLog(logging.getLogger("millstream.device"))
_MEMORY_ALLOCATION: Final = 2  # cudaErrorMemoryAllocation
_INSTALL: Final = "pip install 'millstream[gpu-cu12]', or 'millstream[gpu-cu13]' where the driver is 580 or newer"


class CudaBackend:
    """`Backend` of the CUDA device with this number. Raises UnavailableDeviceError with one line that says why not."""

    def __init__(self, number: int) -> None:
        self._cupy = cupy = _imported()
        _check(cupy, number)
        self._device = cupy.cuda.Device(number)
        self._device.use()
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.done = cupy.cuda.Event(disable_timing=True)
        _check_compiler(cupy)
        name = cupy.cuda.runtime.getDeviceProperties(number)["name"].decode()
        self.description = f"cuda:{number} {name}"

    def load(self, stage: StageDefinition, resident: Resident) -> CudaRunner:
        cupy = self._cupy
        # Stages warm up in a thread, and the current device is a thread's own.
        self._device.use()
        with self.stream:
            try:
                sent = [{name: cupy.asarray(array) for name, array in arrays.items()} for arrays in resident]
                self.stream.synchronize()
                function = device_function(stage, _namespace(cupy), sent)
            except Exception as error:
                raise self.translated(error, stage) from error
        return CudaRunner(self, cupy, stage, function)

    def attach(self, memory: Bytes) -> Callable[[], None]:
        runtime = self._cupy.cuda.runtime
        try:
            runtime.hostRegister(memory.ctypes.data, memory.nbytes, 0)
        except runtime.CUDARuntimeError as error:
            _log.warning("device.memory_not_pinned", reason=error)
            return lambda: None
        return lambda: runtime.hostUnregister(memory.ctypes.data)

    def free(self) -> None:
        self._cupy.get_default_memory_pool().free_all_blocks()

    def translated(self, error: Exception, stage: StageDefinition) -> Exception:
        """An error of CUDA's, CuPy's or the user's as one of ours."""
        cuda = self._cupy.cuda
        if isinstance(error, FunctionError | NotLoadableError | OutOfDeviceMemoryError | StickyError):
            return error
        if isinstance(error, MemoryError) or getattr(error, "status", None) == _MEMORY_ALLOCATION:
            return OutOfDeviceMemoryError(f"stage {stage.name!r}: the device's memory does not suffice")
        if isinstance(error, cuda.compiler.CompileException) or type(error).__name__ == "NVRTCError":
            return NotLoadableError(f"stage {stage.name!r}: its kernels cannot be compiled: {_first_line(error)}")
        if isinstance(error, cuda.runtime.CUDARuntimeError | cuda.driver.CUDADriverError) or _is_of_numba(error):
            return StickyError(f"{type(error).__name__}: {_first_line(error)}")
        return FunctionError(f"stage {stage.name!r}: its function raised {type(error).__name__}")


class CudaRunner:
    """One stage on the device, with the buffers that its batches are copied into."""

    def __init__(self, backend: CudaBackend, cupy: Any, stage: StageDefinition, function: Function) -> None:
        self._backend = backend
        self._cupy = cupy
        self._stage = stage
        self._function = function
        self._buffers: dict[str, Any] = {}

    def run(self, segments: Sequence[Segment]) -> None:
        backend = self._backend
        with backend.stream:
            try:
                answer = called(self._stage, self._guarded, self._sent(segments))
                # Answers have to live until they are copied.
                kept = self._received(answer, segments)
                backend.done.record(backend.stream)
                backend.done.synchronize()
                del kept
            except Exception as error:
                self._settle()
                raise backend.translated(error, self._stage) from error

    def _guarded(self, columns: ArrayColumns) -> Mapping[str, Any]:
        try:
            return self._function(columns)
        except Exception as error:
            raise self._backend.translated(error, self._stage) from error

    def _settle(self) -> None:
        """After an error nothing is to read or write slots any more; a device that cannot say so is lost."""
        try:
            self._backend.stream.synchronize()
        except Exception as error:
            raise StickyError(f"{type(error).__name__}: {_first_line(error)}") from error

    def _sent(self, segments: Sequence[Segment]) -> ArrayColumns:
        first = segments[0].columns
        columns: dict[str, Any] = {}
        for name in first:
            parts = [segment.columns[name] for segment in segments]
            if isinstance(parts[0], Text):
                offsets = parts[0].offsets if len(parts) == 1 else joined_offsets([part.offsets for part in parts])
                data = self._copied(f"{name} data", [part.data for part in parts])
                columns[name] = Text(self._copied(f"{name} offsets", [offsets]), data)
            else:
                columns[name] = self._copied(name, parts)
        masks = {
            name: self._copied(f"{name} valid", [segment.columns.masks[name] for segment in segments])
            for name in first.masks
        }
        return ArrayColumns(columns, masks, sum(segment.rows for segment in segments))

    def _copied(self, place: str, parts: Sequence[npt.NDArray[Any]]) -> Any:
        """The parts one behind the other in the buffer of this place."""
        rows = sum(len(part) for part in parts)
        buffer = self._buffers.get(place)
        if buffer is None or len(buffer) < rows:
            capacity = 1 << max(rows - 1, 0).bit_length()
            buffer = self._buffers[place] = self._cupy.empty((capacity, *parts[0].shape[1:]), parts[0].dtype)
        at = 0
        for part in parts:
            if len(part):
                buffer[at : at + len(part)].set(part, stream=self._backend.stream)
            at += len(part)
        return buffer[:rows]

    def _received(self, answer: Mapping[str, Any], segments: Sequence[Segment]) -> list[Any]:
        arrays = []
        for column in self._stage.adds:
            array = self._cupy.ascontiguousarray(
                self._cupy.asarray(answer[column.name]).astype(column.dtype, copy=False)
            )
            arrays.append(array)
            at = 0
            for segment in segments:
                if segment.rows:
                    part = array[at : at + segment.rows]
                    part.get(stream=self._backend.stream, out=segment.outputs[column.name], blocking=False)
                at += segment.rows
        return arrays


def _imported() -> Any:
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
        raise UnavailableDeviceError("NUMBA_ENABLE_CUDASIM is set, so kernels would be simulated: unset it")
    try:
        import cupy
    except ImportError as error:
        if "libcuda" in str(error):
            raise UnavailableDeviceError("there is no NVIDIA driver (libcuda.so.1 is missing)") from error
        raise UnavailableDeviceError(f"CuPy cannot be imported ({_first_line(error)}): {_INSTALL}") from error
    return cupy


def _check(cupy: Any, number: int) -> None:
    runtime = cupy.cuda.runtime
    driver, built_for = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if driver == 0:
        raise UnavailableDeviceError("there is no NVIDIA driver: install one (525 or newer, 580 for CUDA 13)")
    if driver // 1000 < built_for // 1000:
        raise UnavailableDeviceError(
            f"the NVIDIA driver is too old: it knows CUDA {_version(driver)}, and CuPy is for {_version(built_for)}: "
            f"update the driver, or {_INSTALL}"
        )
    try:
        devices = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise UnavailableDeviceError(f"CUDA finds no device ({_first_line(error)})") from error
    if number >= devices:
        raise UnavailableDeviceError(f"there is no device cuda:{number}; CUDA sees {devices}")


def _check_compiler(cupy: Any) -> None:
    """Compile and run one small kernel, for which the compiler has to be there."""
    try:
        if int(cupy.arange(4).sum()) != 6:
            raise UnavailableDeviceError("the device cannot add: it is damaged, or its driver is")
    except (RuntimeError, ImportError, OSError) as error:
        if "nvrtc" in str(error).lower():
            raise UnavailableDeviceError(f"CUDA's compiler (NVRTC) is missing: {_INSTALL}") from error
        raise UnavailableDeviceError(f"the device does not work: {_first_line(error)}") from error


def _namespace(cupy: Any) -> Any:
    """What array functions get as `xp`: CuPy lacks parts of the array API, which the wrapper adds."""
    try:
        import array_api_compat.cupy
    except ImportError:
        return cupy
    return array_api_compat.cupy


def _is_of_numba(error: Exception) -> bool:
    return type(error).__name__ in ("CudaAPIError", "CudaDriverError", "LinkerError")


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__
