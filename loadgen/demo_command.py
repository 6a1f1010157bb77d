"""`millstream demo`: a broker, a pipeline and a judge, in one minute."""

from __future__ import annotations

import argparse
import os
import signal
import time
from types import FrameType
from typing import Self

import orjson
from rich.console import Console
from rich.live import Live
from rich.table import Table

from millstream.connectors.kafka.settings_arguments import (
    add_kafka_arguments,
    kafka_environment,
    kafka_settings_from,
    names_brokers,
)
from millstream.loadgen.demo import DemoProgress, DemoReport, DemoSettings, Trouble, run_demo


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_kafka_arguments(parser)
    defaults = DemoSettings()
    parser.add_argument("--rate", type=float, default=defaults.rate, help="events a second (%(default)g)")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="how long events flow (%(default)g)")
    parser.add_argument("--workers", type=int, default=defaults.workers, help="worker processes (%(default)s)")
    parser.add_argument("--partitions", type=int, default=defaults.partitions, help="of each topic (%(default)s)")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of the events (%(default)s)")
    parser.add_argument("--kill", action="store_true", help="kill a worker, then the whole node, while events flow")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Show it, print verdict and figures, and answer 0 only when the verdict is clean."""
    settings = DemoSettings(
        rate=arguments.rate,
        seconds=arguments.seconds,
        workers=arguments.workers,
        partitions=arguments.partitions,
        seed=arguments.seed,
        trouble=Trouble.KILL if arguments.kill else Trouble.NONE,
    )
    environ = {**os.environ, **kafka_environment(arguments)}
    kafka = kafka_settings_from(arguments, os.environ) if names_brokers(arguments, os.environ) else None
    # A service manager's SIGTERM must clean up like Ctrl-C does.
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with Screen(Console(stderr=True), settings) as screen:
            report = run_demo(settings, kafka, environ, screen.show)
    finally:
        signal.signal(signal.SIGTERM, before)
    _print(report, settings, as_json=arguments.json)
    return 0 if report.is_clean else 1


class Screen:
    """Progress on stderr: a small table that is redrawn, or a line for each new phase where nobody watches."""

    def __init__(self, console: Console, settings: DemoSettings) -> None:
        self._console = console
        self._events = settings.events
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._waiting_for = ""
        self._before: tuple[float, int] | None = None
        self._rate = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, at: DemoProgress) -> None:
        """Show how far the demo is."""
        if self._live is not None:
            self._live.update(self._table(at), refresh=True)
        elif at.waiting_for != self._waiting_for:
            self._console.print(f"waiting for {at.waiting_for}", highlight=False)
        self._waiting_for = at.waiting_for

    def _table(self, at: DemoProgress) -> Table:
        now = time.monotonic()
        if self._before is None or at.seen < self._before[1]:
            self._before = (now, at.seen)
        elif now - self._before[0] >= 1.0:
            self._rate = (at.seen - self._before[1]) / (now - self._before[0])
            self._before = (now, at.seen)
        table = Table(show_header=False, box=None)
        table.add_row("waiting for", at.waiting_for)
        table.add_row("sent", f"{at.sent:,} of {self._events:,}")
        table.add_row("seen by the judge", f"{at.seen:,}")
        table.add_row("on the way", f"{max(0, at.sent - at.seen):,}")
        table.add_row("events per second", f"{self._rate:,.0f}")
        return table


def _print(report: DemoReport, settings: DemoSettings, *, as_json: bool) -> None:
    if as_json:
        print(orjson.dumps(report.as_json()).decode())
        return
    console = Console()
    killed = f", with the {' and the '.join(report.killed)} killed on the way" if report.killed else ""
    workers = f"{settings.workers} worker{'s' if settings.workers > 1 else ''}"
    console.print(report.verdict.as_table(f"{settings.rate:,.0f} events a second, {workers}{killed}"))
    first, *others = report.verdict.sentences()
    console.print(first, style="bold green" if report.is_clean else "bold red")
    for sentence in others:
        console.print(sentence, markup=False, highlight=False)
    if report.sending.failed:
        console.print(f"{report.sending.failed} events were not delivered: {report.sending.first_error}", markup=False)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
