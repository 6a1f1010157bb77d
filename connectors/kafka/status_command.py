"""`millstream status`: nodes, workers, shards and what became of them, from any machine that reaches the cluster."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from typing import Final

from rich.console import Console
from rich.live import Live

from millstream.connectors.kafka.onlooker import Sight, look_once, watch
from millstream.connectors.kafka.settings_arguments import add_kafka_arguments, kafka_settings_from
from millstream.connectors.kafka.status_tables import status_screen
from millstream.processor.errors import SettingsError
from millstream.processor.setting_sources import add_config_argument

REFRESH_S: Final = 0.25


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("pipeline", metavar="PIPELINE", help="the pipeline's name")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--watch", action="store_true", help="a live view of the same, until Ctrl-C")
    add_config_argument(parser)
    add_kafka_arguments(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Print tables or JSON, or show a live view; answers 0, whatever is seen."""
    if arguments.json and arguments.watch:
        raise SettingsError("the arguments of millstream status", ["--json prints once, --watch goes on; give one"])
    kafka = kafka_settings_from(arguments, os.environ)
    if arguments.watch:
        with Live(console=Console(), auto_refresh=False, screen=sys.stdout.isatty()) as live:

            def show(sight: Sight) -> None:
                live.update(status_screen(arguments.pipeline, sight, is_live=True), refresh=True)

            asyncio.run(watch(kafka, arguments.pipeline, show, refresh_s=REFRESH_S, seconds=None))
        return 0
    sight = asyncio.run(look_once(kafka, arguments.pipeline))
    if arguments.json:
        sys.stdout.write(json.dumps(as_json(arguments.pipeline, sight)) + "\n")
    else:
        Console().print(status_screen(arguments.pipeline, sight, is_live=False))
    return 0


def as_json(pipeline: str, sight: Sight) -> dict[str, object]:
    """All that was seen, as JSON-serialisable values."""
    built = {"pipeline": pipeline} | sight.view.as_json()
    for shard in built["shards"]:
        flow = sight.flows.get(shard["shard"])
        shard["lag"] = None if flow is None else flow.lag
        shard["offsets_per_s"] = None if flow is None or flow.per_s is None else round(flow.per_s, 1)
    return built
