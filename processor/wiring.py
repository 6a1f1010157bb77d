"""The one place that joins the parts: a user's pipeline, the engine, and Kafka.

Everything heavy is imported inside the functions: the agent reads its arguments here, and must stay light.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from millstream.connectors.kafka.settings_arguments import add_kafka_arguments, read_kafka_settings
from millstream.gpu_offload.offload_arguments import add_offload_arguments, devices_from, read_offload_settings
from millstream.gpu_offload.offload_settings import OffloadSettings
from millstream.processor.counts import Counts
from millstream.processor.device_desk import NodeDevices, Offloading
from millstream.processor.errors import SettingsError
from millstream.processor.names import Names
from millstream.processor.participation import NodePlace, default_node_name
from millstream.processor.setting_sources import NAME, Sources
from millstream.processor.timings import Timings, check_timings

if TYPE_CHECKING:
    from millstream.connectors.kafka.kafka_log import KafkaLog
    from millstream.connectors.kafka.settings import KafkaSettings
    from millstream.processor.agent import MembershipLogs
    from millstream.processor.build import BuiltPipeline
    from millstream.processor.columns import OutputRecords
    from millstream.processor.host import Host, RunOptions
    from millstream.processor.membership_log import MembershipLog
    from millstream.processor.pipeline import Pipeline
    from millstream.processor.testing import TestOutput

Offload: TypeAlias = OffloadSettings
"""A node's devices and prices."""

Until = Literal["stopped", "caught-up"]

# How long a shard tries to commit one transaction, and when the broker gives up one that nobody ends.
COMMIT_TIMEOUT_S: Final = 10.0
TRANSACTION_TIMEOUT_S: Final = 30.0


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how to reach the cluster."""
    add_kafka_arguments(parser)


def connection_from(sources: Sources) -> dict[str, Any] | None:
    """The cluster's settings as JSON can carry them to the workers. None where the sources have mistakes in them."""
    settings = read_kafka_settings(sources)
    return None if settings is None else settings.to_json()


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which devices there are for offload stages, and what they cost."""
    add_offload_arguments(parser)


def devices_from_sources(sources: Sources, workers: int) -> OffloadSettings:
    """Devices and prices. What is wrong with them is noted in the sources."""
    return read_offload_settings(sources, workers)


def node_devices(settings: OffloadSettings, log_level: str) -> NodeDevices:
    """The node's devices; none of them is touched before a stage asks for one."""
    from millstream.gpu_offload.node_devices import NodeDevices as Devices

    return Devices(settings, log_level)


def membership_logs(kafka_settings: dict[str, Any]) -> MembershipLogs:
    """What makes an agent's way to the ledger and the beats of a pipeline."""
    from millstream.connectors.kafka.settings import KafkaSettings

    return partial(membership_log, KafkaSettings.from_json(kafka_settings))


def membership_log(kafka: KafkaSettings, pipeline: str) -> MembershipLog:
    """A node's way to the ledger and the beats of a pipeline, not connected yet."""
    from millstream.connectors.kafka.membership_log import KafkaMembershipLog

    names = Names.of(pipeline)
    return KafkaMembershipLog(kafka, ledger=names.ledger, beats=names.beats)


def check_waits(timings: Timings) -> None:
    """Raise SettingsError where the waits of a node do not go together."""
    check_timings(timings, commit_timeout_s=COMMIT_TIMEOUT_S, transaction_timeout_s=TRANSACTION_TIMEOUT_S)


def shard_host(
    app_path: str, kafka_settings: dict[str, Any], until: Until, workers: int, offload: dict[str, Any] | None = None
) -> Host:
    """The host of a worker process: loads the user's program and builds its pipeline.

    Raises PipelineError or SettingsError for what is wrong with either.
    """
    from millstream.connectors.kafka.settings import KafkaSettings
    from millstream.connectors.kafka.warm_up import warm_way
    from millstream.processor.app import load_pipeline
    from millstream.processor.host import RunOptions

    pipeline = load_pipeline(app_path).build()
    # Before this worker is ready: the first shard that it takes over would have to wait for it.
    warm_way()
    options = RunOptions(until_caught_up=until == "caught-up", workers=workers)
    settings = OffloadSettings(workers=workers) if offload is None else OffloadSettings.from_json(offload)
    return host(pipeline, KafkaSettings.from_json(kafka_settings), options, settings)


def host(
    pipeline: BuiltPipeline, kafka: KafkaSettings, options: RunOptions, offload: OffloadSettings | None = None
) -> Host:
    """The engine for a pipeline on a cluster."""
    from millstream.processor.host import Host

    return Host(pipeline, kafka_log(pipeline, kafka), options, offloading(pipeline, offload))


def offloading(pipeline: BuiltPipeline, settings: OffloadSettings | None) -> Offloading | None:
    """What looks after the offload stages of a worker, where there are some."""
    if not pipeline.offloads or settings is None:
        return None
    from millstream.gpu_offload.worker_offload import WorkerOffload

    return WorkerOffload(pipeline.offloads, settings)


