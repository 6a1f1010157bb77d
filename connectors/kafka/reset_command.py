"""`millstream reset`: move a stopped pipeline's committed offsets."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from rich.console import Console
from rich.table import Table

from millstream.connectors.kafka.kafka_log import KafkaLog, LogSettings
from millstream.connectors.kafka.lag import lags_of
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.connectors.kafka.settings_arguments import add_kafka_arguments, kafka_settings_from
from millstream.processor.errors import SettingsError
from millstream.processor.log import Start
from millstream.processor.partitions import TopicPartition
from millstream.processor.reset import Moved, Plan, ResetRequest, carry_out, plan_reset
from millstream.processor.setting_sources import add_config_argument

_FORMS: Final = "earliest, latest, a time with its zone such as 2026-11-01T00:00:00Z, or TOPIC:PARTITION=OFFSET"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("pipeline", metavar="PIPELINE", help="the pipeline's name; it must be stopped")
    parser.add_argument(
        "--to",
        action="append",
        required=True,
        metavar="WHERE",
        help=f"{_FORMS}; the last may be given several times",
    )
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC",
        help="only this input topic; may be repeated",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument(
        "--force", action="store_true", help="do not look whether it runs; one that does goes on from the new offsets"
    )
    add_config_argument(parser)
    add_kafka_arguments(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Reset and show what was moved; answers 0. Nothing is changed where an error is raised before the commits."""
    request = request_from(arguments.pipeline, arguments.to, arguments.topic)
    kafka = kafka_settings_from(arguments, os.environ)
    with Console(stderr=True).status("looking at the pipeline") as status:
        moved = asyncio.run(_reset(kafka, request, status.update, is_dry=arguments.dry_run, is_forced=arguments.force))
    Console().print(_table(arguments.pipeline, moved, is_dry=arguments.dry_run))
    return 0


def request_from(pipeline: str, to: Sequence[str], topics: Sequence[str]) -> ResetRequest:
    """What the arguments ask for. Raises SettingsError with every mistake in them."""
    mistakes: list[str] = []
    starts: list[Start] = []
    offsets: dict[TopicPartition, int] = {}
    for text in to:
        try:
            if "=" in text:
                partition, offset = _offset(text)
                if offsets.get(partition, offset) != offset:
                    mistakes.append(f"--to names {partition} twice, with {offsets[partition]} and {offset}")
                offsets[partition] = offset
            else:
                starts.append(_start(text))
        except ValueError as error:
            mistakes.append(f"--to {text!r}: {error}; give {_FORMS}")
    if len(to) > 1 and len(offsets) < len(to) and not mistakes:
        mistakes.append(f"--to {' and --to '.join(to)} contradict each other; only TOPIC:PARTITION=OFFSET may repeat")
    if offsets and topics:
        mistakes.append(f"--topic {topics[0]} and --to {to[0]} contradict each other; the latter names its topic")
    if mistakes:
        raise SettingsError("the offsets cannot be reset", mistakes)
    return ResetRequest(
        pipeline=pipeline, to=starts[0] if starts else None, topics=tuple(topics), offsets=offsets or None
    )


def _offset(text: str) -> tuple[TopicPartition, int]:
    place, _, offset = text.rpartition("=")
    topic, _, partition = place.rpartition(":")
    if not topic or not all(number.isascii() and number.isdecimal() for number in (partition, offset)):
        raise ValueError("it is no partition with an offset")
    return TopicPartition(topic, int(partition)), int(offset)


def _start(text: str) -> Start:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("it is no time") from None
    if time.tzinfo is None:
        raise ValueError("the time has no zone")
    return time


async def _reset(
    kafka: KafkaSettings, request: ResetRequest, tell: Callable[[str], None], *, is_dry: bool, is_forced: bool
) -> list[Moved]:
    log_ = KafkaLog(kafka, LogSettings(group=request.pipeline, exactly_once=True))
    try:
        await log_.connect()
        plan = await plan_reset(log_, request)
        if is_dry:
            return await _would_move(kafka, request.pipeline, plan)
        return await carry_out(log_, plan, is_forced=is_forced, tell=tell)
    finally:
        log_.close()


async def _would_move(kafka: KafkaSettings, pipeline: str, plan: Plan) -> list[Moved]:
    now = {TopicPartition(row.topic, row.partition): row.committed for row in await lags_of(kafka, pipeline)}
    return [Moved(partition, now.get(partition), at) for partition, at in sorted(plan.targets.items())]


def _table(pipeline: str, moved: Sequence[Moved], *, is_dry: bool) -> Table:
    title = f"{pipeline}: {'would be reset' if is_dry else 'reset'}, {len(moved)} partitions"
    table = Table(title=title, title_justify="left")
    table.add_column("topic", overflow="fold")
    for column in ("partition", "from", "to"):
        table.add_column(column, justify="right")
    for move in moved:
        before = "" if move.before is None else f"{move.before:,}"
        table.add_row(move.partition.topic, str(move.partition.partition), before, f"{move.after:,}")
    return table
