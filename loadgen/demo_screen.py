"""How the demo looks while it runs and when it is over."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from millstream.connectors.kafka.onlooker import Sight
from millstream.loadgen.demo import DemoProgress, DemoReport, DemoSettings
from millstream.loadgen.demo_nodes import Takeover
from millstream.loadgen.live_screen import LiveScreen
from millstream.processor.status_view import ShardRow

_BARS: Final = " ▁▂▃▄▅▆▇█"
# Twice the judge's own interval: with each bar it has told something new.
_BAR_S: Final = 0.4
_BARS_SHOWN: Final = 60
_EVENTS_SHOWN: Final = 6
_STYLES: Final = {"in": "green", "silent": "bold red", "found dead": "bold red"}


class Throughput:
    """What the judge sees a second, now and over the last bars."""

    def __init__(self) -> None:
        self.rates: deque[float] = deque(maxlen=_BARS_SHOWN)
        self._before: tuple[float, int] | None = None

    def note(self, now: float, seen: int) -> None:
        """So many events were seen so far; `now` in seconds."""
        if self._before is None or seen < self._before[1]:
            self._before = (now, seen)
        elif now - self._before[0] >= _BAR_S:
            self.rates.append((seen - self._before[1]) / (now - self._before[0]))
            self._before = (now, seen)

    @property
    def now(self) -> float:
        """Over about the last second."""
        last = list(self.rates)[-3:]
        return sum(last) / len(last) if last else 0.0

    def bars(self) -> str:
        """One character for each bar, the newest last."""
        highest = max(self.rates, default=0.0)
        if not highest:
            return ""
        return "".join(_BARS[round(rate / highest * (len(_BARS) - 1))] for rate in self.rates)


class Screen(LiveScreen):
    """Progress on stderr: a view that is redrawn, or a line for each new phase and event where nobody watches."""

    def __init__(self, console: Console, settings: DemoSettings) -> None:
        super().__init__(console)
        self._events = settings.events
        self._waiting_for = ""
        self._notes_told = 0
        self._throughput = Throughput()

    def show(self, at: DemoProgress) -> None:
        """Show how far the demo is."""
        if self._live is not None:
            self._throughput.note(time.monotonic(), at.seen)
            self._live.update(Group(*self._parts(at)), refresh=True)
            return
        for note in at.notes[self._notes_told :]:
            self._say(note)
            self._notes_told += 1
        if at.waiting_for != self._waiting_for:
            self._say(f"waiting for {at.waiting_for}")
            self._waiting_for = at.waiting_for

    def _parts(self, at: DemoProgress) -> Iterator[RenderableType]:
        table = Table(show_header=False, box=None)
        table.add_row("waiting for", Text(at.waiting_for))
        table.add_row("sent", f"{at.sent:,} of {self._events:,}")
        table.add_row("seen by the judge", f"{at.seen:,}")
        table.add_row("on the way", f"{max(0, at.sent - at.seen):,}")
        table.add_row("events per second", f"{self._throughput.now:,.0f}")
        table.add_row("", Text(self._throughput.bars(), style="cyan"))
        yield table
        if at.sight is not None:
            yield nodes_table(at.sight)
            yield _story(at.sight)
        for note in at.notes:
            yield Text(note, style="bold")


def nodes_table(sight: Sight) -> Table:
    """The nodes with their shards, and what became of those that were found dead."""
    table = Table(title="nodes", title_justify="left")
    for column in ("node", "state", "last beat", "shards", "standby for"):
        table.add_column(column, overflow="fold")
    for row in sight.view.nodes:
        mine = [shard for shard in sight.view.shards if _is_of(shard.owner, row.node)]
        standby = [shard for shard in sight.view.shards if _is_of(shard.standby, row.node)]
        age = "none heard" if row.beat_age_ms is None else f"{row.beat_age_ms:,.0f} ms"
        state = Text(row.state, style=_STYLES.get(row.state, "yellow"))
        table.add_row(row.name or row.node, state, age, _numbers(mine), _numbers(standby))
    known = {row.node for row in sight.view.nodes}
    for verdict in sight.view.verdicts:
        if verdict.node not in known:
            table.add_row(verdict.node, Text("dead", style="bold red"), "", "", "")
    return table


def _story(sight: Sight) -> Table:
    table = Table(show_header=False, box=None)
    for event in list(sight.story.events)[-_EVENTS_SHOWN:]:
        at = "" if event.at_ms is None else f"{datetime.fromtimestamp(event.at_ms / 1000).astimezone():%H:%M:%S.%f}"
        table.add_row(at[:-3], event.what, Text(event.text))
    return table


def _is_of(worker: str | None, node: str) -> bool:
    return worker is not None and worker.rpartition("/")[0] == node


def _numbers(shards: list[ShardRow]) -> str:
    return ", ".join(str(row.shard) for row in shards)


def print_report(console: Console, report: DemoReport, settings: DemoSettings) -> None:
    """Figures as tables, then the verdict in words."""
    killed = f", with the {' and the '.join(report.killed)} killed on the way" if report.killed else ""
    if report.takeover is not None:
        killed = f", with {report.takeover.node} killed on the way"
    workers = f"{settings.workers} worker{'s' if settings.workers > 1 else ''}"
    if settings.nodes > 1:
        workers = f"{settings.nodes} nodes with {workers} each"
    console.print(report.verdict.as_table(f"{settings.rate:,.0f} events a second, {workers}{killed}"))
    if report.takeover is not None:
        console.print(takeover_table(report.takeover))
    first, *others = report.verdict.sentences()
    console.print(first, style="bold green" if report.verdict.is_clean else "bold red")
    if report.takeover is not None and not report.takeover.is_complete:
        console.print(f"Not all shards of {report.takeover.node} were seen to be taken over.", style="bold red")
    for sentence in others:
        console.print(sentence, markup=False, highlight=False)
    if report.sending.failed:
        console.print(f"{report.sending.failed} events were not delivered: {report.sending.first_error}", markup=False)


def takeover_table(takeover: Takeover) -> Table:
    """What the others saw of the dead node, and what the independent reader saw of its partitions."""
    table = Table(title=f"{takeover.node} killed: time from the kill", show_header=False, title_justify="left")
    table.add_column(style="cyan")
    table.add_column(justify="right")
    if takeover.by is None:
        table.add_row("found dead", "[bold red]never[/]")
    else:
        table.add_row(f"found dead by {takeover.by}", _milliseconds(takeover.found_ms))
        table.add_row("  silent for (allowed)", f"{takeover.silence_ms:,.0f} ms ({takeover.threshold_ms:,.0f} ms)")
    for partition, output_ms in takeover.output_ms.items():
        number = partition.rpartition("-")[2]
        table.add_row(f"committed output of partition {number}", _milliseconds(output_ms))
    return table


def _milliseconds(milliseconds: float | None) -> str:
    return "[bold red]not seen[/]" if milliseconds is None else f"{milliseconds:,.0f} ms"
