"""Running a pipeline's stages on a few records, without a broker.

result = pipeline.test([Payment("ann", 10.0), Payment("bob", -1.0)])
assert [output.value for output in result.outputs["scored-payments"]] == [Scored("ann", 10.0, fee=0.1)]
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from millstream.processor.built import BuiltPipeline
from millstream.processor.columns import NO_TIMESTAMP, OutputRecords, Records, Slices
from millstream.processor.errors import UserError
from millstream.processor.headers import decode_headers, encode_headers
from millstream.processor.interfaces import Counts
from millstream.processor.ownership import owning
from millstream.processor.partitions import TopicPartition
from millstream.processor.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRecord:
    """An input record for a test. `value` is bytes as they would stand in Kafka, None for a tombstone, or a value
    that the codec of the topic encodes.

    `topic` may be left out where the pipeline reads one only, `offset` where records come in order.
    """

    __test__ = False  # pytest takes it for a test otherwise

    value: object
    key: bytes | str | None = None
    headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None
    topic: str | None = None
    partition: int = 0
    offset: int | None = None


TestInput: TypeAlias = object
"""A value, its bytes, a `TestRecord` or a `Record`."""


@dataclass(frozen=True, slots=True)
class TestOutput:
    """A record that the pipeline would have written.

    `value` is `raw` as the codec of its topic decodes it; None for a tombstone, and for dead letters the raw bytes.
    """

    __test__ = False

    topic: str
    key: bytes | None
    value: Any
    raw: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class TestResult:
    """All that a pipeline made of its test records. Every output topic is in `outputs`, also those with no record."""

    __test__ = False

    outputs: Mapping[str, list[TestOutput]]
    dead_letters: list[TestOutput] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)


def run_test(built: BuiltPipeline, inputs: Iterable[TestInput], topic: str | None) -> TestResult:
    """Run all stages, waiting for the result. Raises UserError inside of a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run_test_async(built, inputs, topic))
    raise UserError(
        "pipeline.test() cannot wait inside of a running event loop (an async test, a notebook); "
        "write: await pipeline.test_async(...)"
    )


async def run_test_async(built: BuiltPipeline, inputs: Iterable[TestInput], topic: str | None) -> TestResult:
    """Run all stages. Raises StageError as the pipeline would, and UserError for records that it cannot be given."""
    given = [_as_test_record(one) for one in inputs]
    records = input_records(built, given, topic)
    with owning(0):
        effects = await built.program.process(records, {})
    outputs, dead_letters = decoded_outputs(built, effects.outputs)
    return TestResult(outputs, dead_letters, effects.counts)


def decoded_outputs(
    built: BuiltPipeline, written: Iterable[OutputRecords]
) -> tuple[dict[str, list[TestOutput]], list[TestOutput]]:
    """What was written, as objects: by output topic, and the dead letters."""
    outputs: dict[str, list[TestOutput]] = {name: [] for name in built.output_topics}
    dead_letters: list[TestOutput] = []
    for records in written:
        if records.topic == built.dead_letter_topic:
            dead_letters += _outputs(records, records.value.to_list())
        else:
            decoded = built.output_codecs[records.topic].decode(records.value)
            outputs[records.topic] += _outputs(records, decoded.values)
    return outputs, dead_letters


def _as_test_record(given: TestInput) -> TestRecord:
    if isinstance(given, TestRecord):
        return given
    if isinstance(given, Record):
        return TestRecord(
            value=given.value,
            key=given.key,
            headers=given.headers,
            timestamp_ms=given.timestamp_ms,
            topic=given.topic,
            partition=given.partition,
            offset=given.offset,
        )
    return TestRecord(value=given)


def input_records(built: BuiltPipeline, given: Sequence[TestRecord], topic: str | None) -> Records:
    """The records as a runtime would hand them to the program. Raises UserError for those that it cannot be given."""
    places: dict[TopicPartition, int] = {}
    next_offsets: dict[TopicPartition, int] = {}
    origin, offset, value = [], [], []
    for number, record in enumerate(given):
        place = TopicPartition(_topic(built, record, topic, number), record.partition)
        origin.append(places.setdefault(place, len(places)))
        at = next_offsets.get(place, 0) if record.offset is None else record.offset
        next_offsets[place] = at + 1
        offset.append(at)
        value.append(_encoded(built, place.topic, record.value, number))
    timestamps = [NO_TIMESTAMP if record.timestamp_ms is None else record.timestamp_ms for record in given]
    return Records(
        tuple(places),
        np.array(origin, np.int32),
        np.array(offset, np.int64),
        np.array(timestamps, np.int64),
        Slices.from_list([record.key.encode() if isinstance(record.key, str) else record.key for record in given]),
        Slices.from_list(value),
        Slices.from_list([_headers(record) for record in given]),
    )


def _topic(built: BuiltPipeline, record: TestRecord, topic: str | None, number: int) -> str:
    chosen = record.topic or topic
    known = [given.topic for given in built.inputs]
    if chosen is None and len(known) == 1:
        return known[0]
    if chosen not in known:
        trouble = "has no topic" if chosen is None else f"has the topic {chosen!r}, which is not read"
        raise UserError(f"test record {number} {trouble}; give topic= as one of {', '.join(map(repr, known))}")
    return chosen


def _encoded(built: BuiltPipeline, topic: str, value: object, number: int) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    encoded = built.codecs[topic].encode([value])
    if encoded.errors:
        raise UserError(f"test record {number} cannot be a value of topic {topic!r}: {encoded.errors[0]}")
    return encoded.values[0]


def _headers(record: TestRecord) -> bytes:
    headers = record.headers
    return encode_headers(list(headers.items() if isinstance(headers, Mapping) else headers))


def _outputs(written: OutputRecords, values: Sequence[object]) -> list[TestOutput]:
    return [
        TestOutput(written.topic, key, value, raw, decode_headers(headers or b"\0"), None if at == NO_TIMESTAMP else at)
        for key, value, raw, headers, at in zip(
            written.key.to_list(),
            values,
            written.value.to_list(),
            written.headers.to_list(),
            written.timestamp.tolist(),
            strict=True,
        )
    ]
