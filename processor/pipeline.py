"""The pipeline that a user writes: where records come from, what happens to each, and where they go.

    pipeline = Pipeline("fraud")

    (pipeline.read("payments", Payment)
        .filter(lambda payment: payment.amount > 0)
        .map(score)
        .write("scored-payments"))

A `Pipeline` is plain data. Nothing is checked or connected before `build()`, which reports all mistakes at once;
`test()` runs the same stages without a broker, `run()` with one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from millstream.processor.build import build
from millstream.processor.built import DEFAULT_FIDELITY, BuiltPipeline, PipelineSettings
from millstream.processor.codecs.fidelity import Fidelity
from millstream.processor.graph import (
    UNSET,
    Draft,
    Guarantee,
    MissingTopics,
    OnOffsetLost,
    ReadSpec,
    Start,
    Tombstones,
)
from millstream.processor.policy import ErrorPolicy
from millstream.processor.stream import Stream
from millstream.processor.testing import TestInput, TestResult, run_test, run_test_async

if TYPE_CHECKING:
    from millstream.processor.wiring import RunResult

T = TypeVar("T")
U = TypeVar("U")


class Pipeline:
    """A named set of streams.

    `name` prefixes everything that the pipeline owns in Kafka: letters, digits, ``.``, ``_`` and ``-``.
    `shards` bounds how many workers can share the work, and is fixed when the pipeline first starts (default: the
    runtime's choice). `on_error` is what happens to a record on which a stage fails, unless the stage or its read says
    otherwise. `dead_letter_topic` is ``<name>.dead-letters`` by default. `missing_topics`: wait for topics that do not
    exist, create them, or fail. `fidelity` says what may happen to values that a format cannot express.
    `commit_interval_ms` is the time between commits (default: the runtime's choice).
    `stage_timeout_s`: a worker of `millstream run` that does not come back from a call to a stage's function for so
    long, in seconds, is replaced. After `stage_attempts` the record that it hangs at goes to the error policy.
    """

    def __init__(
        self,
        name: str,
        *,
        shards: int | None = None,
        guarantee: Guarantee = "exactly-once",
        on_error: ErrorPolicy = "stop",
        dead_letter_topic: str | None = None,
        missing_topics: MissingTopics = "wait",
        fidelity: Fidelity = DEFAULT_FIDELITY,
        commit_interval_ms: int | None = None,
        stage_timeout_s: float = 60.0,
        stage_attempts: int = 3,
    ) -> None:
        self.name = name
        self.settings = PipelineSettings(
            shards=shards,
            guarantee=guarantee,
            on_error=on_error,
            dead_letter_topic=dead_letter_topic,
            missing_topics=missing_topics,
            fidelity=fidelity,
            commit_interval_ms=commit_interval_ms,
            stage_timeout_s=stage_timeout_s,
            stage_attempts=stage_attempts,
        )
        self._draft = Draft()

    @overload
    def read(
        self,
        topics: str | Sequence[str],
        *,
        start: Start = ...,
        on_offset_lost: OnOffsetLost = ...,
        tombstones: Tombstones = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[bytes]: ...

    @overload
    def read(
        self,
        topics: str | Sequence[str],
        type: type[T],
        *,
        format: str | None = ...,
        start: Start = ...,
        on_offset_lost: OnOffsetLost = ...,
        tombstones: Tombstones = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[T]: ...

    @overload
    def read(
        self,
        topics: str | Sequence[str],
        type: object = ...,
        *,
        format: str | None = ...,
        start: Start = ...,
        on_offset_lost: OnOffsetLost = ...,
        tombstones: Tombstones = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[Any]: ...

    def read(
        self,
        topics: str | Sequence[str],
        type: object = UNSET,  # noqa: A002  # the word that users look for
        *,
        format: str | None = None,  # noqa: A002
        start: Start = "earliest",
        on_offset_lost: OnOffsetLost = "stop",
        tombstones: Tombstones = "pass",
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[Any]:
        """Read one or more topics.

        `type` is what values are: ``bytes`` (the default), a `msgspec.Struct`, dataclass or TypedDict (JSON), a NumPy
        dtype (fixed-width records), ``dict`` or ``Any`` with ``format="json"``; `format` may name ``json``,
        ``msgpack``, ``raw`` or ``fixed`` where the type leaves a choice.
        Bytes are decoded when a stage first needs values, and once, however many branches there are; values are shared
        between branches, so functions should return new values rather than change what they are given.

        `start` is where a partition begins that has no committed offset; `on_offset_lost` is what happens when the
        committed one is gone from the log. Tombstones (null values): "pass" sends them through every stage untouched,
        "drop" leaves them out, "deliver" gives them to functions as None.
        """
        spec = ReadSpec(
            topics=_as_tuple(topics),
            type=type,
            format=format,
            start=start,
            on_offset_lost=on_offset_lost,
            tombstones=tombstones,
            name=name,
            on_error=on_error,
        )
        return Stream(self._draft, self._draft.add(spec), 0)

    def build(self) -> BuiltPipeline:
        """The pipeline, ready to run. Raises PipelineError that lists every mistake."""
        return build(self.name, self.settings, self._draft.graph())

    def test(self, records: Iterable[TestInput], topic: str | None = None) -> TestResult:
        """Run the stages on these records, without a broker, and answer all that they would have written.

        A record is a value (encoded as the topic's values are), bytes (taken as they are), a `TestRecord` with key,
        headers and more, or a `Record`. `topic` is where they come from, if the pipeline reads several.
        Raises PipelineError, StageError as the running pipeline would, and UserError inside of a running event loop.
        """
        return run_test(self.build(), records, topic)

    async def test_async(self, records: Iterable[TestInput], topic: str | None = None) -> TestResult:
        """`test` for async tests and notebooks."""
        return await run_test_async(self.build(), records, topic)

    async def run(
        self,
        *,
        brokers: Any,
        until: Literal["stopped", "caught-up"] = "stopped",
        events: int | None = None,
        timeout_s: float | None = None,
        collect: bool = False,
        node_name: str | None = None,
        zone: str = "",
        labels: Sequence[str] = (),
        devices: str = "auto",
    ) -> RunResult:
        """Run the pipeline in this event loop, as one node with one worker.

        It shares the shards with all other nodes of this pipeline, be they embedded or of `millstream run`; a thread
        takes part in the membership, so that functions which hold up the loop delay none of the node's signs of life.
        `node_name` (the machine's host name by default), `zone` and `labels` are what the others know it by.

        `devices` are for its offload stages, as `millstream run --devices` has them.
        `brokers` is "host:port", several of them, or the settings of a secured cluster. It ends when cancelled (all
        that is committed stays), and before that as soon as all partitions of its shards are read to the end that they
        had when it began with them (`until="caught-up"`), at least `events` records are processed, or `timeout_s`
        seconds have passed, be it in waiting for the broker and the topics. With `collect` the result holds what was
        written here, for notebooks and tests; it then grows with every record.
        Raises PipelineError and SettingsError before anything is connected; StageError, OffsetLostError, RefusedError
        and UnavailableError as a node would report them.
        """
        from millstream.processor import wiring  # the runtime brings Kafka's client, which no test or check needs

        return await wiring.run_embedded(
            self,
            brokers=brokers,
            until=until,
            events=events,
            timeout_s=timeout_s,
            collect=collect,
            node_name=node_name,
            zone=zone,
            labels=labels,
            devices=devices,
        )

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {len(self._draft)} stages)"


def _as_tuple(topics: Any) -> tuple[Any, ...]:
    """One topic or several; what is neither is kept as it is, for `build` to complain about."""
    return tuple(topics) if isinstance(topics, list | tuple) else (topics,)
