"""`millstream transactions`: a pipeline's open transactions, and fencing them."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from millstream.connectors.kafka.settings_arguments import add_kafka_arguments, kafka_settings_from
from millstream.connectors.kafka.transactions import LISTEN_S, Transaction, fence, transactions_of
from millstream.processor.errors import SettingsError
from millstream.processor.setting_sources import add_config_argument

_DESCRIPTION: Final = f"""\
Show the transactional ids of a pipeline: state, how long a transaction is open, who holds it, what it has written to.
An open transaction hides from committed readers everything behind its records, until it ends or its timeout passes.

--fence aborts what is open and takes the shard from whoever held it. Nothing is lost or doubled by that, whenever it is
done: what was aborted is done again by the next start. A running pipeline fences what its dead nodes have left by
itself, so fencing is for one that is stopped for good or for long. It is refused while somebody runs the pipeline,
which it listens for during {LISTEN_S:g} seconds: beats of a node, or transactions that move on. With --force it is
done all the same; a running pipeline then starts each fenced shard again, once.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("pipeline", metavar="PIPELINE", help="the pipeline's name")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--fence",
        nargs="*",
        type=int,
        metavar="SHARD",
        help="fence these shards; without numbers, all that have an open transaction",
    )
    parser.add_argument("--force", action="store_true", help="with --fence: do not look whether the pipeline runs")
    add_config_argument(parser)
    add_kafka_arguments(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Print a table or JSON; answers 0. Nothing is fenced where an error is raised before."""
    kafka = kafka_settings_from(arguments, os.environ)
    fenced: list[int] = []
    if arguments.fence is None:
        if arguments.force:
            raise SettingsError("the arguments", ["--force is only for --fence; add that, or leave it out"])
        found = asyncio.run(transactions_of(kafka, arguments.pipeline))
    else:
        with Console(stderr=True).status("looking whether the pipeline runs"):
            fenced, found = asyncio.run(fence(kafka, arguments.pipeline, arguments.fence, is_forced=arguments.force))
    if arguments.json:
        rows = [row.as_json() for row in found]
        answer = {"pipeline": arguments.pipeline, "fenced": fenced, "transactions": rows}
        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        Console().print(_table(arguments.pipeline, found, fenced))
    return 0


def _table(pipeline: str, found: Sequence[Transaction], fenced: Sequence[int]) -> Table:
    title = f"{pipeline}: {sum(row.is_open for row in found)} open of {len(found)}"
    if fenced:
        title += f", fenced {', '.join(map(str, fenced))}"
    table = Table(title=title, title_justify="left")
    table.add_column("transactional id", overflow="fold")
    table.add_column("state")
    for column in ("open for", "producer", "epoch"):
        table.add_column(column, justify="right")
    table.add_column("open partitions", overflow="fold")
    for row in found:
        age = "" if row.age_s is None else f"{row.age_s:,.1f} s"
        partitions = ", ".join(map(str, row.partitions)) if row.is_open else ""
        producer = row.producer
        table.add_row(row.transactional_id, row.state, age, str(producer.producer_id), str(producer.epoch), partitions)
    return table
