"""A picture of one takeover: output before the fault, while it lasts, and after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from millstream.loadgen.chaos_stage import CURVE_BEFORE_S, CURVE_STEP_S, Round

_WIDTH, _HEIGHT = 960, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 936, 60, 250
_STRUCK, _OTHERS, _INK, _SOFT = "#d6604d", "#2166ac", "#222222", "#666666"
_TICK_S = 0.2


def takeover_picture(title: str, one: Round) -> str:
    """The picture as SVG. Bars of the struck partitions stand on those of the others. The round must have a curve."""
    assert one.curve is not None
    struck, others = one.curve
    steps = len(struck)
    top = max(1, *(a + b for a, b in zip(struck, others, strict=True)))
    width = (_RIGHT - _LEFT) / steps

    def x(second: float) -> float:
        return _LEFT + (second + CURVE_BEFORE_S) / CURVE_STEP_S * width

    def height(count: int) -> float:
        return (_BOTTOM - _TOP) * count / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 24, title, 16, _INK),
        _text(_LEFT, 44, f"{one.fault}: {len(one.partitions)} partitions of the struck", 12, _STRUCK),
        _text(_RIGHT, 44, "all other partitions", 12, _OTHERS, "end"),
        _text(_LEFT - 8, _TOP + 4, f"{top:,}", 11, _SOFT, "end"),
        _text(_LEFT - 8, _BOTTOM + 4, "0", 11, _SOFT, "end"),
    ]
    parts += _bars(others, [0] * steps, width, height, _OTHERS)
    parts += _bars(struck, others, width, height, _STRUCK)
    first = -math.floor(CURVE_BEFORE_S / _TICK_S)
    last = math.floor((steps * CURVE_STEP_S - CURVE_BEFORE_S) / _TICK_S)
    for tick in range(first, last + 1):
        parts.append(_text(x(tick * _TICK_S), _BOTTOM + 18, f"{tick * _TICK_S * 1000:.0f}", 11, _SOFT, "middle"))
    marks = [("fault", 0.0, _INK)]
    if one.detection_ms is not None:
        marks.append((f"verdict {one.detection_ms:.0f}", one.detection_ms / 1000, _SOFT))
    if one.takeover_ms:
        last_ms = max(one.takeover_ms.values())
        marks.append((f"all back {last_ms:.0f}", last_ms / 1000, "#1b7837"))
    for row, (name, second, colour) in enumerate(marks):
        if x(second) > _RIGHT:
            continue
        line = f'<line x1="{x(second):.1f}" x2="{x(second):.1f}" y1="{_TOP}" y2="{_BOTTOM}" stroke="{colour}"/>'
        parts += [line, _text(x(second) + 4, _TOP + 12 + 14 * row, name, 11, colour)]
    parts.append(_text(_RIGHT, _HEIGHT - 8, "milliseconds since the fault", 12, _SOFT, "end"))
    return "\n".join([*parts, "</svg>\n"])


def _bars(counts: Sequence[int], under: Sequence[int], width: float, height: object, colour: str) -> list[str]:
    assert callable(height)
    return [
        f'<rect x="{_LEFT + step * width:.1f}" y="{_BOTTOM - height(below) - height(count):.1f}" width="{width:.1f}" '
        f'height="{height(count):.1f}" fill="{colour}"/>'
        for step, (count, below) in enumerate(zip(counts, under, strict=True))
        if count
    ]


def _text(x: float, y: float, text: str, size: int, colour: str, anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
    return f'<text {where} font-family="sans-serif">{escape(text)}</text>'
