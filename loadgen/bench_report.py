"""The benchmark's rows: what each is measured in, what it should reach, and how runs become figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from rich.table import Table


class Better(Enum):
    """Which way a figure improves."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True)
class RowSpec:
    """A row's name, which stays the same over time, and the target of its median."""

    name: str
    unit: str
    better: Better
    target: float

    def is_reached_by(self, value: float) -> bool:
        """Whether the figure is as good as the target."""
        return value >= self.target if self.better is Better.HIGHER else value <= self.target

    def best(self, values: Sequence[float]) -> float:
        """The best of several figures, at least one."""
        return max(values) if self.better is Better.HIGHER else min(values)


SPECS = {
    spec.name: spec
    for spec in (
        RowSpec("raw_copy", "events/s", Better.HIGHER, 1_200_000),
        RowSpec("typed_json_function", "events/s", Better.HIGHER, 600_000),
        RowSpec("column_json", "events/s", Better.HIGHER, 800_000),
        RowSpec("offload_marked", "events/s", Better.HIGHER, 784_000),
        RowSpec("untyped_json_function", "events/s", Better.HIGHER, 300_000),
        RowSpec("raw_function", "events/s", Better.HIGHER, 600_000),
        RowSpec("cpu_raw_copy", "us/event", Better.LOWER, 0.7),
        RowSpec("cpu_typed_json", "us/event", Better.LOWER, 1.8),
        RowSpec("memory_at_200k", "MB", Better.LOWER, 350),
        RowSpec("start_to_first_output", "s", Better.LOWER, 3),
        RowSpec("latency_20k_p50", "ms", Better.LOWER, 12),
        RowSpec("latency_20k_p99", "ms", Better.LOWER, 35),
        RowSpec("cost_of_observing", "%", Better.LOWER, 3),
    )
}


@dataclass(frozen=True, slots=True)
class Row:
    """One row: the figures of all runs, and the baseline's from the runs between them. Each has at least one."""

    spec: RowSpec
    values: Sequence[float]
    baseline_values: Sequence[float]
    conditions: Mapping[str, object]

    @property
    def median(self) -> float:
        """Of our figures."""
        return statistics.median(self.values)

    @property
    def best(self) -> float:
        """Of our figures."""
        return self.spec.best(self.values)

    @property
    def baseline_median(self) -> float:
        """Of the baseline's figures."""
        return statistics.median(self.baseline_values)

    @property
    def baseline_best(self) -> float:
        """Of the baseline's figures."""
        return self.spec.best(self.baseline_values)

    @property
    def is_reached(self) -> bool:
        """Whether the median is as good as the target."""
        return self.spec.is_reached_by(self.median)

    def sentence(self) -> str:
        """The row in one line."""
        ratio = _shown_ratio(self)
        return (
            f"{self.spec.name}: {shown(self.median)} {self.spec.unit} (best {shown(self.best)}), "
            f"{ratio} times the baseline's {shown(self.baseline_median)}"
        )

    def as_json(self) -> dict[str, object]:
        """One object. `ratio` is ours divided by the baseline's, by medians; `ratio_best` by the best runs."""
        return {
            "name": self.spec.name,
            "unit": self.spec.unit,
            "better": self.spec.better.value,
            "value": _rounded(self.median),
            "best": _rounded(self.best),
            "median": _rounded(self.median),
            "baseline": _rounded(self.baseline_median),
            "baseline_best": _rounded(self.baseline_best),
            "ratio": _ratio(self.median, self.baseline_median),
            "ratio_best": _ratio(self.best, self.baseline_best),
            "target": self.spec.target,
            "reached": self.is_reached,
            "reached_by_best": self.spec.is_reached_by(self.best),
            "runs": len(self.values),
            "values": [_rounded(value) for value in self.values],
            "baseline_values": [_rounded(value) for value in self.baseline_values],
            "conditions": dict(self.conditions),
        }


def table(rows: Sequence[Row]) -> Table:
    """The rows for people."""
    found = Table(title="millstream beside a confluent-kafka loop (median, best)", title_justify="left")
    found.add_column("row", style="cyan", no_wrap=True)
    found.add_column("unit", no_wrap=True)
    for title in ("median", "best", "baseline", "its best", "ratio", "target"):
        found.add_column(title, justify="right", no_wrap=True)
    found.add_column("reached", no_wrap=True)
    for row in rows:
        found.add_row(
            row.spec.name,
            row.spec.unit,
            shown(row.median),
            shown(row.best),
            shown(row.baseline_median),
            shown(row.baseline_best),
            _shown_ratio(row),
            ("≥ " if row.spec.better is Better.HIGHER else "≤ ") + shown(row.spec.target),
            _reached(row),
        )
    return found


def shown(value: float) -> str:
    """A figure with as many digits as mean something."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _reached(row: Row) -> str:
    if row.is_reached:
        return "[green]yes[/]"
    return "[yellow]by the best[/]" if row.spec.is_reached_by(row.best) else "[red]no[/]"


def _shown_ratio(row: Row) -> str:
    ratio = _ratio(row.median, row.baseline_median)
    return "-" if ratio is None else f"{ratio:.2f}"


def _ratio(ours: float, baseline: float) -> float | None:
    """Ours divided by the baseline's; None where the baseline is nothing."""
    return round(ours / baseline, 3) if baseline else None


def _rounded(value: float) -> float:
    """Four digits below the point are more than any clock here can tell; a rate needs none."""
    return round(value) if value >= 1000 else round(value, 4)
