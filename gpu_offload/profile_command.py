"""`millstream profile`: what bounds a pipeline, what its stages cost, and whether a GPU could pay for one of them.

It runs the pipeline's own functions on real values (of its topic, or of a file) or on made-up ones. Nothing is written
to any topic, and no offset is committed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from millstream.connectors.kafka.settings_arguments import add_kafka_arguments, read_kafka_settings
from millstream.gpu_offload.device_choice import law_from
from millstream.gpu_offload.dry_run import Passes, SizeTime, passes, sizes
from millstream.gpu_offload.offload_arguments import PRICE
from millstream.gpu_offload.offload_settings import OffloadSettings
from millstream.gpu_offload.profile_report import Kind, Part, Profile, SizeRow, StageProfile, as_text
from millstream.gpu_offload.prospects import prospects
from millstream.gpu_offload.sample_values import Sample, from_brokers, from_file, made_up, topic_of
from millstream.gpu_offload.stage_picture import check_picture, write_picture
from millstream.processor.app import load_pipeline
from millstream.processor.built import BuiltPipeline
from millstream.processor.program import CompiledProgram, Step
from millstream.processor.setting_sources import PATH, SECONDS, TEXT, Sources, add_config_argument, whole
from millstream.processor.stages.events import FilterStage, FlatMapStage, MapStage
from millstream.processor.stages.offload import OffloadStage
from millstream.processor.stages.write import WriteStage

_EVENTS: Final = 20_000
_BATCH_BYTES: Final = 512 * 1024
_SECONDS: Final = 2.0
ASSUMED: Final = "simulated:fixed_us=100,event_us=0.3"


def add_sample_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say on what a pipeline is measured, and at which prices."""
    parser.add_argument("app", metavar="APP", nargs="?", help="where the pipeline is, as for millstream run")
    add_config_argument(parser)
    add_kafka_arguments(parser)
    parser.add_argument(
        "--values", metavar="FILE", help="values from a file: one a line, fixed-width ones back to back"
    )
    parser.add_argument("--topic", metavar="TOPIC", help="which input topic is meant, where the pipeline reads several")
    parser.add_argument("--events", metavar="N", help=f"read so many records from the brokers (default: {_EVENTS})")
    parser.add_argument("--seconds", metavar="S", help=f"about how long each part is measured (default: {_SECONDS:g})")
    defaults = OffloadSettings()
    parser.add_argument(
        "--price-cpu-core-hour", metavar="PRICE", help=f"a core's price (default: {defaults.price_cpu_core_hour:g})"
    )
    parser.add_argument("--price-gpu-hour", metavar="PRICE", help=f"a GPU's (default: {defaults.price_gpu_hour:g})")
    parser.add_argument(
        "--gpu", metavar="LAW", help=f"what a GPU is assumed to take, as for run --devices (default: {ASSUMED})"
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_sample_arguments(parser)
    parser.add_argument("--rate", metavar="R", help="events a second that the picture's costs are for (default: 50000)")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    parser.add_argument("--picture", metavar="FILE", help="cost and p99 against batch size as an SVG file")


@dataclass(frozen=True, slots=True)
class Measured:
    """A pipeline that was loaded, what it is measured on, and the settings."""

    built: BuiltPipeline
    sample: Sample
    seconds: float
    offload: OffloadSettings
    gpu: str


def execute(arguments: argparse.Namespace) -> int:
    """Measure and report; answers the exit code."""
    sources = Sources(arguments, os.environ)
    rate = sources.value("rate", whole(1), 50_000) or 50_000
    picture = sources.value("picture", PATH)
    measured = measured_from(sources, arguments, os.environ)
    if picture is not None:
        check_picture(picture)
    profile = profiled(measured)
    if picture is not None:
        law = law_from(measured.gpu)
        write_picture(picture, profile, measured.offload, law, rate)
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(profile)) + b"\n")
    else:
        sys.stdout.write(as_text(profile))
    return 0


