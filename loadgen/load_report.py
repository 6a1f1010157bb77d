"""What the load test says: figures beside targets, for each rate, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from millstream.loadgen.load_case import CaseResult

_LATE_MS = 100.0


@dataclass(frozen=True, slots=True)
class Target:
    """Milliseconds from intended send to committed output; None where nothing was promised."""

    p50_ms: float | None
    p99_ms: float | None


# On two cores that broker, worker, generator and judge share.
TARGETS = {20_000: Target(12, 35), 50_000: Target(15, 45), 200_000: Target(None, 100)}
_NO_TARGET = Target(None, None)


def misses(result: CaseResult) -> list[str]:
    """What was promised for this rate and not reached; empty where all was, or nothing was promised."""
    target, latency = TARGETS.get(round(result.case.rate), _NO_TARGET), result.verdict.latency
    if target is _NO_TARGET:
        return []
    if latency is None:
        return ["nothing was measured"]
    found = []
    for name, value, most in (("p50", latency.p50, target.p50_ms), ("p99", latency.p99, target.p99_ms)):
        if most is not None and value > most:
            found.append(f"{name} {value:,.1f} ms > {most:g}")
    if not result.is_flat:
        middle, end = result.events_under_way
        found.append(f"lag grew from {middle:,.0f} to {end:,.0f} events")
    return found


def remarks(result: CaseResult) -> list[str]:
    """What a reader of the figures must know."""
    verdict, lateness = result.verdict, result.sending.lateness
    found = list(verdict.remarks)
    if not verdict.is_clean:
        found += verdict.sentences()
    if result.sending.failed:
        found.append(f"{result.sending.failed} events were not delivered: {result.sending.first_error}")
    if lateness is not None and lateness.p99 > _LATE_MS:
        found.append(
            f"The generator could not keep the schedule: 1 % of events left more than {lateness.p99:,.0f} ms late. "
            "Their latencies contain that."
        )
    return found


def result_as_json(result: CaseResult) -> dict[str, object]:
    """One object."""
    target = TARGETS.get(round(result.case.rate), _NO_TARGET)
    missed = misses(result)
    middle, end = result.events_under_way
    return {
        "rate": result.case.rate,
        "seconds": result.case.seconds,
        "warm_up_seconds": result.case.warm_up_s,
        "target_ms_p50": target.p50_ms,
        "target_ms_p99": target.p99_ms,
        "reached": None if target is _NO_TARGET else not missed,
        "missed": missed,
        "lag_is_flat": result.is_flat,
        "events_under_way_middle": round(middle),
        "events_under_way_end": round(end),
        "sending": result.sending.as_json(),
        "processes": {name: use.as_json() for name, use in result.uses.items()},
        **result.verdict.as_json(),
        "clean": result.is_clean,
        "remarks": remarks(result),
    }


def latency_table(results: Sequence[CaseResult]) -> Table:
    """Latencies and verdicts for people."""
    table = Table(title="from intended send to committed output, in ms", title_justify="left")
    for name in ("events/s", "p50", "p90", "p99", "p99.9", "max", "lost", "doubled", "lag", "sender p99", "target"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("reached")
    for result in results:
        latency, balance = result.verdict.latency, result.verdict.balance
        target = TARGETS.get(round(result.case.rate), _NO_TARGET)
        shown = (
            ["-"] * 5
            if latency is None
            else [f"{v:,.1f}" for v in (latency.p50, latency.p90, latency.p99, latency.p999, latency.max)]
        )
        late = result.sending.lateness
        table.add_row(
            f"{result.case.rate:,.0f}",
            *shown,
            _count(balance.lost),
            _count(balance.doubled),
            "flat" if result.is_flat else "[red]grows[/]",
            "-" if late is None else f"{late.p99:,.1f}",
            _shown_target(target),
            _reached(result, target),
        )
    return table


def process_table(results: Sequence[CaseResult]) -> Table:
    """What each process used, for people."""
    names = list(dict.fromkeys(name for result in results for name in result.uses))
    table = Table(title="CPU in % of a core · memory in MB at first → at last (growth a minute)", title_justify="left")
    table.add_column("events/s", justify="right", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for result in results:
        cells = []
        for name in names:
            use = result.uses.get(name)
            if use is None:
                cells.append("-")
                continue
            slope = use.slope_mb_per_minute
            grows = "" if slope is None else f" ({slope:+.2f})"
            cells.append(f"{use.cpu_percent:.0f} % · {use.mb_at_first:,.0f} → {use.mb_at_last:,.0f}{grows}")
        table.add_row(f"{result.case.rate:,.0f}", *cells)
    return table


def _count(number: int) -> str:
    return f"[bold red]{number:,}[/]" if number else "[green]0[/]"


def _shown_target(target: Target) -> str:
    parts = [f"{name} ≤ {ms:g}" for name, ms in (("p50", target.p50_ms), ("p99", target.p99_ms)) if ms is not None]
    return ", ".join(parts) or "-"


def _reached(result: CaseResult, target: Target) -> str:
    if target is _NO_TARGET:
        return "-"
    missed = misses(result)
    return f"[red]no[/]: {'; '.join(missed)}" if missed else "[green]yes[/]"
