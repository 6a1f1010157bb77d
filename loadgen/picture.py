"""A report's picture: latency percentiles and throughput over time, as an SVG file that any browser shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from millstream.loadgen.report_file import check_directory
from millstream.loadgen.timeline import Moment
from millstream.processor.errors import SettingsError, UnavailableError

_WIDTH, _HEIGHT = 960, 600
_LEFT, _RIGHT = 76, 936
_FONT = 'font-family="sans-serif"'
_GRID, _INK, _SOFT = "#dddddd", "#222222", "#666666"
_TICKS = 5
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    colour: str
    of: Callable[[Moment], float | None]


def _latency(name: str) -> Callable[[Moment], float | None]:
    def of(moment: Moment) -> float | None:
        return None if moment.latency is None else float(getattr(moment.latency, name))

    return of


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    top: int
    bottom: int
    lines: tuple[_Line, ...]


_PANELS = (
    _Panel(
        "latency from intended send to committed output (ms)",
        96,
        330,
        (
            _Line("p50", "#1b7837", _latency("p50")),
            _Line("p90", "#2166ac", _latency("p90")),
            _Line("p99", "#d6604d", _latency("p99")),
            _Line("max", "#999999", _latency("max")),
        ),
    ),
    _Panel("events a second", 396, 540, (_Line("committed output", "#5e3c99", lambda moment: moment.events),)),
)


def check_picture(path: Path) -> None:
    """Raises SettingsError for a file that no picture could be written to, before hours are spent on measuring."""
    if path.suffix.lower() != ".svg":
        raise SettingsError("the picture", [f"{path} is not a name for an SVG file; choose one that ends with .svg"])
    check_directory("the picture", path)


def write_picture(path: Path, title: str, moments: Sequence[Moment], sentences: Sequence[str]) -> None:
    """Write the file. Raises UnavailableError where it cannot be written, such as on a full disk."""
    try:
        path.write_text(picture(title, moments, sentences), encoding="utf-8")
    except OSError as error:
        raise UnavailableError(f"the picture {path} could not be written: {error.strerror}") from error


def picture(title: str, moments: Sequence[Moment], sentences: Sequence[str]) -> str:
    """The picture as SVG: `title`, up to two lines of `sentences`, then the panels."""
    # The last second was cut short by the end of the run, and would look like a fall.
    whole = moments[:-1] if len(moments) > 2 else moments
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 26, title, size=17, colour=_INK),
        *(_text(_LEFT, 46 + 17 * row, sentence, size=12) for row, sentence in enumerate(sentences[:2])),
    ]
    for panel in _PANELS:
        parts += _panel(panel, whole)
    parts.append(_text(_RIGHT, _HEIGHT - 12, "seconds since the first output", size=12, anchor="end"))
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: _Panel, moments: Sequence[Moment]) -> list[str]:
    found = [value for line in panel.lines for moment in moments if (value := line.of(moment)) is not None]
    step = _step(max(found, default=1.0) or 1.0)
    top_value = step * math.ceil(max(max(found, default=1.0), step) / step)
    first = moments[0].second if moments else 0
    span = max(1, (moments[-1].second - first) if moments else 1)

    def x(second: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (second - first) / span

    def y(value: float) -> float:
        return panel.bottom - (panel.bottom - panel.top) * value / top_value

    parts = [_text(_LEFT, panel.top - 10, panel.title, size=13, colour=_INK)]
    for tick in range(round(top_value / step) + 1):
        at = y(tick * step)
        parts.append(f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="{_GRID}"/>')
        parts.append(_text(_LEFT - 8, at + 4, f"{tick * step:,.6g}", size=11, anchor="end"))
    time_step = max(1, math.ceil(_step(span)))
    parts += [
        _text(x(second), panel.bottom + 16, f"{second:,}", size=11, anchor="middle")
        for second in range(math.ceil(first / time_step) * time_step, first + span + 1, time_step)
    ]
    for row, line in enumerate(panel.lines):
        parts += _drawn(line, moments, x, y)
        if len(panel.lines) > 1:
            parts.append(
                _text(_RIGHT - 46 * (len(panel.lines) - 1 - row), panel.top - 10, line.name, 12, line.colour, "end")
            )
    return parts


def _drawn(
    line: _Line, moments: Sequence[Moment], x: Callable[[float], float], y: Callable[[float], float]
) -> list[str]:
    """The line, in pieces where seconds have no value."""
    pieces: list[list[str]] = [[]]
    for moment in moments:
        value = line.of(moment)
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{x(moment.second):.1f},{y(value):.1f}")
    return [
        f'<polyline points="{" ".join(points if len(points) > 1 else points * 2)}" fill="none" '
        f'stroke="{line.colour}" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round"/>'
        for points in pieces
        if points
    ]


def _step(top: float) -> float:
    """A round distance between ticks, so that about five of them reach the top."""
    rough = top / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in _STEPS if step * power >= rough * (1 - 1e-9))


def _text(x: float, y: float, text: str, size: int, colour: str = _SOFT, anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
    return f"<text {where} {_FONT}>{escape(text)}</text>"