def measured_from(sources: Sources, arguments: argparse.Namespace, environ: Mapping[str, str]) -> Measured:
    """Load the pipeline and get values for it. Raises SettingsError, PipelineError, UnavailableError."""
    app = sources.value("app", TEXT, argument="APP")
    if app is None and not sources.mistakes:
        sources.mistakes.append("APP is missing; name the pipeline's file, as in: millstream profile app.py")
    path = sources.value("values", PATH)
    topic = sources.value("topic", TEXT)
    events = sources.value("events", whole(1, 10_000_000), _EVENTS)
    seconds = sources.value("seconds", SECONDS, _SECONDS)
    defaults = OffloadSettings()
    cpu = sources.value("price_cpu_core_hour", PRICE, defaults.price_cpu_core_hour)
    gpu_price = sources.value("price_gpu_hour", PRICE, defaults.price_gpu_hour)
    gpu = sources.value("gpu", TEXT, ASSUMED) or ASSUMED
    wants_brokers = path is None and (getattr(arguments, "brokers", None) or environ.get("MILLSTREAM_BROKERS"))
    kafka = read_kafka_settings(sources) if wants_brokers else None
    sources.check("the settings")
    assert app is not None
    law_from(gpu)
    built = load_pipeline(app).build()
    chosen = topic_of(built, topic)
    if path is not None:
        sample = from_file(built, chosen, path)
    elif kafka is not None:
        sample = from_brokers(chosen, kafka.confluent_arguments(), events or _EVENTS)
    else:
        sample = made_up(built, chosen)
    for stage in built.offloads:
        stage.load()
    prices = OffloadSettings(
        devices=(gpu,),
        price_cpu_core_hour=defaults.price_cpu_core_hour if cpu is None else cpu,
        price_gpu_hour=defaults.price_gpu_hour if gpu_price is None else gpu_price,
    )
    return Measured(built, sample, seconds or _SECONDS, prices, gpu)


def profiled(measured: Measured) -> Profile:
    """Measure all parts."""
    built, sample = measured.built, measured.sample
    mean_bytes = sum(len(value or b"") for value in sample.values) / len(sample.values)
    records = max(64, min(20_000, int(_BATCH_BYTES / max(1.0, mean_bytes))))
    by_size = {stage.definition.name: sizes(built, sample, stage, measured.seconds / 5) for stage in built.offloads}
    found = passes(built, sample, records, measured.seconds)
    profiles = []
    for stage in built.offloads:
        name, budget_s = stage.definition.name, stage.definition.latency_budget_ms / 1000
        if by_size[name]:
            rows = [_row(one) for one in by_size[name]]
            profiles.append(StageProfile(prospects(name, budget_s, by_size[name], measured.offload), rows))
    return Profile(built.name, sample.origin, records, _parts(built, sample, found, records, by_size), profiles)


def _row(one: SizeTime) -> SizeRow:
    return SizeRow(one.records, one.quantile(0.5), one.quantile(0.99), one.compute_p50_s)


def _parts(
    built: BuiltPipeline, sample: Sample, found: Passes, records: int, by_size: Mapping[str, list[SizeTime]]
) -> list[Part]:
    kinds = _stage_kinds(built)
    parts = [Part("record batches to columns", "input", found.input_s)]
    undecoded = found.decode_s if any(kind == "event" for kind in kinds.values()) else 0.0
    if undecoded:
        parts.append(Part("values to objects", "decode", undecoded))
    for time in found.stages:
        took = time.seconds / records
        kind = kinds.get(time.stage, "event")
        if kind == "event" and undecoded:
            # The first stage that needs objects makes them, for all that follow.
            took, undecoded = max(0.0, took - undecoded), 0.0
        if kind == "offload" and by_size.get(time.stage):
            nearest = min(by_size[time.stage], key=lambda one: abs(one.records - time.records))
            function = min(took, nearest.compute_p50_s / nearest.records * time.records / records)
            parts.append(Part(f"{time.stage}: values to columns and back", "decode", took - function))
            took = function
        written: Kind = "output" if kind == "write" else "compute"
        parts.append(Part(time.stage, written, took))
    parts.append(Part("outputs to record batches", "output", found.output_s))
    if sample.fetch_s is not None:
        parts.append(Part("reading from the brokers, by another client", "broker", sample.fetch_s))
    return parts


def _stage_kinds(built: BuiltPipeline) -> dict[str, str]:
    program: Any = built.program
    assert isinstance(program, CompiledProgram)
    kinds: dict[str, str] = {}
    waiting: list[Step] = [step for source in program.sources for step in source.children]
    while waiting:
        step = waiting.pop()
        kinds[step.identity.stage] = _kind(step.stage)
        waiting += [child for port in step.children for child in port]
    return kinds


def _kind(stage: Any) -> str:
    if isinstance(stage, OffloadStage):
        return "offload"
    if isinstance(stage, WriteStage):
        return "write"
    return "event" if isinstance(stage, FilterStage | MapStage | FlatMapStage) else "columns"
