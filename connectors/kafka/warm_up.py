"""Compiling every kernel ahead of its first use, by sending a few records the way that a worker sends them.

Kernels are compiled for the kinds of arrays that they get, so only the real way finds them all: records are encoded,
decoded as fetched, run through stages of every kind, and placed and encoded as outputs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec
import numpy as np

from millstream.connectors.kafka.outbox import KafkaOutbox, OutputSettings
from millstream.connectors.kafka.record_batch import BatchBuilder, Compression, decode_batches
from millstream.processor.codecs.fidelity import Fidelity
from millstream.processor.columns import NO_TIMESTAMP, Bools, OutputRecords, Records, Slices
from millstream.processor.partitions import TopicPartition
from millstream.processor.pipeline import Pipeline
from millstream.processor.stages.column_calls import Columns
from millstream.processor.stream import Stream

T = TypeVar("T")

_BATCH_BYTES_MAX: Final = 1 << 20
_INPUT: Final = TopicPartition("warm-in", 0)
_VALUES: Final = (
    b'{"id":1,"name":"plain","amount":2.5,"big":123456789012345678901234567890,"ok":true}',
    b'{ "id": -2, "name": "esc\\u0061ped \\"x\\"", "amount": 1e3, "ok": false, "more": [null, {}] }',
    b'{"id":3,"name":"gr\xc3\xbc\xc3\x9fe","amount":0.1,"ok":true}',
    None,
)


class _Event(msgspec.Struct):
    id: int
    name: str
    amount: float


def warm_kernels() -> None:
    """Every kernel of the processor and of the Kafka connector is compiled, or loaded from the cache, afterwards."""
    for records in _fetched():
        for pipeline in _pipelines():
            _run(pipeline, records)


def warm_way() -> None:
    """The same for what every record passes, whatever its pipeline: its decoding, and where its output is placed and
    encoded. With the kernels cached it takes a fifth of a second, which a takeover does not have.
    """
    decode_batches(_batches(Compression.NONE), _INPUT, fetch_offset=0, aborted=[])
    outbox = KafkaOutbox(OutputSettings({_INPUT.topic: _BATCH_BYTES_MAX}, Compression.NONE), lambda _topic: 3)
    outbox.add(_outputs())
    outbox.seal()


def _fetched() -> Iterator[Records]:
    """Records as fetches bring them: from batches as they are, from packed ones, and beside an aborted transaction."""
    for compression in (Compression.NONE, Compression.LZ4):
        data = _batches(compression)
        for aborted in ([], [(2, 0)]):
            yield decode_batches(data, _INPUT, fetch_offset=0, aborted=aborted).records


def _batches(compression: Compression) -> bytes:
    builder = BatchBuilder(batch_bytes_max=_BATCH_BYTES_MAX, compression=compression)
    builder.append(_outputs(), np.arange(len(_VALUES)))
    return b"".join(
        batch.stamped(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True) for batch in builder.seal()
    )


def _outputs() -> OutputRecords:
    rows = len(_VALUES)
    return OutputRecords(
        topic=_INPUT.topic,
        unkeyed_partition=np.zeros(rows, np.int32),
        timestamp=np.full(rows, NO_TIMESTAMP, np.int64),
        key=Slices.from_list([b"some key", None, b"", b"k"]),
        value=Slices.from_list(list(_VALUES)),
        headers=Slices.repeated(b"\0", rows),
        source=np.arange(rows, dtype=np.int32),
    )


def _run(pipeline: Pipeline, records: Records) -> None:
    effects = asyncio.run(pipeline.build().program.process(records, {}))
    sizes = {outputs.topic: _BATCH_BYTES_MAX for outputs in effects.outputs}
    outbox = KafkaOutbox(OutputSettings(sizes, Compression.NONE), lambda _topic: 3)
    for outputs in effects.outputs:
        outbox.add(outputs)
    outbox.seal()


def _pipelines() -> Iterator[Pipeline]:
    """Stages of every kind, alone and behind each other; none of them may fail."""
    for stages in ("events", "columns", "events columns", "columns events"):
        yield _untyped(stages, Fidelity())
        yield _typed(stages, Fidelity())
    yield _typed("columns events", Fidelity(unknown_fields="keep", big_integers="refuse"))
    raw = Pipeline("warm")
    raw.read(_INPUT.topic).filter(_all).write("warm-out", key=b"key")
    yield raw


def _untyped(stages: str, fidelity: Fidelity) -> Pipeline:
    pipeline = Pipeline("warm", fidelity=fidelity)
    stream = pipeline.read(_INPUT.topic, dict)
    for stage in stages.split():
        stream = stream.filter(_all).map(_same_dict) if stage == "events" else _with_columns(stream)
    stream.write("warm-out")
    return pipeline


def _typed(stages: str, fidelity: Fidelity) -> Pipeline:
    pipeline = Pipeline("warm", fidelity=fidelity)
    stream = pipeline.read(_INPUT.topic, _Event)
    for stage in stages.split():
        stream = stream.filter(_all).map(_same_event) if stage == "events" else _with_columns(stream)
    stream.write("warm-out")
    return pipeline


def _with_columns(stream: Stream[T]) -> Stream[T]:
    return stream.filter_columns(_every_row, reads={"id": int}).columns(
        _added,
        reads={"id": int, "name": str, "amount": float},
        adds={"whole": int, "text": str, "share": float, "yes": bool},
    )


def _all(_value: object) -> bool:
    return True


def _same_dict(value: dict[str, object]) -> dict[str, object]:
    return value


def _same_event(event: _Event) -> _Event:
    return event


def _every_row(columns: Columns) -> Bools:
    return np.ones(len(columns["id"]), np.bool_)


def _added(columns: Columns) -> dict[str, object]:
    yes = np.ones(len(columns["id"]), np.bool_)
    return {"whole": columns["id"], "text": columns["name"], "share": columns["amount"], "yes": yes}
