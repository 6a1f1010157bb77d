"""`millstream load`: send seeded events to a topic on an open schedule."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field

import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from millstream.connectors.kafka.settings_arguments import add_kafka_arguments, kafka_settings_from
from millstream.loadgen.produce import SendProgress, SendReport, send_all
from millstream.loadgen.schedule import Arrivals, Burst, FullSpeed, Pace, Schedule, arrivals_at
from millstream.loadgen.topics import TopicAdmin
from millstream.loadgen.workload import KeyDistribution, Workload, WorkloadSettings
from millstream.processor.errors import SettingsError

EVENTS_MAX = 1_000_000_000
LATENESS_MS_MAX = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """How many events to send, and when. `rate` None sends as fast as the client takes them."""

    rate: float | None
    events: int
    arrivals: Arrivals = Arrivals.CONSTANT
    burst: Burst = field(default_factory=Burst)

    def pace(self, seed: int) -> Pace:
        """The pace. Raises SettingsError for a rate that no clock could follow."""
        if self.rate is None:
            return FullSpeed(self.events)
        return Schedule(arrivals_at(self.arrivals, self.rate, seed, self.burst), self.events)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_kafka_arguments(parser)
    parser.add_argument("--topic", required=True, help="the topic to send to")
    parser.add_argument("--create-partitions", type=int, metavar="N", help="create the topic, if it is not there")
    parser.add_argument("--rate", default="20000", help="events a second, or 'max' (20000)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--events", type=int, metavar="N", help="how many to send")
    length.add_argument("--seconds", type=float, metavar="S", help="how long to send (10)")
    parser.add_argument(
        "--arrivals", choices=[kind.value for kind in Arrivals], default=Arrivals.CONSTANT.value, help="(constant)"
    )
    burst = Burst()
    parser.add_argument(
        "--burst-factor",
        type=float,
        default=burst.factor,
        metavar="F",
        help="bursty: F times the rate for 1/F of each period, then silence (%(default)g)",
    )
    parser.add_argument(
        "--burst-period-s", type=float, default=burst.period_s, metavar="S", help="bursty: a period (%(default)g)"
    )
    parser.add_argument("--seed", type=int, default=7, help="the same seed makes the same events (7)")
    parser.add_argument("--keys", type=int, default=1000, help="how many different keys (1000)")
    parser.add_argument(
        "--keys-distribution",
        choices=[kind.value for kind in KeyDistribution],
        default=KeyDistribution.UNIFORM.value,
        help="(uniform)",
    )
    parser.add_argument("--zipf-s", type=float, default=1.1, metavar="S", help="zipf: the exponent (1.1)")
    parser.add_argument("--key-prefix", default="k", help="what keys begin with (k)")
    parser.add_argument("--first-id", type=int, default=0, help="the first event's id (0)")
    parser.add_argument(
        "--payload-bytes", default="90", metavar="N[-M]", help="pad smaller events, to a size drawn from N to M (90)"
    )
    parser.add_argument(
        "--lateness-ms-max",
        type=float,
        default=LATENESS_MS_MAX,
        metavar="MS",
        help="fail when the p99 of lateness behind the schedule is above this (100)",
    )
    parser.add_argument("--allow-late", action="store_true", help="do not fail when the schedule was not kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Send, report, and answer 0 only when every event was delivered and the schedule was kept."""
    payload_bytes, payload_bytes_max = _payload_bytes(arguments.payload_bytes)
    workload = WorkloadSettings(
        seed=arguments.seed,
        keys=arguments.keys,
        key_distribution=KeyDistribution(arguments.keys_distribution),
        zipf_s=arguments.zipf_s,
        payload_bytes=payload_bytes,
        payload_bytes_max=payload_bytes_max,
        first_id=arguments.first_id,
        key_prefix=arguments.key_prefix,
    )
    settings = _load_settings(arguments)
    pace = settings.pace(arguments.seed)
    kafka = kafka_settings_from(arguments, os.environ)
    _provide_topic(TopicAdmin(kafka.confluent_arguments()), arguments.topic, arguments.create_partitions)
    notes = Console(stderr=True)
    with _progress(notes, settings.events) as progress:
        (task,) = progress.task_ids

        def show(at: SendProgress) -> None:
            progress.update(task, completed=at.sent)

        report = send_all(kafka, arguments.topic, Workload(workload), pace, on_progress=show)
    mistakes = load_mistakes(report, arguments.lateness_ms_max)
    is_late_only = report.failed == 0
    _print(report, mistakes, arguments.topic, as_json=arguments.json)
    return 0 if not mistakes or (is_late_only and arguments.allow_late) else 1


