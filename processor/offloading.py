"""Stages that may run on a device: what a user says of one, and the seam to whatever decides where it runs.

A stage is a pure function of columns, row by row, so the choice of a device never enters exactly-once: the same batch
can be computed again elsewhere before its commit. Nothing here knows any device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = Any
"""An array of NumPy's, CuPy's, or of whatever else speaks the array API."""

CPU: Final = "cpu"


@dataclass(frozen=True, slots=True)
class Text:
    """n texts: text i is `data[offsets[i]:offsets[i + 1]]`. int32[n + 1] and uint8[offsets[n]]."""

    offsets: Array
    data: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1


class ArrayColumns(Mapping[str, Any]):
    """n rows as columns on one device: arrays of length n, and `Text` for fields that are text.

    `valid` tells where an optional field has a value; where not, the array holds 0.
    """

    __slots__ = ("_columns", "_rows", "_valid")

    def __init__(self, columns: Mapping[str, Array | Text], valid: Mapping[str, Array], rows: int) -> None:
        self._columns = columns
        self._valid = valid
        self._rows = rows

    @property
    def rows(self) -> int:
        """How many rows there are. (`len` of a mapping is that of its names.)"""
        return self._rows

    @property
    def masks(self) -> Mapping[str, Array]:
        """The bools of `valid`, of the optional fields alone."""
        return self._valid

    def valid(self, name: str) -> Array:
        """Where an optional field has a value, as bool[n]. Raises KeyError for a field that is required."""
        return self._valid[name]

    def __getitem__(self, name: str) -> Any:
        try:
            return self._columns[name]
        except KeyError:
            known = ", ".join(map(repr, self._columns)) or "none"
            raise KeyError(f"no column {name!r}; the stage reads {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


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


EXACT: Final = Equality()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloadable:
    """A function of columns in the forms in which it can run. All of them have to treat each row by itself.

    `cpu(columns)` is the reference and the fallback: `ArrayColumns` of NumPy arrays in, a dict of arrays out.
    `array(xp, columns)` is written for the array API and runs on NumPy and on a device; without `cpu` it is the
    reference as well, with `xp` NumPy. `gpu(resident)` is a factory that is called once in the device's process and
    answers a `function(columns)` for columns on the device; it may compile kernels. It goes before `array` there.
    `resident()` answers arrays by name (a model, an index) that all forms get as their last argument: loaded once in
    each process, sent to a device once, and again when `version` changes. `equality` is how far a device's answer
    may be from the reference.
    Functions have to be importable by name, because the device's process loads them by themselves.
    """

    cpu: Callable[..., Mapping[str, Any]] | None = None
    array: Callable[..., Mapping[str, Any]] | None = None
    gpu: Callable[..., Callable[..., Mapping[str, Any]]] | None = None
    resident: Callable[[], Mapping[str, npt.NDArray[Any]]] | None = None
    version: str = ""
    equality: Equality = EXACT

    def compute(self, columns: ArrayColumns, resident: Sequence[Mapping[str, Any]] = ()) -> Mapping[str, Any]:
        """The reference's answer: what `cpu` makes of these columns of NumPy arrays, or `array` with NumPy as `xp`.

        `resident` has the resident arrays, where there are any, and nothing else.
        """
        if self.cpu is not None:
            return self.cpu(columns, *resident)
        assert self.array is not None
        return self.array(np, columns, *resident)


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """One column: fixed-width with a dtype in native byte order (and a shape per row), or text."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    is_text: bool = False
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class StageDefinition:
    """All that a device has to know of a stage. Columns that are added are fixed-width and required."""

    name: str
    offloadable: Offloadable
    reads: Sequence[ColumnSchema]
    adds: Sequence[ColumnSchema]
    latency_budget_ms: float
    device: Literal["optional", "required"] = "optional"
    memory_mb: int = 0
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """Where the next batch goes, at most so many records at a time."""

    device: str
    records_max: int


@dataclass(frozen=True, slots=True)
class Gathering:
    """How long a batch may wait for company: until there are `records`, or the oldest is `wait_s` old."""

    records: int = 1
    wait_s: float = 0.0


NO_WAIT: Final = Gathering()
ON_CPU: Final = Route(CPU, 2**31)


class Placement(Protocol):
    """Decides where a stage's batches are computed, and has them computed on a device. It never raises."""

    @property
    def gathering(self) -> Gathering:
        """How the input of the stage is to be gathered for now."""

    def arrived(self, rows: int, byte_count: int) -> None:
        """So many rows have come to the stage."""

    def route(self, rows: int) -> Route:
        """Where a batch of so many rows goes."""

    async def compute(self, route: Route, columns: ArrayColumns) -> Mapping[str, npt.NDArray[Any]] | None:
        """The device's answer; None for any trouble whatever: then the caller computes the same rows on the CPU."""

    def refused(self, route: Route, why: str) -> None:
        """What `compute` answered there cannot be used, and the rows were computed on the CPU."""

    def observed(
        self,
        route: Route,
        rows: int,
        seconds: float,
        compute_s: float,
        columns: Callable[[], ArrayColumns],
        answer: Mapping[str, Any],
    ) -> None:
        """A batch was computed there, in so many seconds from bytes to bytes, `compute_s` of them in the function or
        on the way to the device. What the columns were can be asked for at once and kept, and so can the answer."""

    def waited(self, seconds: float) -> None:
        """A batch is through all stages; its oldest record had come in so many seconds before."""

    def backlog(self, records: int) -> None:
        """So many records are known to wait in the log for now."""


class OnCpu:
    """The placement where there is nothing to decide."""

    gathering: Final = NO_WAIT

    def arrived(self, rows: int, byte_count: int) -> None:
        pass

    def route(self, rows: int) -> Route:  # noqa: ARG002  # always the same
        return ON_CPU

    async def compute(self, route: Route, columns: ArrayColumns) -> None:  # noqa: ARG002  # never called
        raise AssertionError("nothing but the CPU is here")

    def refused(self, route: Route, why: str) -> None:
        pass

    def observed(
        self,
        route: Route,
        rows: int,
        seconds: float,
        compute_s: float,
        columns: Callable[[], ArrayColumns],
        answer: Mapping[str, Any],
    ) -> None:
        pass

    def waited(self, seconds: float) -> None:
        pass

    def backlog(self, records: int) -> None:
        pass