def kafka_log(pipeline: BuiltPipeline, kafka: KafkaSettings) -> KafkaLog:
    """The cluster as the log of a pipeline, not connected yet."""
    from millstream.connectors.kafka.kafka_log import KafkaLog, LogSettings

    settings = LogSettings(
        group=pipeline.name,
        exactly_once=pipeline.guarantee == "exactly-once",
        commit_timeout_s=COMMIT_TIMEOUT_S,
        transaction_timeout_ms=int(TRANSACTION_TIMEOUT_S * 1000),
    )
    return KafkaLog(kafka, settings)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What an embedded run did. `outputs` and `dead_letters` are empty unless it was asked to collect them."""

    counts: Counts
    outputs: dict[str, list[TestOutput]] = field(default_factory=dict)
    dead_letters: list[TestOutput] = field(default_factory=list)


async def run_embedded(
    pipeline: Pipeline,
    *,
    brokers: str | Sequence[str] | KafkaSettings,
    until: Until,
    events: int | None,
    timeout_s: float | None,
    collect: bool,
    node_name: str | None,
    zone: str,
    labels: Sequence[str],
    devices: str = "auto",
) -> RunResult:
    """Run a pipeline in the caller's event loop, as a node with one worker; see `Pipeline.run`."""
    from millstream.processor.embedded_node import EmbeddedNode, RunEnd
    from millstream.processor.host import RunOptions
    from millstream.processor.membership_thread import MembershipThread
    from millstream.processor.testing import decoded_outputs

    built = pipeline.build()
    place = _checked_place(until, events, timeout_s, node_name, zone, labels)
    kafka = _kafka_settings(brokers)
    loop = asyncio.get_running_loop()
    end = RunEnd(until == "caught-up", events, None if timeout_s is None else loop.time() + timeout_s)
    collected: list[OutputRecords] = []
    options = RunOptions(
        until_caught_up=end.caught_up, on_outputs=collected.extend if collect else None, stays=end.caught_up
    )
    offload = _embedded_offload(devices)
    _refuse_without_device(built, offload)
    engine = host(built, kafka, options, offload)
    shards = await _prepared_shards(engine, end.deadline)
    if shards is not None:
        membership = MembershipThread(place, membership_log_in_thread(kafka, built.name, loop))
        held = node_devices(offload, "warning") if built.offloads else None
        await EmbeddedNode(engine, shards, membership, end, held).run()
    outputs, dead_letters = decoded_outputs(built, collected) if collect else ({}, [])
    return RunResult(engine.counts(), outputs, dead_letters)


def _refuse_without_device(built: BuiltPipeline, offload: OffloadSettings) -> None:
    """An embedded node that lacks what its pipeline requires would wait for ever."""
    required = [stage.definition.name for stage in built.offloads if stage.definition.device == "required"]
    if required and not offload.devices:
        raise SettingsError("the run cannot start", [f"stage {required[0]!r} requires a device: {offload.why}"])


def _embedded_offload(devices: str) -> OffloadSettings:
    """Raises SettingsError for devices that cannot be."""
    found, why = devices_from(devices)
    return OffloadSettings(devices=found, why=why)


def membership_log_in_thread(
    kafka: KafkaSettings, pipeline: str, loop: asyncio.AbstractEventLoop
) -> Callable[[], MembershipLog]:
    """What makes a node's way to the ledger in another thread than that of `loop`, which is the user's."""
    from millstream.connectors.kafka.loop_tokens import with_tokens_from

    return partial(membership_log, with_tokens_from(loop, kafka), pipeline)


def _checked_place(
    until: str, events: int | None, timeout_s: float | None, node_name: str | None, zone: str, labels: Sequence[str]
) -> NodePlace:
    """What the node says of itself, where everything that a run was given makes sense."""
    mistakes = []
    if until not in get_args(Until):
        mistakes.append(f"until={until!r} is unknown; use one of {', '.join(map(repr, get_args(Until)))}")
    if events is not None and not events >= 1:
        mistakes.append(f"events={events!r} must be at least 1")
    if timeout_s is not None and not timeout_s > 0:
        mistakes.append(f"timeout_s={timeout_s!r} must be more than 0 seconds")
    if isinstance(labels, str):
        mistakes.append(f"labels={labels!r} is one text; give a list of names")
        labels = ()
    named = [("node_name", node_name), ("zone", zone or None), *(("labels", label) for label in labels)]
    for argument, name in named:
        try:
            if name is not None:
                NAME.parse(name)
        except (TypeError, ValueError):
            mistakes.append(f"{argument}={name!r} cannot be a name; use up to 100 letters, digits, '.', '_' and '-'")
    if mistakes:
        raise SettingsError("the run cannot start", mistakes)
    return NodePlace(name=node_name or default_node_name(), zone=zone, labels=tuple(labels))


async def _prepared_shards(engine: Host, deadline: float | None) -> int | None:
    """The number of shards; None where the time was over before there was a broker with all the topics."""
    try:
        async with asyncio.timeout_at(deadline) as bound:
            return (await engine.prepare()).shards
    except TimeoutError:
        if not bound.expired():
            raise
        return None


def _kafka_settings(brokers: str | Sequence[str] | KafkaSettings) -> KafkaSettings:
    from millstream.connectors.kafka.settings import KafkaSettings, split_brokers

    if isinstance(brokers, KafkaSettings):
        return brokers
    return KafkaSettings(brokers=split_brokers(brokers) if isinstance(brokers, str) else tuple(brokers))
