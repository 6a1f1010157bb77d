"""`millstream lag`: how far a pipeline is, by partition."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys

from rich.console import Console
from rich.table import Table

from millstream.connectors.kafka.lag import PartitionLag, lags_of
from millstream.connectors.kafka.settings_arguments import add_kafka_arguments, kafka_settings_from
from millstream.processor.setting_sources import add_config_argument


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("pipeline", metavar="PIPELINE", help="the pipeline's name")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_config_argument(parser)
    add_kafka_arguments(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Print a table or JSON; answers 0, however large the lag is."""
    kafka = kafka_settings_from(arguments, os.environ)
    lags = asyncio.run(lags_of(kafka, arguments.pipeline))
    total = sum(row.lag or 0 for row in lags)
    if arguments.json:
        rows = [row.as_json() for row in lags]
        sys.stdout.write(json.dumps({"pipeline": arguments.pipeline, "lag": total, "partitions": rows}) + "\n")
    else:
        Console().print(_table(arguments.pipeline, lags, total))
    return 0


def _table(pipeline: str, lags: list[PartitionLag], total: int) -> Table:
    table = Table(title=f"{pipeline}: {total:,} behind", title_justify="left")
    table.add_column("topic", overflow="fold")
    for column in ("partition", "committed", "end", "lag", "oldest waits"):
        table.add_column(column, justify="right")
    table.add_column("state")
    for row in lags:
        numbers = [row.committed, row.end, row.lag]
        age = "" if row.age_s is None else f"{row.age_s:,.1f} s"
        table.add_row(row.topic, str(row.partition), *("" if n is None else f"{n:,}" for n in numbers), age, row.state)
    return table