def load_mistakes(report: SendReport, lateness_ms_max: float) -> list[str]:
    """What keeps a load from counting as what was asked for; empty when it does."""
    mistakes = []
    if report.failed:
        mistakes.append(f"{report.failed} of {report.events} events were not delivered: {report.first_error}")
    if report.lateness is not None and report.lateness.p99 > lateness_ms_max:
        mistakes.append(
            f"the schedule was not kept: one in a hundred events left more than {report.lateness.p99:,.0f} ms late "
            f"(at most {lateness_ms_max:,.0f} asked for), {report.lateness.max:,.0f} ms at worst; lower the rate, or "
            "give the generator a core of its own"
        )
    return mistakes


def _payload_bytes(text: str) -> tuple[int, int | None]:
    least, dash, most = text.partition("-")
    try:
        return int(least), int(most) if dash else None
    except ValueError as error:
        reason = f"--payload-bytes is {text!r}; give a size such as 90, or a range such as 90-400"
        raise SettingsError("the load cannot be sent", [reason]) from error


def _load_settings(arguments: argparse.Namespace) -> LoadSettings:
    mistakes = []
    rate: float | None = None
    if arguments.rate != "max":
        try:
            rate = float(arguments.rate)
        except ValueError:
            mistakes.append(f"--rate is {arguments.rate!r}; give events a second, or 'max'")
    seconds = 10.0 if arguments.seconds is None else arguments.seconds
    if arguments.events is not None:
        events = arguments.events
    elif arguments.rate == "max":
        events = 0
        mistakes.append("--rate max needs --events: without a rate, seconds do not say how many")
    else:
        events = int((rate or 0.0) * seconds) if 0 < seconds < 1e7 and 0 < (rate or 1.0) < 1e9 else 0
    if not mistakes and not 1 <= events <= EVENTS_MAX:
        mistakes.append(f"that would be {events} events; choose rate, seconds or events for 1 to {EVENTS_MAX}")
    if mistakes:
        raise SettingsError("the load cannot be sent", mistakes)
    burst = Burst(factor=arguments.burst_factor, period_s=arguments.burst_period_s)
    return LoadSettings(rate=rate, events=events, arrivals=Arrivals(arguments.arrivals), burst=burst)


def _provide_topic(admin: TopicAdmin, topic: str, create_partitions: int | None) -> None:
    if create_partitions is not None:
        if not 1 <= create_partitions <= 10_000:
            raise SettingsError("the topic", [f"--create-partitions is {create_partitions}; give 1 to 10000"])
        admin.create(topic, create_partitions)
    elif not admin.partition_count(topic):
        raise SettingsError("the topic", [f"topic {topic!r} does not exist; create it, or give --create-partitions N"])


def _progress(console: Console, events: int) -> Progress:
    progress = Progress(
        TextColumn("sent"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    progress.add_task("load", total=events)
    return progress


def _print(report: SendReport, mistakes: list[str], topic: str, *, as_json: bool) -> None:
    if as_json:
        print(orjson.dumps({**report.as_json(), "topic": topic, "mistakes": mistakes}).decode())
        return
    table = Table(title=f"Sent to {topic}", show_header=False, title_justify="left")
    table.add_column(style="cyan")
    table.add_column(justify="right")
    table.add_row("events delivered", f"{report.delivered:,}")
    table.add_row("failed", f"{report.failed:,}")
    table.add_row("events per second", f"{report.events_per_s:,.0f}")
    if report.lateness is not None:
        table.add_row("lateness p99 / max", f"{report.lateness.p99:,.2f} / {report.lateness.max:,.2f} ms")
    console = Console()
    console.print(table)
    for mistake in mistakes:
        console.print(f"[bold red]{mistake}[/]")
