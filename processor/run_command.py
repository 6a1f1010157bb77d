"""`millstream run`: serve a pipeline on this machine with an agent and worker processes."""

from __future__ import annotations

import argparse
from typing import Final

from millstream.processor import wiring
from millstream.processor.actions import Outcome
from millstream.processor.agent import HostFactory
from millstream.processor.event_log import LEVELS, configure_logging
from millstream.processor.node import report, run_node
from millstream.processor.supervision import NodeSettings

HOST_FACTORY: Final = "millstream.processor.wiring:shard_host"
WORKERS_MAX: Final = 1024


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "app",
        metavar="APP",
        help="where the pipeline is: app.py, app.py:name or package.module:name; "
        "without a name, the only Pipeline in the file",
    )
    wiring.add_connection_arguments(parser)
    defaults = NodeSettings()
    parser.add_argument(
        "--workers",
        type=_worker_count,
        default=defaults.workers,
        metavar="N",
        help="worker processes, each with a core and a share of the shards (default: %(default)s)",
    )
    parser.add_argument(
        "--drain-timeout-s",
        type=_seconds,
        default=defaults.drain_timeout_s,
        metavar="S",
        help="how long SIGTERM or Ctrl-C may take to commit what is in hand (default: %(default)g)",
    )
    parser.add_argument(
        "--until",
        choices=("stopped", "caught-up"),
        default="stopped",
        help="run until stopped, or until all that was there at the start is processed (default: %(default)s)",
    )
    parser.add_argument(
        "--max-seconds", type=_seconds, default=None, metavar="S", help="drain and exit after this long"
    )
    parser.add_argument(
        "--http",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where to answer /healthz, /metrics and /status; port 0 is any free one, and is logged; "
        "off for none (default: %(default)s)",
    )
    parser.add_argument("--log-level", choices=LEVELS, default="info", help="(default: %(default)s)")


def execute(arguments: argparse.Namespace) -> int:
    """Run the node to its end; answers the exit code: 0 drained, 1 failed, 2 wrong settings or pipeline."""
    configure_logging(arguments.log_level)
    return report(_run(arguments))


def _run(arguments: argparse.Namespace) -> Outcome:
    factory = HostFactory(
        HOST_FACTORY,
        {
            "app_path": arguments.app,
            "kafka_settings": wiring.connection_from(arguments),
            "until": arguments.until,
        },
    )
    return run_node(
        NodeSettings(workers=arguments.workers, drain_timeout_s=arguments.drain_timeout_s),
        factory,
        http=arguments.http,
        log_level=arguments.log_level,
        max_seconds=arguments.max_seconds,
    )


def _worker_count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= WORKERS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of workers from 1 to {WORKERS_MAX}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds
