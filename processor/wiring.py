"""The one place that joins the parts: a user's pipeline, the engine, and Kafka.

Everything heavy is imported inside the functions: the agent reads its arguments here, and must stay light.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from millstream.connectors.kafka.settings_arguments import add_kafka_arguments, read_kafka_settings
from millstream.processor.counts import Counts
from millstream.processor.errors import SettingsError
from millstream.processor.event_log import EventLog
from millstream.processor.setting_sources import Sources
from millstream.processor.shard_host import HostEvent, ShardRestarted

if TYPE_CHECKING:
    from millstream.connectors.kafka.kafka_log import KafkaLog
    from millstream.connectors.kafka.settings import KafkaSettings
    from millstream.processor.build import BuiltPipeline
    from millstream.processor.columns import OutputRecords
    from millstream.processor.host import Host, RunOptions
    from millstream.processor.pipeline import Pipeline
    from millstream.processor.testing import TestOutput

_log: Final = EventLog(logging.getLogger("millstream.engine"))

Until = Literal["stopped", "caught-up"]

_DRAIN_TIMEOUT_S = 20.0
_LOOK_INTERVAL_S = 0.02


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how to reach the cluster."""
    add_kafka_arguments(parser)


def connection_from(sources: Sources) -> dict[str, Any] | None:
    """The cluster's settings as JSON can carry them to the workers. None where the sources have mistakes in them."""
    settings = read_kafka_settings(sources)
    return None if settings is None else settings.to_json()


def shard_host(app_path: str, kafka_settings: dict[str, Any], until: Until, workers: int) -> Host:
    """The host of a worker process: loads the user's program and builds its pipeline.

    Raises PipelineError or SettingsError for what is wrong with either.
    """
    from millstream.connectors.kafka.settings import KafkaSettings
    from millstream.processor.app import load_pipeline
    from millstream.processor.host import RunOptions

    pipeline = load_pipeline(app_path).build()
    options = RunOptions(until_caught_up=until == "caught-up", workers=workers)
    return host(pipeline, KafkaSettings.from_json(kafka_settings), options)


def host(pipeline: BuiltPipeline, kafka: KafkaSettings, options: RunOptions) -> Host:
    """The engine for a pipeline on a cluster."""
    from millstream.processor.host import Host

    return Host(pipeline, kafka_log(pipeline, kafka), options)


def kafka_log(pipeline: BuiltPipeline, kafka: KafkaSettings) -> KafkaLog:
    """The cluster as the log of a pipeline, not connected yet."""
    from millstream.connectors.kafka.kafka_log import KafkaLog, LogSettings

    return KafkaLog(kafka, LogSettings(group=pipeline.name, exactly_once=pipeline.guarantee == "exactly-once"))


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
) -> RunResult:
    """Run a pipeline in the caller's event loop, with all of its shards; see `Pipeline.run`."""
    from millstream.processor.host import RunOptions
    from millstream.processor.testing import decoded_outputs
    from millstream.processor.together import first_error

    built = pipeline.build()
    _check_run(until, events, timeout_s)
    deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
    collected: list[OutputRecords] = []
    options = RunOptions(until_caught_up=until == "caught-up", on_outputs=collected.extend if collect else None)
    engine = host(built, _kafka_settings(brokers), options)
    shards = await _prepared_shards(engine, deadline)
    if shards is not None:
        engine.assign(frozenset(range(shards)))
        try:
            async with asyncio.TaskGroup() as tasks:
                ending = tasks.create_task(_end(engine, events, deadline))
                await engine.serve(_log_restart)
                ending.cancel()
        except BaseExceptionGroup as group:
            raise first_error(group) from group
    outputs, dead_letters = decoded_outputs(built, collected) if collect else ({}, [])
    return RunResult(engine.counts(), outputs, dead_letters)


def _log_restart(event: HostEvent) -> None:
    """What a worker process would log; starts and releases are the caller's own doing here."""
    if isinstance(event, ShardRestarted):
        _log.warning("shard.restarted", shard=event.shard, reason=event.reason)


def _check_run(until: str, events: int | None, timeout_s: float | None) -> None:
    mistakes = []
    if until not in get_args(Until):
        mistakes.append(f"until={until!r} is unknown; use one of {', '.join(map(repr, get_args(Until)))}")
    if events is not None and not events >= 1:
        mistakes.append(f"events={events!r} must be at least 1")
    if timeout_s is not None and not timeout_s > 0:
        mistakes.append(f"timeout_s={timeout_s!r} must be more than 0 seconds")
    if mistakes:
        raise SettingsError("the run cannot start", mistakes)


async def _prepared_shards(engine: Host, deadline: float | None) -> int | None:
    """The number of shards; None where the time was over before there was a broker with all the topics."""
    try:
        async with asyncio.timeout_at(deadline) as bound:
            return (await engine.prepare()).shards
    except TimeoutError:
        if not bound.expired():
            raise
        return None


async def _end(engine: Host, events: int | None, deadline: float | None) -> None:
    """Stop the engine when enough was processed, or when the time is over."""
    loop = asyncio.get_running_loop()
    while True:
        if events is not None and engine.counts().records_in >= events:
            break
        if deadline is not None and loop.time() >= deadline:
            break
        await asyncio.sleep(_LOOK_INTERVAL_S)
    await engine.stop(_DRAIN_TIMEOUT_S)


def _kafka_settings(brokers: str | Sequence[str] | KafkaSettings) -> KafkaSettings:
    from millstream.connectors.kafka.settings import KafkaSettings, split_brokers

    if isinstance(brokers, KafkaSettings):
        return brokers
    return KafkaSettings(brokers=split_brokers(brokers) if isinstance(brokers, str) else tuple(brokers))
