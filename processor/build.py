"""From what the user wrote to what runs: all checks, then codecs and stages. Mistakes are told all together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from millstream.processor import checks
from millstream.processor.built import DEFAULT_FIDELITY, BuiltPipeline, InputTopic, PipelineSettings
from millstream.processor.codecs.fidelity import Fidelity
from millstream.processor.codecs.json_values import JsonCodec
from millstream.processor.codecs.resolve import codec_for
from millstream.processor.errors import PipelineError
from millstream.processor.graph import (
    UNSET,
    ColumnsSpec,
    EventSpec,
    Graph,
    Keep,
    OffloadSpec,
    ReadSpec,
    Spec,
    WriteSpec,
)
from millstream.processor.interfaces import ValueCodec
from millstream.processor.layout_choice import LayoutError, layout_for
from millstream.processor.offload_checks import offload_mistakes
from millstream.processor.offload_choice import offload_columns
from millstream.processor.offloading import StageDefinition
from millstream.processor.policy import OnError, as_policy
from millstream.processor.program import CompiledProgram, Source, Stage, Step
from millstream.processor.signatures import (
    NOTHING,
    UNKNOWN,
    Shape,
    answer_type,
    element_type,
    is_generator,
    named,
    promises_nothing,
    shape_of,
)
from millstream.processor.stage_limits import watch_plan
from millstream.processor.stages.batch import Identity
from millstream.processor.stages.calls import Caller, WrongAnswerError
from millstream.processor.stages.column_calls import ColumnCaller
from millstream.processor.stages.columns import ColumnsStage, FilterColumnsStage, checked_mask
from millstream.processor.stages.encoding import Encoder
from millstream.processor.stages.events import FilterStage, FlatMapStage, MapStage, listing
from millstream.processor.stages.layouts import RawToFixedLayout
from millstream.processor.stages.offload import OffloadStage
from millstream.processor.stages.write import WriteStage, as_headers, as_key, as_timestamp
from millstream.processor.stalled import WatchPlan

__all__ = ["BuiltPipeline", "build"]


@dataclass(frozen=True, slots=True)
class _Channel:
    """What flows out of a stage: values of one type, as one codec reads and writes them."""

    type: Any
    codec: ValueCodec
    format: str
    read: ReadSpec


def build(name: str, settings: PipelineSettings, graph: Graph) -> BuiltPipeline:
    """Raises PipelineError with everything that is wrong."""
    builder = _Builder(name, settings, graph)
    built = builder.build()
    if builder.mistakes:
        raise PipelineError(f"pipeline {name!r} cannot be built", builder.mistakes)
    return built


def _format_for(type_: Any, parent: _Channel) -> str | None:
    """JSON stays JSON and MessagePack MessagePack, unless the type is bytes; else the type's usual format, as None."""
    is_bytes = type_ in (bytes, bytearray, memoryview)
    return parent.format if parent.format in ("json", "msgpack") and not is_bytes else None


def _is_item(type_: Any, parent: _Channel) -> bool:
    """Whether a NumPy scalar type, as in `-> np.void`, is just the item of a fixed-width record."""
    return parent.format == "fixed" and isinstance(type_, type) and issubclass(type_, np.generic)


