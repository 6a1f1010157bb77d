"""What `make gpu-bench` has found, as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown: what was measured on what, a line for each experiment, then the crossovers."""
    conditions = report["conditions"]
    lines = ["# What a GPU has measured", ""]
    if conditions["simulated"]:
        lines += ["**The device was a simulated one: these figures say nothing of any GPU.**", ""]
    lines += [f"{name}: {value}  " for name, value in conditions.items()]
    lines += ["", "| | experiment | outcome | seconds |", "| --- | --- | --- | ---: |"]
    for one in report["experiments"]:
        lines.append(f"| {one['name']} | {one['title']} | {_outcome(one)} | {one['seconds']:.1f} |")
    compared = [(name, found) for one in report["experiments"] for name, found in _crossovers(one["found"])]
    if compared:
        lines += ["", "## Where the device overtakes the CPU", "", _HEAD, "| --- | ---: | ---: | ---: | ---: |"]
        lines += [_row(name, found) for name, found in compared]
    return "\n".join([*lines, ""])


_HEAD = "| stage | CPU | device | predicted from half of the sizes | measured |"


def _outcome(one: Mapping[str, Any]) -> str:
    if one["trouble"]:
        return f"not finished: {one['trouble']}"
    verdicts = _verdicts(one["found"])
    if not verdicts:
        return "measured"
    missed = [name for name, accepted in verdicts if not accepted]
    return "as expected" if not missed else f"not as expected: {', '.join(missed)}"


def _verdicts(found: Mapping[str, Any]) -> list[tuple[str, bool]]:
    own = [("all", bool(found["accepted"]))] if "accepted" in found else []
    parts = [
        (name, bool(part["accepted"]))
        for name, part in found.items()
        if isinstance(part, Mapping) and "accepted" in part
    ]
    return own + parts


def _crossovers(found: Mapping[str, Any]) -> Sequence[tuple[str, Mapping[str, Any]]]:
    return [(name, part) for name, part in found.items() if isinstance(part, Mapping) and "crossover" in part]


def _row(name: str, found: Mapping[str, Any]) -> str:
    crossing = found["crossover"]
    return (
        f"| {name} | {_line(found['cpu_line'])} | {_line(found['gpu_line'])} | "
        f"{_records(crossing['predicted'])} | {_records(crossing['measured'])} |"
    )


def _line(line: Mapping[str, float]) -> str:
    return f"{line['fixed_us']:,.0f} us + {line['per_event_ns']:,.1f} ns/event (±{line['residual']:.0%})"


def _records(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f}"
