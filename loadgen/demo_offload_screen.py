"""How `millstream demo --offload` looks while it runs and when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from millstream.loadgen.demo_offload import OffloadProgress
from millstream.loadgen.demo_offload_report import OffloadDemoReport
from millstream.loadgen.demo_offload_watch import LogLine, Seen, Switch
from millstream.loadgen.live_screen import LiveScreen

_NEWS_SHOWN: Final = 8


class OffloadScreen(LiveScreen):
    """Progress on stderr: a view that is redrawn, or a line for each act and event where nobody watches."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._what = ""
        self._told = 0

    def show(self, at: OffloadProgress) -> None:
        """Show how far the demo is."""
        if self._live is not None:
            self._live.update(Group(*_parts(at)), refresh=True)
            return
        for line in at.news[self._told :]:
            self._say(news_text(line))
        self._told = len(at.news)
        # What counts up is not worth a line each time.
        what = at.what.partition(":")[0]
        if what != self._what:
            self._say(f"now: {what}")
            self._what = what


def news_text(line: LogLine) -> str:
    """One event of stage or device, for people."""
    at = f"{datetime.fromtimestamp(line.at_s).astimezone():%H:%M:%S.%f}"[:-3]
    fields = line.fields
    match line.event:
        case "offload.switched":
            return (
                f"{at} the planner switches {fields['switch']} ({fields['why']}): {fields['reason']}; "
                f"{fields['rate']} events/s, {fields['backlog']} waiting"
            )
        case "offload.device_state":
            return f"{at} the device is {fields['state']} ({fields['reason']})"
    told = " ".join(f"{name}={value}" for name, value in fields.items())
    return f"{at} {line.event} {told}"


def _parts(at: OffloadProgress) -> Iterator[RenderableType]:
    table = Table(show_header=False, box=None)
    table.add_row("now", Text(at.what, style="bold"))
    table.add_row("load set to", f"{at.rate:,.0f} events a second, {at.sent:,} sent")
    seen = at.seen
    if seen is not None:
        table.add_row(
            "the stage runs on", Text(seen.runs_on, style="bold magenta" if seen.runs_on == "gpu" else "cyan")
        )
        table.add_row("the device is", seen.state)
        table.add_row("arriving, waiting", f"{seen.rate:,.0f} events a second, {seen.backlog:,} events")
        table.add_row("computed", _counted(seen))
    yield table
    if seen is not None and seen.explanation:
        yield Text(seen.explanation, style="dim")
    for line in at.news[-_NEWS_SHOWN:]:
        yield Text(news_text(line))


def _counted(seen: Seen) -> str:
    return ", ".join(f"{records:,} on {device}" for device, records in seen.records.items()) or "nothing yet"


def print_offload_report(console: Console, report: OffloadDemoReport) -> None:
    """The switches with their explanations, what the killed device cost, and the verdict in words."""
    for number, switch in enumerate(report.seen.switches, 1):
        _print_switch(console, number, switch)
    console.print(_fallback_table(report))
    console.print(report.verdict.as_table("the judge's books"))
    first, *others = report.verdict.sentences()
    console.print(first, style="bold green" if report.verdict.is_clean else "bold red")
    check = report.check
    compared = f"{check.checked:,} scores compared with the CPU's reference, {check.different:,} different."
    console.print(compared, style="bold red" if check.different else "bold green", highlight=False)
    for sentence in others:
        console.print(sentence, markup=False, highlight=False)
    if report.sending.failed:
        console.print(f"{report.sending.failed} events were not delivered: {report.sending.first_error}", markup=False)
    if report.not_seen is not None:
        console.print(f"What was to be seen did not happen in time: {report.not_seen}.", style="bold red")


def _print_switch(console: Console, number: int, switch: Switch) -> None:
    at = f"{datetime.fromtimestamp(switch.at_s).astimezone():%H:%M:%S}"
    console.print(f"Switch {number}, {at}: {switch.switch}, {switch.why}", style="bold", highlight=False)
    console.print(f"  {switch.reason}", markup=False, highlight=False, soft_wrap=True)
    figures = ", ".join(f"{name} {value}" for name, value in switch.figures.items())
    console.print(f"  {figures}", markup=False, highlight=False, soft_wrap=True)
    if switch.explanation:
        console.print(Text(f"{switch.explanation}\n", style="dim"))


def _fallback_table(report: OffloadDemoReport) -> Table:
    fallback = report.fallback
    table = Table(title="the device, killed in the middle of a batch", show_header=False, title_justify="left")
    table.add_column(style="cyan")
    table.add_column(justify="right")
    told = ", ".join(f"{records:,} ({reason})" for reason, records in fallback.records.items()) or "[bold red]none[/]"
    found = fallback.detection_ms
    table.add_row("records that the CPU computed in its place", told)
    table.add_row("known to the worker after", "not known" if found is None else f"{found:,.0f} ms")
    back = fallback.readmitted_s
    table.add_row("ready again after", "[bold red]never[/]" if back is None else f"{back:,.1f} s")
    table.add_row("computed in all", _counted(report.seen))
    return table
