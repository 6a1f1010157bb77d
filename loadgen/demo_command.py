"""`millstream demo`: a broker, a pipeline on one node or several, and a judge, in one minute."""

from __future__ import annotations

import argparse
import os
import signal
from dataclasses import asdict
from types import FrameType
from typing import Final

import orjson
from rich.console import Console

from millstream.connectors.kafka.settings import KafkaSettings
from millstream.connectors.kafka.settings_arguments import (
    add_kafka_arguments,
    kafka_environment,
    kafka_settings_from,
    names_brokers,
)
from millstream.loadgen.demo import DemoSettings, Trouble, Usual, run_demo
from millstream.loadgen.demo_nodes import WINDOW_S
from millstream.loadgen.demo_offload import OffloadDemoSettings, run_offload_demo
from millstream.loadgen.demo_offload_screen import OffloadScreen, print_offload_report
from millstream.loadgen.demo_screen import Screen, print_report
from millstream.processor.errors import SettingsError

# With --kill-node and no other arguments, on two cores.
DURATION_S: Final = 25.0
# With --offload; half of it is the time for which a device that died is not trusted.
OFFLOAD_S: Final = 90.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_kafka_arguments(parser)
    one, several = DemoSettings(), Usual.of(3, Trouble.KILL_NODE)
    parser.add_argument("--rate", type=float, help=f"events a second ({one.rate:g})")
    parser.add_argument(
        "--seconds", type=float, help=f"how long events flow ({one.seconds:g}; with --kill-node {several.seconds:g})"
    )
    parser.add_argument("--nodes", type=int, default=one.nodes, help="nodes, which share the shards (%(default)s)")
    parser.add_argument(
        "--workers",
        type=int,
        help=f"worker processes of each node ({one.workers}; of several nodes {several.workers})",
    )
    parser.add_argument(
        "--partitions", type=int, help=f"of each topic ({one.partitions}; at least 2 for each of several nodes)"
    )
    parser.add_argument("--seed", type=int, help=f"of the events ({one.seed})")
    parser.add_argument(
        "--kill", action="store_true", help="kill a worker, then the whole node, which is started again, under load"
    )
    parser.add_argument(
        "--kill-node",
        action="store_true",
        help=f"kill one of several nodes under load, and see the others take over (about {DURATION_S:.0f} s)",
    )
    parser.add_argument(
        "--offload",
        action="store_true",
        help=f"a stage that may run on a (simulated) device under a changing load, and the device killed "
        f"(about {OFFLOAD_S:.0f} s; --seconds is for how long each act is shown, {OffloadDemoSettings().show_s:g})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Show it, print verdict and figures, and answer 0 only when the verdict is clean."""
    # A service manager's SIGTERM must clean up like Ctrl-C does.
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _offload_demo(arguments) if arguments.offload else _demo(arguments)
    finally:
        signal.signal(signal.SIGTERM, before)


def _demo(arguments: argparse.Namespace) -> int:
    settings = settings_from(arguments)
    environ, kafka = _cluster(arguments)
    with Screen(Console(stderr=True), settings) as screen:
        if settings.trouble is Trouble.KILL_NODE:
            about_s = settings.seconds + DURATION_S - Usual.of(settings.nodes, settings.trouble).seconds
            screen.announce(
                f"This takes about {about_s:.0f} s: a node is killed only when the others have heard its beats "
                f"for {WINDOW_S:g} s."
            )
        report = run_demo(settings, kafka, environ, screen.show)
    if arguments.json:
        print(orjson.dumps(report.as_json()).decode())
    else:
        print_report(Console(), report, settings)
    return 0 if report.is_clean else 1


def _offload_demo(arguments: argparse.Namespace) -> int:
    settings = offload_settings_from(arguments)
    environ, kafka = _cluster(arguments)
    with OffloadScreen(Console(stderr=True)) as screen:
        screen.announce(f"This takes about {OFFLOAD_S:.0f} s: a device that died is not trusted for half a minute.")
        report = run_offload_demo(settings, kafka, environ, screen.show, screen.announce)
    if arguments.json:
        print(orjson.dumps(report.as_json()).decode())
    else:
        print_offload_report(Console(), report)
    return 0 if report.is_clean else 1


def _cluster(arguments: argparse.Namespace) -> tuple[dict[str, str], KafkaSettings | None]:
    """What nodes are started with, and the cluster that was named, if one was."""
    environ = {**os.environ, **kafka_environment(arguments)}
    return environ, kafka_settings_from(arguments, os.environ) if names_brokers(arguments, os.environ) else None


def offload_settings_from(arguments: argparse.Namespace) -> OffloadDemoSettings:
    """What is asked for with `--offload`. Raises SettingsError for what it has no place for."""
    named = {name: getattr(arguments, name) for name in ("rate", "workers", "partitions")}
    given = [f"--{name}" for name, value in named.items() if value is not None]
    given += [flag for flag, is_on in (("--kill", arguments.kill), ("--kill-node", arguments.kill_node)) if is_on]
    given += ["--nodes"] if arguments.nodes != DemoSettings().nodes else []
    if given:
        raise SettingsError(
            "the demo cannot start",
            [f"--offload sets load and node by what the CPU can do; leave out {', '.join(given)}"],
        )
    asked = {"show_s": arguments.seconds, "seed": arguments.seed}
    return OffloadDemoSettings(**{name: value for name, value in asked.items() if value is not None})


def settings_from(arguments: argparse.Namespace) -> DemoSettings:
    """What is asked for; the rest follows from how many nodes there are and what is killed.

    Raises SettingsError with every mistake at once.
    """
    if arguments.kill and arguments.kill_node:
        raise SettingsError(
            "the demo cannot start",
            ["--kill starts the only node again, --kill-node leaves one of several dead; give one of them"],
        )
    trouble = Trouble.KILL if arguments.kill else Trouble.KILL_NODE if arguments.kill_node else Trouble.NONE
    named = ("rate", "seconds", "workers", "partitions", "seed")
    asked = {name: value for name in named if (value := getattr(arguments, name)) is not None}
    return DemoSettings(nodes=arguments.nodes, trouble=trouble, **asdict(Usual.of(arguments.nodes, trouble)) | asked)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
