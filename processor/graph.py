"""A pipeline as data: what each stage was asked to do, and how they hang together.

Nothing here runs or checks anything. `Pipeline` collects these while the user writes; `build` checks them all and
turns them into stages that run.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from millstream.processor.offloading import Offloadable
from millstream.processor.policy import ErrorPolicy

Function: TypeAlias = Callable[..., Any]
Start: TypeAlias = Literal["earliest", "latest"] | datetime
OnOffsetLost: TypeAlias = Literal["stop", "earliest", "latest"]
Tombstones: TypeAlias = Literal["pass", "drop", "deliver"]
Guarantee: TypeAlias = Literal["exactly-once", "at-least-once"]
MissingTopics: TypeAlias = Literal["wait", "create", "fail"]


class Keep(enum.Enum):
    """The type of `KEEP`, so that a type checker tells it from a key or a header."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP
"""What `write` does with key, headers and timestamp unless told otherwise: those of the input record."""


class Unset(enum.Enum):
    """The type of `UNSET`: an argument that was not given, where None means something."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET

HeadersMapping: TypeAlias = Mapping[str, bytes | str | None]
HeadersAnswer: TypeAlias = HeadersMapping | Sequence[tuple[str, bytes | str | None]]
KeyAnswer: TypeAlias = bytes | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """Read topics, as values of one type."""

    topics: tuple[str, ...]
    type: Any
    format: str | None
    start: Start
    on_offset_lost: OnOffsetLost
    tombstones: Tombstones
    name: str | None = None
    on_error: ErrorPolicy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSpec:
    """Call a function for each value. A `split` is a filter whose refused values have a branch of their own."""

    kind: Literal["filter", "split", "map", "flat_map"]
    function: Function
    concurrency: int
    timeout_ms: int | None
    name: str | None = None
    on_error: ErrorPolicy | None = None
    stage_timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsSpec:
    """Call a function for each batch, with columns."""

    kind: Literal["columns", "filter_columns"]
    function: Function
    reads: Mapping[str, Any] | None
    adds: Mapping[str, Any]
    type: Any
    name: str | None = None
    on_error: ErrorPolicy | None = None
    stage_timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSpec:
    """Compute added columns for each batch, on the CPU or on a device."""

    offloadable: Offloadable
    latency_budget_ms: float
    reads: Mapping[str, Any] | None
    adds: Mapping[str, Any]
    type: Any
    device: Literal["optional", "required"]
    memory_mb: int
    exclusive: bool
    name: str | None = None
    on_error: ErrorPolicy | None = None
    stage_timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSpec:
    """Write to a topic; with a function as `topic`, to one of `topics`."""

    topic: str | Function
    topics: tuple[str, ...]
    key: KeyAnswer | Function | Keep
    headers: HeadersAnswer | Function | Keep
    timestamp: int | Function | Keep
    type: Any
    format: str | None
    name: str | None = None
    on_error: ErrorPolicy | None = None
    stage_timeout_s: float | None = None


Spec: TypeAlias = ReadSpec | EventSpec | ColumnsSpec | OffloadSpec | WriteSpec


@dataclass(frozen=True, slots=True)
class Node:
    """A stage and where its input comes from: output `port` of node `parent`; a read has none.

    Ports: 0 is what a stage lets through; 1 is what a split refuses.
    """

    spec: Spec
    parent: int | None = None
    port: int = 0


@dataclass(frozen=True, slots=True)
class Graph:
    """All stages of a pipeline; parents come before their children."""

    nodes: tuple[Node, ...]

    def children(self, index: int, port: int) -> tuple[int, ...]:
        """The stages that take what node `index` gives out at `port`."""
        return tuple(i for i, node in enumerate(self.nodes) if node.parent == index and node.port == port)

    def ports(self, index: int) -> int:
        """How many outputs a node has."""
        spec = self.nodes[index].spec
        if isinstance(spec, WriteSpec):
            return 0
        return 2 if isinstance(spec, EventSpec) and spec.kind == "split" else 1

    def names(self) -> tuple[str, ...]:
        """One name for each stage: the given one, or its kind and its function's name, numbered where that repeats."""
        seen: dict[str, int] = {}
        names = []
        for node in self.nodes:
            name = node.spec.name
            if name is None:
                base = _described(node.spec)
                seen[base] = seen.get(base, 0) + 1
                name = base if seen[base] == 1 else f"{base} {seen[base]}"
            names.append(name)
        return tuple(names)


class Draft:
    """A graph that is still being written."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, spec: Spec, parent: int | None = None, port: int = 0) -> int:
        """Put a stage behind a port of another; answers the stage's number."""
        self._nodes.append(Node(spec, parent, port))
        return len(self._nodes) - 1

    def graph(self) -> Graph:
        """What has been written so far."""
        return Graph(tuple(self._nodes))


def _described(spec: Spec) -> str:
    if isinstance(spec, ReadSpec):
        return f"read {', '.join(map(str, spec.topics))}"
    if isinstance(spec, WriteSpec):
        return f"write {spec.topic if isinstance(spec.topic, str) else ', '.join(map(str, spec.topics))}"
    if isinstance(spec, OffloadSpec):
        return _with_function("offload", spec.offloadable.cpu or spec.offloadable.array)
    return _with_function(spec.kind, spec.function)


def _with_function(kind: str, function: Function | None) -> str:
    function_name = getattr(function, "__name__", "<lambda>")
    return kind if function_name == "<lambda>" else f"{kind} {function_name}"
