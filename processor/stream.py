"""Values on their way between two stages: what a user can do with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, overload

from millstream.processor.graph import (
    KEEP,
    UNSET,
    ColumnsSpec,
    Draft,
    EventSpec,
    HeadersAnswer,
    Keep,
    KeyAnswer,
    OffloadSpec,
    Spec,
    WriteSpec,
)
from millstream.processor.offloading import ArrayColumns, Offloadable
from millstream.processor.policy import ErrorPolicy
from millstream.processor.record import Record
from millstream.processor.stages.column_calls import Columns

T = TypeVar("T")
U = TypeVar("U")

CONCURRENCY = 64


class Stream(Generic[T]):
    """Values on their way between two stages. A stream may be used several times; each use sees every value.

    A function that requires a second argument is given the `Record` that its value came from. It may be sync or async;
    of an async one at most `concurrency` calls are under way at a time, each for at most `timeout_ms`, and what they
    answer keeps the order of the input.
    `stage_timeout_s` is for how long a worker may hang in a call of the stage, where not as the pipeline says.
    """

    def __init__(self, draft: Draft, node: int, port: int) -> None:
        self._draft = draft
        self._node = node
        self._port = port

    @overload
    def filter(
        self,
        function: Callable[[T], object],
        *,
        concurrency: int = ...,
        timeout_ms: int | None = ...,
        stage_timeout_s: float | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[T]: ...

    @overload
    def filter(
        self,
        function: Callable[[T, Record], object],
        *,
        concurrency: int = ...,
        timeout_ms: int | None = ...,
        stage_timeout_s: float | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[T]: ...

    def filter(
        self,
        function: Callable[..., object],
        *,
        concurrency: int = CONCURRENCY,
        timeout_ms: int | None = None,
        stage_timeout_s: float | None = None,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[T]:
        """Only the values for which the function answers something true. Their bytes stay as they are."""
        return self._stream(self._event("filter", function, concurrency, timeout_ms, stage_timeout_s, name, on_error))

    @overload
    def split(
        self,
        function: Callable[[T], object],
        *,
        concurrency: int = ...,
        timeout_ms: int | None = ...,
        stage_timeout_s: float | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> tuple[Stream[T], Stream[T]]: ...

    @overload
    def split(
        self,
        function: Callable[[T, Record], object],
        *,
        concurrency: int = ...,
        timeout_ms: int | None = ...,
        stage_timeout_s: float | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> tuple[Stream[T], Stream[T]]: ...

    def split(
        self,
        function: Callable[..., object],
        *,
        concurrency: int = CONCURRENCY,
        timeout_ms: int | None = None,
        stage_timeout_s: float | None = None,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> tuple[Stream[T], Stream[T]]:
        """The values for which the function answers something true, and the others. Tombstones go both ways."""
        node = self._event("split", function, concurrency, timeout_ms, stage_timeout_s, name, on_error)
        return self._stream(node), self._stream(node, port=1)

    @overload
    def map(
        self,
        function: Callable[[T], Awaitable[U]],
        *,
        concurrency: int = ...,
        timeout_ms: int | None = ...,
        stage_timeout_s: float | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[U]: ...

    @overload
    def map(
        self,
        function: Callable[[T], U],
        *,
        stage_timeout_s: float | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[U]: ...

    @overload
    def map(
        self,
        function: Callable[[T, Record], Awaitable[U]],
        *,
        concurrency: int = ...,
        timeout_ms: int | None = ...,
        stage_timeout_s: float | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[U]: ...

    @overload
    def map(
        self,
        function: Callable[[T, Record], U],
        *,
        stage_timeout_s: float | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[U]: ...

    def map(
        self,
        function: Callable[..., Any],
        *,
        concurrency: int = CONCURRENCY,
        timeout_ms: int | None = None,
        stage_timeout_s: float | None = None,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[Any]:
        """One new value for each. An answer of None is written as a tombstone; to drop a value, filter it.

        The function's return annotation decides the type that is written; without one the format of the input stays.
        """
        return self._stream(self._event("map", function, concurrency, timeout_ms, stage_timeout_s, name, on_error))

    @overload
    def flat_map(
        self,
        function: Callable[[T], Awaitable[Iterable[U]]],
        *,
        concurrency: int = ...,
        timeout_ms: int | None = ...,
        stage_timeout_s: float | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[U]: ...

    @overload
    def flat_map(
        self,
        function: Callable[[T], Iterable[U]],
        *,
        stage_timeout_s: float | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[U]: ...

    @overload
    def flat_map(
        self,
        function: Callable[[T, Record], Awaitable[Iterable[U]]],
        *,
        concurrency: int = ...,
        timeout_ms: int | None = ...,
        stage_timeout_s: float | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[U]: ...

    @overload
    def flat_map(
        self,
        function: Callable[[T, Record], Iterable[U]],
        *,
        stage_timeout_s: float | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[U]: ...

    def flat_map(
        self,
        function: Callable[..., Any],
        *,
        concurrency: int = CONCURRENCY,
        timeout_ms: int | None = None,
        stage_timeout_s: float | None = None,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[Any]:
        """Any number of new values for each, in the order of what the function answers: a list, or a generator."""
        return self._stream(self._event("flat_map", function, concurrency, timeout_ms, stage_timeout_s, name, on_error))

    @overload
    def columns(
        self,
        function: Callable[[Columns], Mapping[str, Any]],
        *,
        reads: Mapping[str, Any] | None = ...,
        adds: Mapping[str, Any] | None = ...,
        type: type[U],
        stage_timeout_s: float | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[U]: ...

    @overload
    def columns(
        self,
        function: Callable[[Columns], Mapping[str, Any]],
        *,
        reads: Mapping[str, Any] | None = ...,
        adds: Mapping[str, Any] | None = ...,
        type: object = ...,
        stage_timeout_s: float | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[T]: ...

    def columns(
        self,
        function: Callable[[Columns], Mapping[str, Any]],
        *,
        reads: Mapping[str, Any] | None = None,
        adds: Mapping[str, Any] | None = None,
        type: object = UNSET,  # noqa: A002  # the word that users look for
        stage_timeout_s: float | None = None,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[Any]:
        """Call the function once for a batch: columns in, a dict of columns out. No Python object per record.

        JSON: `reads` names the fields that the function gets (``{"amount": float}``; ``float | None`` where they may be
        missing or null), `adds` those that it has to answer besides. What it answers replaces the fields' values or is
        appended; every other byte of the value stays as it is. Fixed-width records: all fields are read by default, and
        `adds` extends the dtype. Raw bytes and text: ``columns.value`` in, ``{"value": ...}`` out. Tombstones pass.

        The function has to be pure and to treat each row by itself: when it raises, it is asked again about parts
        of the rows, until those at fault stand alone and all others go on. `type` is what values are from here on,
        where later stages need the added fields.
        """
        return self._stream(
            self._columns("columns", function, reads, adds or {}, type, stage_timeout_s, name, on_error)
        )

    def filter_columns(
        self,
        function: Callable[[Columns], Any],
        *,
        reads: Mapping[str, Any] | None = None,
        stage_timeout_s: float | None = None,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[T]:
        """Only the values for which the function's array of bools is true; `reads` as in `columns`."""
        return self._stream(
            self._columns("filter_columns", function, reads, {}, UNSET, stage_timeout_s, name, on_error)
        )

    def offload(
        self,
        function: Callable[[ArrayColumns], Mapping[str, Any]] | Offloadable,
        *,
        latency_budget_ms: float,
        reads: Mapping[str, Any] | None = None,
        adds: Mapping[str, Any],
        type: object = UNSET,  # noqa: A002  # the word that users look for
        device: Literal["optional", "required"] = "optional",
        memory_mb: int = 0,
        exclusive: bool = False,
        stage_timeout_s: float | None = None,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[Any]:
        """As `columns`, and it may run on a device: millstream measures, and decides where and in which batches.

        A plain function is the form for the CPU; `Offloadable` has others beside it. They get `ArrayColumns` and
        answer exactly the columns of `adds`, which are fixed-width and have a value in each row. `reads` is as in
        `columns`; text is a `Text`. Raw values are read as ``columns["value"]``, and
        ``adds={"value": dtype}`` puts items of a dtype in their place.

        `latency_budget_ms` is for the 99th percentile, from when a record was fetched to when the stage is done with
        it. `device="required"`: the stage's shards run only on nodes that have a device. `memory_mb` is what the stage
        takes of a device's memory beside its batches; `exclusive` lets no other stage have the same device.
        """
        offloadable = function if isinstance(function, Offloadable) else Offloadable(cpu=function)
        spec = OffloadSpec(
            offloadable=offloadable,
            latency_budget_ms=latency_budget_ms,
            reads=reads,
            adds=adds,
            type=type,
            device=device,
            memory_mb=memory_mb,
            exclusive=exclusive,
            name=name,
            on_error=on_error,
            stage_timeout_s=stage_timeout_s,
        )
        return self._stream(self._add(spec))

    def write(
        self,
        topic: str | Callable[[T], str] | Callable[[T, Record], str],
        *,
        topics: Sequence[str] = (),
        key: KeyAnswer | Callable[[T], KeyAnswer] | Callable[[T, Record], KeyAnswer] | Keep = KEEP,
        headers: HeadersAnswer | Callable[[T], HeadersAnswer] | Callable[[T, Record], HeadersAnswer] | Keep = KEEP,
        timestamp: int | Callable[[T], int] | Callable[[T, Record], int] | Keep = KEEP,
        type: object = UNSET,  # noqa: A002  # the word that users look for
        format: str | None = None,  # noqa: A002
        stage_timeout_s: float | None = None,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> None:
        """Write to a topic. Key, headers and timestamp are those of the input record unless given.

        `topic` may be a function; `topics` then lists all that it may answer. Functions are given the value, and its
        `Record` where they require a second argument. A key is bytes, str (as UTF-8) or None.
        Values that no stage has changed are written as the bytes that were read. Tombstones keep key, headers and
        timestamp, and go to all of `topics`.
        """
        spec = WriteSpec(
            topic=topic,
            topics=tuple(topics) or ((topic,) if isinstance(topic, str) else ()),
            key=key,
            headers=headers,
            timestamp=timestamp,
            type=type,
            format=format,
            name=name,
            on_error=on_error,
            stage_timeout_s=stage_timeout_s,
        )
        self._add(spec)

    def _event(
        self,
        kind: Literal["filter", "split", "map", "flat_map"],
        function: Callable[..., Any],
        concurrency: int,
        timeout_ms: int | None,
        stage_timeout_s: float | None,
        name: str | None,
        on_error: ErrorPolicy | None,
    ) -> int:
        spec = EventSpec(
            kind=kind,
            function=function,
            concurrency=concurrency,
            timeout_ms=timeout_ms,
            name=name,
            on_error=on_error,
            stage_timeout_s=stage_timeout_s,
        )
        return self._add(spec)

    def _columns(
        self,
        kind: Literal["columns", "filter_columns"],
        function: Callable[[Columns], Any],
        reads: Mapping[str, Any] | None,
        adds: Mapping[str, Any],
        type_: object,
        stage_timeout_s: float | None,
        name: str | None,
        on_error: ErrorPolicy | None,
    ) -> int:
        spec = ColumnsSpec(
            kind=kind,
            function=function,
            reads=reads,
            adds=adds,
            type=type_,
            name=name,
            on_error=on_error,
            stage_timeout_s=stage_timeout_s,
        )
        return self._add(spec)

    def _add(self, spec: Spec) -> int:
        return self._draft.add(spec, self._node, self._port)

    def _stream(self, node: int, port: int = 0) -> Stream[Any]:
        return Stream(self._draft, node, port)
