"""A pipeline measured without a broker and without output: what each stage takes of a batch, and of each event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Final

import numpy as np

from millstream.connectors.kafka.outbox import KafkaOutbox, OutputSettings
from millstream.connectors.kafka.record_batch import BatchBuilder, Compression, decode_batches
from millstream.gpu_offload.sample_values import Sample, records_of
from millstream.processor.built import BuiltPipeline
from millstream.processor.columns import OutputRecords, Records, Slices
from millstream.processor.offloading import ON_CPU, ArrayColumns, OnCpu, Route
from millstream.processor.program import CompiledProgram, Stage, Step
from millstream.processor.stages.batch import Batch
from millstream.processor.stages.flow import Flow
from millstream.processor.stages.offload import OffloadStage

_BATCH_BYTES_MAX: Final = 1 << 20
_OUTPUT_BYTES_MAX: Final = 16 << 20
_SIZE_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class StageTime:
    """What a stage took for `records` values in its input, without what it handed on."""

    stage: str
    records: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SizeTime:
    """An offload stage's batches of one size: seconds from bytes to bytes, and those in the function alone."""

    records: int
    seconds: Sequence[float]
    compute_s: Sequence[float]

    def quantile(self, part: float) -> float:
        """Of the times from bytes to bytes."""
        return float(np.quantile(self.seconds, part))

    @property
    def compute_p50_s(self) -> float:
        return float(np.quantile(self.compute_s, 0.5))


@dataclass(frozen=True, slots=True)
class Passes:
    """What events took in all parts of a worker, in seconds an event."""

    input_s: float
    decode_s: float
    output_s: float
    stages: Sequence[StageTime]


class _Timed:
    """A stage that says what it took."""

    def __init__(self, name: str, stage: Stage, tell: Callable[[StageTime], None]) -> None:
        self._name, self._stage, self._tell = name, stage, tell

    async def run(self, flow: Flow, batch: Batch) -> tuple[Flow, ...]:
        began = perf_counter()
        flows = await self._stage.run(flow, batch)
        self._tell(StageTime(self._name, len(flow), perf_counter() - began))
        return flows


def passes(built: BuiltPipeline, sample: Sample, records: int, seconds: float) -> Passes:
    """Run batches of so many records for about so long, each part apart. Raises StageError as the pipeline would."""
    fetched = _fetched(sample, records)
    inputs, outputs = [], []
    stage_times: list[StageTime] = []
    program = _timed(built.program, stage_times.append)
    until = perf_counter() + seconds
    for turn in range(1000):
        batch, took = _decoded(fetched, sample)
        inputs.append(took)
        effects = asyncio.run(program.process(batch, {}))
        outputs.append(_written(effects.outputs))
        if turn == 0:
            stage_times.clear()
        elif perf_counter() > until and turn >= 3:
            break
    return Passes(
        float(np.median(inputs[1:])) / records,
        _decode_s(built, sample, records) / records,
        float(np.median(outputs[1:])) / records,
        _medians(stage_times),
    )


def sizes(built: BuiltPipeline, sample: Sample, stage: OffloadStage, seconds_each: float) -> list[SizeTime]:
    """The stage's batches of 16, 64, ... records on the CPU, each for about so long."""
    found = []
    records = 16
    while records <= _SIZE_MAX:
        watcher = _Watcher()
        stage.placement = watcher
        batch = records_of(sample, records)
        until = perf_counter() + seconds_each
        try:
            for turn in range(300):
                asyncio.run(built.program.process(batch, {}))
                if perf_counter() > until and turn >= 5:
                    break
        finally:
            stage.placement = OnCpu()
        # The first ones compile and fill caches.
        found.append(SizeTime(records, watcher.seconds[2:], watcher.compute_s[2:]))
        if not found[-1].seconds or found[-1].quantile(0.5) > 1.0:
            break
        records *= 4
    return [one for one in found if one.seconds]


class _Watcher(OnCpu):
    """Everything on the CPU, with what it takes noted down."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.compute_s: list[float] = []

    def route(self, rows: int) -> Route:  # noqa: ARG002
        return ON_CPU

    def observed(
        self,
        route: Route,  # noqa: ARG002
        rows: int,  # noqa: ARG002
        seconds: float,
        compute_s: float,
        columns: Callable[[], ArrayColumns],  # noqa: ARG002
        answer: Mapping[str, Any],  # noqa: ARG002
    ) -> None:
        self.seconds.append(seconds)
        self.compute_s.append(compute_s)


def _timed(program: Any, tell: Callable[[StageTime], None]) -> CompiledProgram:
    def step(given: Step) -> Step:
        children = tuple(tuple(step(child) for child in port) for port in given.children)
        return replace(given, stage=_Timed(given.identity.stage, given.stage, tell), children=children)

    sources = tuple(replace(source, children=tuple(map(step, source.children))) for source in program.sources)
    return CompiledProgram(sources, program.dead_letter_topic)


def _medians(times: Sequence[StageTime]) -> list[StageTime]:
    by_stage: dict[str, list[StageTime]] = {}
    for time in times:
        by_stage.setdefault(time.stage, []).append(time)
    return [
        StageTime(
            name, round(np.median([one.records for one in some])), float(np.median([one.seconds for one in some]))
        )
        for name, some in by_stage.items()
    ]


def _decode_s(built: BuiltPipeline, sample: Sample, records: int) -> float:
    """What making objects of the values takes, which is in the time of the first stage that needs them."""
    values = records_of(sample, records).value
    codec = built.codecs[sample.topic]
    times = []
    for _ in range(3):
        began = perf_counter()
        codec.decode(values)
        times.append(perf_counter() - began)
    return float(np.median(times))


def _fetched(sample: Sample, records: int) -> bytes:
    batch = records_of(sample, records)
    builder = BatchBuilder(batch_bytes_max=_BATCH_BYTES_MAX, compression=Compression.NONE)
    rows = np.arange(records)
    out = OutputRecords(
        topic=sample.topic,
        unkeyed_partition=np.zeros(records, np.int32),
        timestamp=batch.timestamp,
        key=batch.key,
        value=batch.value,
        headers=Slices.repeated(b"\0", records),
        source=rows.astype(np.int32),
    )
    builder.append(out, rows)
    data, base = b"", 0
    for sealed in builder.seal():
        data += sealed.stamped(producer_id=1, producer_epoch=0, base_sequence=base, transactional=False)
    return data


def _decoded(fetched: bytes, sample: Sample) -> tuple[Records, float]:
    began = perf_counter()
    partition = records_of(sample, 1).origins[0]
    found = decode_batches(fetched, partition, fetch_offset=0, aborted=[])
    return found.records, perf_counter() - began


def _written(outputs: Sequence[OutputRecords]) -> float:
    began = perf_counter()
    limits = {one.topic: _OUTPUT_BYTES_MAX for one in outputs}
    outbox = KafkaOutbox(OutputSettings(limits, Compression.NONE), lambda _topic: 6)
    for one in outputs:
        outbox.add(one)
    outbox.seal()
    return perf_counter() - began
