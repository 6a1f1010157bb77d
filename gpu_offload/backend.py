"""What a device's process asks of the device itself; the simulated and the CUDA one implement it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from millstream.gpu_offload.slots import Bytes, Segment
from millstream.processor.errors import MillstreamError
from millstream.processor.offloading import StageDefinition

Resident: TypeAlias = Sequence[Mapping[str, Any]]
"""A stage's resident arrays as the last argument of its functions: one mapping, or nothing."""


class UnavailableDeviceError(MillstreamError):
    """There is no device that could be used; the message is one line that says why and what helps."""


class NotLoadableError(MillstreamError):
    """A stage cannot be computed on this device; the message is one line that says why and what helps."""


class OutOfDeviceMemoryError(MillstreamError):
    """The device's memory does not hold so many rows at once; fewer may go through."""


class StickyError(MillstreamError):
    """The device is in a state that only the end of this process can mend; nothing that it has computed counts."""


class FunctionError(MillstreamError):
    """A user's function raised, or answered what its stage does not declare. Quotes no value of a record."""


class Runner(Protocol):
    """A stage that is ready on the device."""

    def run(self, segments: Sequence[Segment]) -> None:
        """Compute all segments' rows as one batch and write into their outputs; back when that is done.

        Raises OutOfDeviceMemoryError, StickyError, FunctionError, or NotLoadableError for a kernel that only this batch
        needed; outputs are void then.
        """


class Backend(Protocol):
    """A device that has been opened."""

    @property
    def description(self) -> str:
        """Which device it is, in words."""

    def load(self, stage: StageDefinition, resident: Resident) -> Runner:
        """Make a stage ready: load, compile, send what is resident. Raises NotLoadableError, StickyError."""

    def attach(self, memory: Bytes) -> Callable[[], None]:
        """Batches will come in this memory from now on; answers what ends that."""

    def free(self) -> None:
        """Give back what is kept for later runs, after the memory did not suffice."""
