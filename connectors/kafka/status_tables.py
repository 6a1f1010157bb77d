"""What was seen of a pipeline's membership, for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from millstream.connectors.kafka.onlooker import Flow, Sight
from millstream.processor.ledger_story import Event
from millstream.processor.status_view import NodeRow, ShardRow, StallRow, VerdictRow, WorkerRow

EVENTS_SHOWN: Final = 10
LIVE_ROWS_MAX: Final = 16
Row = TypeVar("Row", NodeRow, ShardRow)

_STYLES: Final = {
    "silent": "bold red",
    "found dead": "bold red",
    "unowned": "bold red",
    "moving": "yellow",
    "leaving": "yellow",
    "joining": "yellow",
    "not eligible": "yellow",
}


def status_screen(pipeline: str, sight: Sight, *, is_live: bool) -> Group:
    """Everything; a live view also has what has happened lately, and leaves out the table of workers."""
    return Group(*_parts(pipeline, sight, is_live=is_live))


def _parts(pipeline: str, sight: Sight, *, is_live: bool) -> Iterator[RenderableType]:
    view = sight.view
    yield Text(headline(pipeline, sight), style="bold")
    if sight.trouble is not None:
        yield Text(f"the log does not answer, and this is how it was: {sight.trouble}", style="bold red")
    if is_live:
        yield from _shortened("nodes", view.nodes, _nodes)
        yield from _shortened("shards", view.shards, lambda rows: _shards(rows, sight.flows))
    else:
        yield _nodes(view.nodes)
        yield _workers(view.workers)
        yield _shards(view.shards, sight.flows)
    if view.stalls:
        yield _stalls(view.stalls)
    if view.verdicts:
        yield _verdicts(view.verdicts[: 3 if is_live else None])
    if is_live:
        yield _events(list(sight.story.events)[-EVENTS_SHOWN:])


def _shortened(what: str, rows: Sequence[Row], table: Callable[[Sequence[Row]], Table]) -> Iterator[RenderableType]:
    """A live view has to fit on a screen, and to be drawn a few times a second: what is unusual comes first."""
    shown = sorted(rows, key=lambda row: row.state not in _STYLES)[:LIVE_ROWS_MAX]
    yield table(shown)
    if len(rows) > len(shown):
        yield Text(f"and {len(rows) - len(shown)} more {what}; without --watch all are shown")


def headline(pipeline: str, sight: Sight) -> str:
    """The whole in one line."""
    view = sight.view
    there = sum(row.state in ("in", "leaving") for row in view.nodes)
    owned = sum(row.state != "unowned" for row in view.shards)
    rates = [flow.per_s for flow in sight.flows.values() if flow.per_s is not None]
    lags = [flow.lag for flow in sight.flows.values() if flow.lag is not None]
    parts = [
        f"{there} of {len(view.nodes)} nodes heard",
        f"{owned} of {len(view.shards)} shards owned",
        f"{sum(lags):,} behind" if lags else "lag not known",
    ]
    return f"{pipeline}: {', '.join(parts)}" + (f", {sum(rates):,.0f} offsets/s" if rates else "")


def _table(title: str, left: Sequence[str], right: Sequence[str] = ()) -> Table:
    table = Table(title=title, title_justify="left")
    for column in left:
        table.add_column(column, overflow="fold")
    for column in right:
        table.add_column(column, justify="right")
    return table


def _state(state: str) -> Text:
    return Text(state, style=_STYLES.get(state, "green"))


def _nodes(rows: Sequence[NodeRow]) -> Table:
    table = _table("nodes", ["node", "zone", "labels", "state"], ["since", "last beat", "workers", "shards"])
    for row in rows:
        beat = "none heard" if row.beat_age_ms is None else f"{row.beat_age_ms:,.0f} ms"
        numbers = [span(row.since_s), beat, str(row.workers), str(row.shards)]
        table.add_row(row.node, row.zone, ", ".join(row.labels), _state(row.state), *numbers)
    return table


def _workers(rows: Sequence[WorkerRow]) -> Table:
    table = _table("workers", ["node", "worker", "state", "shards"])
    for row in rows:
        shards = ", ".join(map(str, row.shards))
        table.add_row(row.node, f"{row.worker}.{row.incarnation}", _state(row.state), shards)
    return table


def _shards(rows: Sequence[ShardRow], flows: Mapping[int, Flow]) -> Table:
    left = ["shard", "partitions", "owner", "state", "standby"]
    table = _table("shards", left, ["since offset", "lag", "offsets/s"])
    for row in rows:
        flow = flows.get(row.shard, Flow(None, None))
        owner = row.owner or ""
        if row.state == "moving":
            owner += f" -> {row.planned or 'nobody'}"
        table.add_row(
            str(row.shard),
            " ".join(row.partitions),
            owner,
            _state(row.state),
            row.standby or "none",
            "" if row.since is None else str(row.since),
            "" if flow.lag is None else f"{flow.lag:,}",
            "" if flow.per_s is None else f"{flow.per_s:,.0f}",
        )
    return table


def _verdicts(rows: Sequence[VerdictRow]) -> Table:
    table = _table("found dead", ["node", "by"], ["silent for", "allowed", "beats seen", "ago"])
    for row in rows:
        silence = [f"{row.silence_ms:,.0f} ms", f"{row.threshold_ms:,.0f} ms"]
        table.add_row(row.node, row.by, *silence, str(row.beats_seen), span(row.ago_s))
    return table


def _stalls(rows: Sequence[StallRow]) -> Table:
    table = _table("records at which workers hung", ["shard", "stage", "records"], ["attempts"])
    for row in rows:
        table.add_row(str(row.shard), row.stage, row.records, str(row.attempts))
    return table


def _events(events: Sequence[Event]) -> Table:
    table = _table("events", ["at", "what", "", "ledger"])
    for event in events:
        table.add_row(_clock(event.at_ms), event.what, event.text, str(event.offset))
    return table


def _clock(at_ms: int | None) -> str:
    return "before" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000).astimezone():%H:%M:%S.%f}"[:-3]


def span(seconds: float | None) -> str:
    """A length of time for people, in one or two units."""
    if seconds is None:
        return "not known"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