class _Builder:
    def __init__(self, name: str, settings: PipelineSettings, graph: Graph) -> None:
        self.name = name
        self.settings = settings
        self.graph = graph
        self.names = graph.names()
        self.mistakes: list[str] = []
        self._fidelity = settings.fidelity if isinstance(settings.fidelity, Fidelity) else DEFAULT_FIDELITY
        self._channels: list[_Channel | None] = []
        self._stages: list[Stage | None] = []
        self._policies: list[OnError] = []

    def build(self) -> BuiltPipeline:
        self.mistakes += checks.settings_mistakes(self.name, self.settings)
        self.mistakes += checks.graph_mistakes(self.graph, self.names)
        for index, node in enumerate(self.graph.nodes):
            with_parent = None if node.parent is None else self._channels[node.parent]
            self._add(index, node.spec, with_parent)
        return self._assembled()

    # -- one stage at a time -----------------------------------------------------------------------------------------

    def _add(self, index: int, spec: Spec, parent: _Channel | None) -> None:
        self._policies.append(self._policy(index, spec, parent))
        channel, stage = self._compiled(index, spec, parent)
        self._channels.append(channel)
        self._stages.append(stage)

    def _policy(self, index: int, spec: Spec, parent: _Channel | None) -> OnError:
        self._report(index, [*checks.stage_name_mistakes(spec.name), *checks.policy_mistakes(spec.on_error)])
        if not isinstance(spec, ReadSpec):
            self._report(index, checks.stage_timeout_mistakes(spec.stage_timeout_s))
        if spec.on_error is not None:
            return as_policy(spec.on_error)
        if parent is not None and parent.read.on_error is not None:
            return as_policy(parent.read.on_error)
        return as_policy(self.settings.on_error)

    def _compiled(self, index: int, spec: Spec, parent: _Channel | None) -> tuple[_Channel | None, Stage | None]:
        match spec:
            case ReadSpec():
                return self._read(index, spec), None
            case EventSpec():
                return self._event(index, spec, parent)
            case ColumnsSpec():
                return self._columns(index, spec, parent)
            case OffloadSpec():
                return self._offload(index, spec, parent)
            case WriteSpec():
                return None, self._write(index, spec, parent)

    def _read(self, index: int, spec: ReadSpec) -> _Channel | None:
        self._report(index, checks.read_mistakes(spec))
        type_ = spec.type
        if type_ is UNSET:
            type_ = bytes if spec.format in (None, "raw") else Any
        return self._channel(index, type_, spec.format, spec)

    def _event(self, index: int, spec: EventSpec, parent: _Channel | None) -> tuple[_Channel | None, Stage | None]:
        shape = self._shape(index, spec.function)
        if shape is None:
            return (parent if spec.kind in ("filter", "split") else None), None
        self._report(index, checks.call_mistakes(spec, is_async=shape.is_async))
        if spec.kind != "flat_map" and is_generator(spec.function):
            self._report(index, [f"{named(spec.function)} is a generator function; only flat_map reads what it yields"])
            return None, None
        if spec.kind in ("filter", "split") and promises_nothing(spec.function):
            self._report(index, [f"{named(spec.function)} promises to return None, which lets nothing through"])
        caller = self._caller(index, spec.function, shape, spec.concurrency, spec.timeout_ms)
        sees_tombstones = parent is not None and parent.read.tombstones == "deliver"
        match spec.kind:
            case "filter" | "split":
                return parent, FilterStage(caller, sees_tombstones, splits=spec.kind == "split")
            case "map":
                return self._mapped(index, spec, parent), MapStage(caller, sees_tombstones)
            case "flat_map":
                return self._mapped(index, spec, parent), FlatMapStage(caller, sees_tombstones)

    def _mapped(self, index: int, spec: EventSpec, parent: _Channel | None) -> _Channel | None:
        """The function's annotation decides the type; the format stays, unless the type has another."""
        if parent is None:
            return None
        try:
            promised = answer_type(spec.function)
        except NameError as error:
            if parent.format == "raw":
                remedy = "define that type at the top level of its module"
                self._report(
                    index, [f"the return type of {named(spec.function)} cannot be resolved ({error}); {remedy}"]
                )
                return None
            promised = UNKNOWN
        if spec.kind == "flat_map" and promised is not UNKNOWN:
            promised = element_type(promised)
        if promised is NOTHING:
            self._report(
                index, [f"{named(spec.function)} promises to return None, and so would write nothing but tombstones"]
            )
            return None
        if promised is UNKNOWN or _is_item(promised, parent):
            return self._same_format(index, parent)
        return self._made(index, promised, _format_for(promised, parent), parent.read)

    def _same_format(self, index: int, parent: _Channel) -> _Channel | None:
        if parent.format in ("json", "msgpack"):
            return self._made(index, Any, parent.format, parent.read)
        return parent

    def _made(self, index: int, type_: Any, format_: str | None, read: ReadSpec) -> _Channel | None:
        """A channel of values that a function makes: whether its type can tell unknown fields matters only on input."""
        fidelity = self._fidelity
        try:
            codec = codec_for(type_, format_, fidelity=fidelity)
        except ValueError:
            return self._channel(index, type_, format_, read, replace(fidelity, unknown_fields="drop"))
        return _Channel(type_, codec, codec.format, read)

    def _columns(self, index: int, spec: ColumnsSpec, parent: _Channel | None) -> tuple[_Channel | None, Stage | None]:
        shape = self._shape(index, spec.function)
        if shape is not None and shape.is_async:
            self._report(index, [f"{named(spec.function)} is async; column functions are plain functions"])
        if shape is not None and shape.wants_record:
            self._report(index, [f"{named(spec.function)} requires two arguments; it is called with the columns alone"])
        if parent is None:
            return None, None
        try:
            layout, type_ = layout_for(parent.codec, parent.type, spec.reads, spec.adds, self._fidelity)
        except LayoutError as error:
            self._report(index, error.mistakes)
            return None, None
        encoder = Encoder(parent.codec)
        identity = self._identity(index)
        if spec.kind == "filter_columns":
            return parent, FilterColumnsStage(ColumnCaller(spec.function, checked_mask, identity), layout, encoder)
        if spec.type is not UNSET:
            type_ = spec.type
        channel = parent if type_ is parent.type else self._channel(index, type_, parent.format, parent.read)
        if channel is None:
            return None, None
        caller = ColumnCaller(spec.function, layout.check, identity)
        return channel, ColumnsStage(caller, layout, encoder, channel.codec)

    def _offload(self, index: int, spec: OffloadSpec, parent: _Channel | None) -> tuple[_Channel | None, Stage | None]:
        self._report(index, offload_mistakes(spec))
        if parent is None:
            return None, None
        try:
            columns = offload_columns(parent.codec, parent.type, spec.reads, spec.adds, self._fidelity)
        except LayoutError as error:
            self._report(index, error.mistakes)
            return None, None
        type_ = columns.type if spec.type is UNSET else spec.type
        format_ = "fixed" if isinstance(columns.layout, RawToFixedLayout) else parent.format
        channel = parent if type_ is parent.type else self._channel(index, type_, format_, parent.read)
        if channel is None:
            return None, None
        definition = StageDefinition(
            self.names[index],
            spec.offloadable,
            columns.reads,
            columns.adds,
            float(spec.latency_budget_ms) if isinstance(spec.latency_budget_ms, int | float) else 0.0,
            spec.device,
            spec.memory_mb,
            spec.exclusive,
        )
        encoder = Encoder(parent.codec)
        return channel, OffloadStage(definition, columns.layout, encoder, channel.codec, self._identity(index))

    def _write(self, index: int, spec: WriteSpec, parent: _Channel | None) -> Stage | None:
        self._report(index, checks.topic_mistakes(spec.topics))
        if not spec.topics:
            self._report(index, ["topic is a function, so topics=[...] must list all topics that it may answer"])
        elif isinstance(spec.topic, str) and spec.topics != (spec.topic,):
            self._report(index, ["topics=[...] goes with a function as topic; a constant topic needs none"])
        codec = self._written_codec(index, spec, parent)
        topic = None if isinstance(spec.topic, str) else self._sync_caller(index, "topic", spec.topic)
        key = self._part(index, "key", spec.key, as_key)
        headers = self._part(index, "headers", spec.headers, as_headers)
        timestamp = self._part(index, "timestamp", spec.timestamp, as_timestamp)
        if codec is None or parent is None:
            return None
        return WriteStage(
            self._identity(index),
            codec,
            spec.topics,
            topic,
            key,
            headers,
            timestamp,
            sees_tombstones=parent.read.tombstones == "deliver",
        )

    def _written_codec(self, index: int, spec: WriteSpec, parent: _Channel | None) -> ValueCodec | None:
        if parent is None:
            return None
        if spec.type is UNSET and spec.format in (None, parent.format):
            return parent.codec
        type_ = spec.type
        if type_ is UNSET:
            type_ = bytes if spec.format == "raw" else (Any if parent.format == "raw" else parent.type)
        format_ = spec.format or _format_for(type_, parent)
        if type_ is parent.type and format_ in (None, parent.format):
            return parent.codec
        channel = self._made(index, type_, format_, parent.read)
        if channel is not None and channel.format == "msgpack" and self._keeps_fields(parent.read):
            self._report(index, ['unknown_fields="keep" carries fields from JSON to JSON; format "msgpack" loses them'])
        return None if channel is None else channel.codec

    def _keeps_fields(self, read: ReadSpec) -> bool:
        """Whether values of this read have fields to carry over beside those that their type names."""
        index = next(i for i, node in enumerate(self.graph.nodes) if node.spec is read)
        channel = self._channels[index]
        return channel is not None and isinstance(channel.codec, JsonCodec) and bool(channel.codec.named_fields)

    def _part(self, index: int, what: str, given: Any, convert: Callable[[Any], Any]) -> Any:
        """Key, headers or timestamp of a write: KEEP as it is, a function as a caller, a constant converted."""
        if isinstance(given, Keep):
            return given
        if callable(given):
            return self._sync_caller(index, what, given)
        try:
            return convert(given)
        except WrongAnswerError as error:
            self._report(index, [f"{what}: {error}"])
            return None

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _channel(
        self, index: int, type_: Any, format_: str | None, read: ReadSpec, fidelity: Fidelity | None = None
    ) -> _Channel | None:
        try:
            codec = codec_for(type_, format_, fidelity=fidelity or self._fidelity)
        except ValueError as error:
            self._report(index, [str(error)])
            return None
        return _Channel(type_, codec, codec.format, read)

    def _shape(self, index: int, function: Any) -> Shape | None:
        try:
            return shape_of(function)
        except TypeError as error:
            self._report(index, [str(error)])
            return None

    def _caller(
        self, index: int, function: Any, shape: Shape, concurrency: int = 1, timeout_ms: int | None = None
    ) -> Caller:
        spec = self.graph.nodes[index].spec
        if isinstance(spec, EventSpec) and spec.kind == "flat_map":
            function = listing(function, shape.is_async)
        return Caller(function, shape.wants_record, shape.is_async, self._identity(index), concurrency, timeout_ms)

    def _sync_caller(self, index: int, what: str, function: Any) -> Caller | None:
        shape = self._shape(index, function)
        if shape is None:
            return None
        if shape.is_async:
            self._report(index, [f"{what}: {named(function)} is async; await it in a map before this stage"])
        return self._caller(index, function, shape)

    def _identity(self, index: int) -> Identity:
        return Identity(self.name, self.names[index], self._policies[index])

    def _report(self, index: int, mistakes: Iterable[str]) -> None:
        self.mistakes += [f"{self.names[index]}: {mistake}" for mistake in mistakes]

    # -- the whole ---------------------------------------------------------------------------------------------------

    def _assembled(self) -> BuiltPipeline:
        specs = [node.spec for node in self.graph.nodes]
        inputs = [
            InputTopic(topic, spec.start, spec.on_offset_lost)
            for spec in specs
            if isinstance(spec, ReadSpec)
            for topic in spec.topics
        ]
        outputs = dict.fromkeys(topic for spec in specs if isinstance(spec, WriteSpec) for topic in spec.topics)
        dead_letter_topic = None
        if any(policy.action == "dead-letter" for policy in self._policies):
            dead_letter_topic = self.settings.dead_letter_topic or f"{self.name}.dead-letters"
            if any(dead_letter_topic == given.topic for given in inputs):
                self.mistakes.append(f"dead_letter_topic {dead_letter_topic!r} is also read; that would be a loop")
            if dead_letter_topic in outputs:
                self.mistakes.append(
                    f"dead_letter_topic {dead_letter_topic!r} is also written; give it a topic of its own"
                )
        return BuiltPipeline(
            self.name,
            self.settings.shards,
            self.settings.guarantee,
            self.settings.missing_topics,
            tuple(inputs),
            tuple(outputs),
            dead_letter_topic,
            self.settings,
            CompiledProgram(() if self.mistakes else self._sources(), dead_letter_topic),
            self._input_codecs(),
            self._output_codecs(),
            tuple(stage for stage in self._stages if isinstance(stage, OffloadStage)),
            WatchPlan() if self.mistakes else watch_plan(self.graph, self.names, self._stages, self.settings),
        )

    def _sources(self) -> tuple[Source, ...]:
        sources = []
        # Children stand behind their parents, so that going backwards finds every step's children made.
        steps: dict[int, Step] = {}
        for index in reversed(range(len(self.graph.nodes))):
            stage = self._stages[index]
            if stage is not None:
                steps[index] = Step(
                    index,
                    self._identity(index),
                    stage,
                    tuple(
                        tuple(steps[child] for child in self.graph.children(index, port))
                        for port in range(self.graph.ports(index))
                    ),
                )
        for index, node in enumerate(self.graph.nodes):
            channel = self._channels[index]
            if isinstance(node.spec, ReadSpec) and channel is not None:
                children = tuple(steps[child] for child in self.graph.children(index, 0))
                drops = node.spec.tombstones == "drop"
                sources.append(
                    Source(frozenset(node.spec.topics), channel.codec, self._identity(index), drops, children)
                )
        return tuple(sources)

    def _input_codecs(self) -> dict[str, ValueCodec]:
        return {
            topic: channel.codec
            for node, channel in zip(self.graph.nodes, self._channels, strict=True)
            if isinstance(node.spec, ReadSpec) and channel is not None
            for topic in node.spec.topics
        }

    def _output_codecs(self) -> dict[str, ValueCodec]:
        return {topic: stage.codec for stage in self._stages if isinstance(stage, WriteStage) for topic in stage.topics}
