"""What a Prometheus answers to each query of the dashboard: `python -m millstream.loadgen.dashboard_answers`.

A panel that stays empty in Grafana has many possible causes; this tells whether the query is one of them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ANSWER_WAIT_S = 10.0
# What Grafana would put in: all nodes, and a rate over so long.
VARIABLES = {"$instance": ".*", "$__rate_interval": "20s"}


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of one panel."""

    panel: str
    expression: str


@dataclass(frozen=True, slots=True)
class Answered:
    """How many series there were, and the first number among them; None where none of them is a number."""

    query: Query
    series: int
    value: float | None


def queries(dashboard: dict[str, Any]) -> Iterator[Query]:
    """All that the panels of a Grafana dashboard ask, with its variables filled in."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for variable, value in VARIABLES.items():
                expression = expression.replace(variable, value)
            yield Query(panel["title"], expression)


def ask(prometheus: str, query: Query) -> Answered:
    """Ask a Prometheus, by its URL. Raises OSError where it does not answer, or refuses the query."""
    url = f"{prometheus.rstrip('/')}/api/v1/query?{urllib.parse.urlencode({'query': query.expression})}"
    with urllib.request.urlopen(url, timeout=ANSWER_WAIT_S) as answer:
        series = json.load(answer)["data"]["result"]
    numbers = [number for one in series if not math.isnan(number := float(one["value"][1]))]
    return Answered(query, len(series), numbers[0] if numbers else None)


def table_of(answers: Sequence[Answered]) -> Table:
    """A row for each query."""
    table = Table("panel", "query", "series", "first value", box=None, header_style="bold")
    for answered in answers:
        value = "no number" if answered.value is None else f"{answered.value:.4g}"
        table.add_row(answered.query.panel, answered.query.expression, str(answered.series), value)
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Ask everything; exits with 1 where a query has no series at all, with 2 where nobody answers."""
    parser = argparse.ArgumentParser(description="ask a Prometheus everything that the dashboard asks")
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL")
    parser.add_argument("--dashboard", type=Path, default=Path("deploy/grafana/dashboards/millstream.json"))
    arguments = parser.parse_args(argv)
    try:
        dashboard = json.loads(arguments.dashboard.read_text())
        answers = [ask(arguments.prometheus, query) for query in queries(dashboard)]
    except (OSError, ValueError) as error:
        print(
            f"millstream: cannot ask {arguments.prometheus} what {arguments.dashboard} asks: {error}", file=sys.stderr
        )
        return 2
    Console().print(table_of(answers))
    empty = sum(not answered.series for answered in answers)
    print(f"{len(answers)} queries, {empty} without an answer")
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
