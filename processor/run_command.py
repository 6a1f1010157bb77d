"""`millstream run`: serve a pipeline on this machine with an agent and worker processes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from millstream.processor import wiring
from millstream.processor.actions import Outcome
from millstream.processor.agent import HostFactory
from millstream.processor.event_log import LEVELS, configure_logging
from millstream.processor.node import report, run_node
from millstream.processor.node_settings import NodeSettings
from millstream.processor.participation import NodePlace, default_node_name
from millstream.processor.setting_sources import (
    NAME,
    NAMES,
    SECONDS,
    TEXT,
    Effective,
    Sources,
    add_config_argument,
    one_of,
    table,
    whole,
)

HOST_FACTORY: Final = "millstream.processor.wiring:shard_host"
WORKERS_MAX: Final = 1024
HTTP_DEFAULT: Final = "127.0.0.1:0"
# What a node that has a device says of itself in the ledger.
DEVICE_LABEL: Final = "device"
UNTIL: Final = ("stopped", "caught-up")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Everything that a run goes by. `kafka` may hold secrets, and is as JSON can carry it to the workers."""

    app: str
    workers: int
    drain_timeout_s: float
    until: str
    max_seconds: float | None
    http: str
    log_level: str
    place: NodePlace
    offload: wiring.Offload
    kafka: dict[str, Any] = field(repr=False)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments. Their values are texts, to be checked together with those of other sources."""
    parser.add_argument(
        "app",
        metavar="APP",
        nargs="?",
        help="where the pipeline is: app.py, app.py:name or package.module:name; "
        "without a name, the only Pipeline in the file",
    )
    add_config_argument(parser)
    wiring.add_connection_arguments(parser)
    wiring.add_device_arguments(parser)
    defaults = NodeSettings()
    parser.add_argument(
        "--workers",
        metavar="N",
        help=f"worker processes, each with a core and a share of the shards (default: {defaults.workers})",
    )
    parser.add_argument(
        "--drain-timeout-s",
        metavar="S",
        help=f"how long SIGTERM or Ctrl-C may take to commit what is in hand (default: {defaults.drain_timeout_s:g})",
    )
    parser.add_argument(
        "--until",
        metavar="END",
        help="run until stopped, or, with caught-up, until all that was there at the start is processed "
        "(default: stopped)",
    )
    parser.add_argument("--max-seconds", metavar="S", help="drain and exit after this long")
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="where to answer /healthz, /readyz, /metrics and /status; port 0 is any free one, and is logged; "
        f"off for none (default: {HTTP_DEFAULT})",
    )
    parser.add_argument(
        "--node-name",
        metavar="NAME",
        help="what this node is called in the ledger, status and metrics; two may be called the same (default: the "
        "machine's host name)",
    )
    parser.add_argument(
        "--zone",
        metavar="ZONE",
        help="what fails together with this node, such as a rack or an availability zone: a shard's standby is in "
        "another one where there is a choice",
    )
    parser.add_argument(
        "--labels", metavar="NAME,...", help="what this node is or has, for pipelines that require it and to be seen"
    )
    parser.add_argument("--log-level", metavar="LEVEL", help=f"{', '.join(LEVELS)} (default: info)")
    parser.add_argument(
        "--show-settings",
        action="store_true",
        help="print the settings in effect with where each comes from, secrets masked, and exit",
    )


def settings_from(arguments: argparse.Namespace, environ: Mapping[str, str]) -> tuple[RunSettings, list[Effective]]:
    """The settings, and how each came about. Raises SettingsError with every mistake of all sources."""
    sources = Sources(arguments, environ)
    defaults = NodeSettings()
    app = sources.value("app", TEXT, argument="APP")
    if not app:
        sources.mistakes.append("no pipeline is named; give APP, as in `millstream run app.py`, or MILLSTREAM_APP")
    values: dict[str, Any] = {
        "workers": sources.value("workers", whole(1, WORKERS_MAX), defaults.workers),
        "drain_timeout_s": sources.value("drain_timeout_s", SECONDS, defaults.drain_timeout_s),
        "until": sources.value("until", one_of(*UNTIL), "stopped"),
        "max_seconds": sources.value("max_seconds", SECONDS),
        "http": sources.value("http", TEXT, HTTP_DEFAULT),
        "log_level": sources.value("log_level", one_of(*LEVELS), "info"),
    }
    place = _place_from(sources)
    offload = wiring.devices_from_sources(sources, values["workers"] or 1)
    kafka = wiring.connection_from(sources)
    if offload.devices and DEVICE_LABEL not in place.labels:
        place = replace(place, labels=(*place.labels, DEVICE_LABEL))
    sources.note_unknown()
    sources.check("the settings")
    assert app is not None
    assert kafka is not None
    settings = RunSettings(app=app, kafka=kafka, place=place, offload=offload, **values)
    wiring.check_waits(settings.place.timings)
    return settings, sources.effective


def _place_from(sources: Sources) -> NodePlace:
    name = sources.value("node_name", NAME, default_node_name())
    zone = sources.value("zone", NAME)
    labels = sources.value("labels", NAMES, "")
    given = tuple(filter(None, (labels or "").split(",")))
    return NodePlace(name=name or "", zone=zone or "", labels=given)


def execute(arguments: argparse.Namespace) -> int:
    """Run the node to its end; answers the exit code: 0 drained, 1 failed, 2 wrong settings or pipeline."""
    settings, effective = settings_from(arguments, os.environ)
    if arguments.show_settings:
        sys.stdout.write(table(effective))
        return 0
    configure_logging(settings.log_level)
    return report(run(settings))


def run(settings: RunSettings) -> Outcome:
    """Run a node by these settings, to its end."""
    factory = HostFactory(
        HOST_FACTORY,
        {
            "app_path": settings.app,
            "kafka_settings": settings.kafka,
            "until": settings.until,
            "workers": settings.workers,
            "offload": settings.offload.to_json(),
        },
    )
    return run_node(
        NodeSettings(workers=settings.workers, drain_timeout_s=settings.drain_timeout_s),
        factory,
        settings.place,
        wiring.membership_logs(settings.kafka),
        http=settings.http,
        log_level=settings.log_level,
        max_seconds=settings.max_seconds,
        devices=wiring.node_devices(settings.offload, settings.log_level),
    )
