"""What the trials have shown: a table, JSON, and a picture of what each chooser pays and who is late."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from xml.sax.saxutils import escape

from rich.table import Table

from millstream.loadgen.regret_run import LATE_SHARE_MAX, ORACLE, PLANNER, CaseResult, Score, misses

_COLOURS = {
    PLANNER: "#d6604d",
    "always CPU": "#2166ac",
    "always GPU": "#1b7837",
    "fixed delay": "#5e3c99",
    "AIMD, CPU": "#67a9cf",
    "AIMD, GPU": "#7fbf7b",
    "SABER": "#b35806",
}
_WIDTH, _LEFT, _RIGHT, _TOP, _ROW = 960, 220, 930, 96, 24
_MARKS = (1.0, 1.02, 1.05, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)


def planner_table(results: Sequence[CaseResult]) -> Table:
    """The planner against the oracle, case by case."""
    table = Table(title="The planner against an oracle", title_justify="left")
    table.add_column("trace", no_wrap=True)
    table.add_column("GPU", no_wrap=True)
    for title in ("cost", "late", "bad s", "p99 ms", "switches", "crossings", "wrong", "probes"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("missed")
    for result in results:
        own = result.planner
        table.add_row(
            result.name,
            result.site,
            f"{1 + own.regret:.3f}x",
            f"{own.late_share:.3%}",
            str(own.bad_seconds),
            f"{own.p99_ms:.1f}",
            str(own.switches),
            str(result.crossings),
            f"{own.wrong_share:.1%}",
            f"{own.probe_share:.2%}",
            _missed(result),
        )
    return table


def _missed(result: CaseResult) -> str:
    found = misses(result)
    reason = [f"({result.known_limit})"] if found and result.known_limit else []
    return "; ".join(found + reason) or "-"


def rivals_table(results: Sequence[CaseResult]) -> Table:
    """What everyone pays, over the oracle, and how many of their events are late."""
    table = Table(title="Cost over the oracle's, and late events", title_justify="left")
    table.add_column("trace", no_wrap=True)
    table.add_column("GPU", no_wrap=True)
    names = [score.name for score in results[0].scores if score.name != ORACLE] if results else []
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        scores = {score.name: score for score in result.scores}
        table.add_row(result.name, result.site, *(_shown(scores[name]) for name in names))
    return table


def _shown(score: Score) -> str:
    return f"{1 + score.regret:.2f}x {score.late_share:.1%}"


def as_json(result: CaseResult) -> dict[str, object]:
    """One object per case; costs in the currency of the prices, shares as parts of 1."""
    return {
        "trace": result.name,
        "gpu": result.site,
        "stationary": result.is_stationary,
        "noise_free": result.is_noise_free,
        "cold_device": result.is_cold,
        "crossings": result.crossings,
        "missed": misses(result),
        "known_limit": result.known_limit,
        "scores": [_rounded(score) for score in result.scores],
    }


def _rounded(score: Score) -> dict[str, object]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(score).items()}


def markdown(results: Sequence[CaseResult]) -> str:
    """Both tables for a document."""
    names = [score.name for score in results[0].scores if score.name != ORACLE]
    lines = [
        "| trace | GPU | cost | late | p99 (ms) | switches / crossings | probes | missed |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for result in results:
        own = result.planner
        lines.append(
            f"| {result.name} | {result.site} | {1 + own.regret:.3f}x | {own.late_share:.2%} | {own.p99_ms:.1f} | "
            f"{own.switches} / {result.crossings} | {own.probe_share:.2%} | {_missed(result)} |"
        )
    lines += ["", f"| trace | GPU | {' | '.join(names)} |", f"| --- | --- |{' ---: |' * len(names)}"]
    for result in results:
        scores = {score.name: score for score in result.scores}
        cells = " | ".join(f"{1 + scores[name].regret:.2f}x, {scores[name].late_share:.1%}" for name in names)
        lines.append(f"| {result.name} | {result.site} | {cells} |")
    return "\n".join([*lines, ""])


def picture(results: Sequence[CaseResult], title: str) -> str:
    """SVG: a row for each case, a dot for each chooser at its cost over the oracle's, hollow with over 1 % late."""
    bottom = _TOP + _ROW * len(results)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 40}" width="{_WIDTH}">',
        f'<rect width="{_WIDTH}" height="{bottom + 40}" fill="white"/>',
        _text(16, 24, title, 16),
        _text(16, 44, "cost over the oracle's; hollow: more than 1 % of the events are late", 12),
    ]
    for place, (name, colour) in enumerate(_COLOURS.items()):
        parts.append(_dot(24 + 128 * place, 66, colour, is_hollow=False))
        parts.append(_text(34 + 128 * place, 70, name, 12))
    for mark in _MARKS:
        parts.append(f'<line x1="{_x(mark):.1f}" x2="{_x(mark):.1f}" y1="{_TOP - 8}" y2="{bottom}" stroke="#dddddd"/>')
        parts.append(_text(_x(mark), bottom + 18, f"{mark:g}x", 11, "middle"))
    for row, result in enumerate(results):
        y = _TOP + _ROW * row + _ROW / 2
        parts.append(_text(_LEFT - 14, y + 4, f"{result.name} ({result.site})", 11, "end"))
        for score in reversed(result.scores):
            if score.name in _COLOURS:
                hollow = score.late_share > LATE_SHARE_MAX
                parts.append(_dot(_x(1 + score.regret), y, _COLOURS[score.name], is_hollow=hollow))
    return "\n".join([*parts, "</svg>\n"])


def _x(ratio: float) -> float:
    """Logarithmic in what is paid too much, so that a hundredth can be seen beside the tenfold."""
    low, high = math.log(0.01), math.log(0.01 + _MARKS[-1])
    place = (math.log(0.01 + min(max(ratio - 1.0, 0.0), _MARKS[-1] - 1.0)) - low) / (high - low)
    return _LEFT + (_RIGHT - _LEFT) * place


def _dot(x: float, y: float, colour: str, *, is_hollow: bool) -> str:
    fill = "white" if is_hollow else colour
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{colour}" stroke-width="2"/>'


def _text(x: float, y: float, text: str, size: int, anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="#222222" text-anchor="{anchor}"'
    return f'<text {where} font-family="sans-serif">{escape(text)}</text>'
