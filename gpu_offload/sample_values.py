"""Values to measure a pipeline with: from a file, from the brokers, or made up by the first offload stage's columns."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from millstream.gpu_offload.canary import made_up_rows
from millstream.processor.built import BuiltPipeline
from millstream.processor.codecs.fixed_width import FixedWidthCodec
from millstream.processor.columns import NO_TIMESTAMP, Records, Slices
from millstream.processor.errors import SettingsError, UnavailableError
from millstream.processor.offloading import ArrayColumns, Text
from millstream.processor.partitions import TopicPartition

_WAIT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of one input topic, and in words where they come from. `fetch_s` is how long the brokers took."""

    topic: str
    values: Sequence[bytes | None]
    origin: str
    fetch_s: float | None = None


def records_of(sample: Sample, count: int) -> Records:
    """So many records with the sample's values, again and again where there are fewer."""
    values = [sample.values[place % len(sample.values)] for place in range(count)]
    return Records(
        (TopicPartition(sample.topic, 0),),
        np.zeros(count, np.int32),
        np.arange(count, dtype=np.int64),
        np.full(count, NO_TIMESTAMP, np.int64),
        Slices.repeated(None, count),
        Slices.from_list(values),
        Slices.repeated(b"\0", count),
    )


def topic_of(built: BuiltPipeline, chosen: str | None) -> str:
    """The input topic that is meant. Raises SettingsError."""
    known = [given.topic for given in built.inputs]
    if chosen in known:
        return str(chosen)
    if chosen is None and len(known) == 1:
        return known[0]
    said = "it reads several topics" if chosen is None else f"--topic {chosen!r} is not read"
    raise SettingsError("the sample", [f"{said}; name one with --topic: {', '.join(known)}"])


def from_file(built: BuiltPipeline, topic: str, path: Path) -> Sample:
    """A value for each line; of fixed-width records, one behind the other. Raises SettingsError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError("the sample", [f"{path} cannot be read: {error.strerror}"]) from error
    codec = built.codecs[topic]
    if isinstance(codec, FixedWidthCodec):
        size = codec.dtype.itemsize
        values = [data[at : at + size] for at in range(0, len(data) - size + 1, size)]
    else:
        values = [line for line in data.splitlines() if line]
    if not values:
        raise SettingsError("the sample", [f"{path} has no value of topic {topic!r} in it"])
    return Sample(topic, values, f"{len(values)} values of {path}")


def from_brokers(topic: str, kafka: dict[str, Any], events: int) -> Sample:
    """The first records that the topic has. Raises UnavailableError where there are none."""
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {**kafka, "group.id": "millstream-profile", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    values: list[bytes | None] = []
    try:
        partitions = consumer.list_topics(topic, timeout=_WAIT_S).topics[topic].partitions
        beginning = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition(topic, number, beginning) for number in partitions])
        first = consumer.consume(1, _WAIT_S)
        began = time.perf_counter()
        messages = [*first]
        while messages:
            values += [message.value() for message in messages if message.error() is None]
            if len(values) >= events:
                break
            messages = consumer.consume(min(10_000, events - len(values)), 1.0)
        seconds = time.perf_counter() - began
    except confluent_kafka.KafkaException as error:
        raise UnavailableError(f"topic {topic!r} could not be read: {error}") from error
    finally:
        consumer.close()
    if not values:
        raise UnavailableError(f"topic {topic!r} has no records; send some, or name a file with --values")
    return Sample(topic, values, f"the first {len(values)} records of topic {topic!r}", seconds / len(values))


def made_up(built: BuiltPipeline, topic: str, count: int = 4096) -> Sample:
    """Values with what the first offload stage reads. Raises SettingsError where nothing says what values look like."""
    codec = built.codecs[topic]
    stages = built.offloads
    rows = made_up_rows(stages[0].definition, count, seed=1) if stages else None
    values: list[bytes | None] | None = None
    if isinstance(codec, FixedWidthCodec):
        array = np.zeros(count, codec.dtype)
        if rows is not None and codec.dtype.names is not None:
            for name in (name for name in rows if name in codec.dtype.names and array[name].dtype.kind not in "SV"):
                array[name] = rows[name]
        values = [item.tobytes() for item in array]
    elif rows is not None and codec.format == "json":
        values = [json.dumps(_object(rows, row)).encode() for row in range(count)]
    elif rows is not None:
        values = [_text(rows["value"], row).encode() for row in range(count)]
    if values is None:
        raise SettingsError(
            "the sample", ["nothing says what values look like: name a file with --values, or brokers with --brokers"]
        )
    try:
        asyncio.run(_try(built, Sample(topic, values, "")))
    except Exception as error:
        raise SettingsError(
            "the sample",
            [f"made-up values do not pass the stages ({error}): name a file with --values, or brokers with --brokers"],
        ) from error
    return Sample(
        topic, values, f"{count} made-up values with what {stages[0].definition.name!r} reads" if stages else ""
    )


async def _try(built: BuiltPipeline, sample: Sample) -> None:
    await built.program.process(records_of(sample, 16), {})


def _object(rows: ArrayColumns, row: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, column in rows.items():
        if name in rows.masks and not rows.valid(name)[row]:
            found[name] = None
        else:
            found[name] = _text(column, row) if isinstance(column, Text) else column[row].tolist()
    return found


def _text(text: Text, row: int) -> str:
    return bytes(text.data[text.offsets[row] : text.offsets[row + 1]]).decode()
