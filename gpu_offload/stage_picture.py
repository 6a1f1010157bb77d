"""Cost and p99 of an offload stage against the size of its batches, on the CPU and on a GPU, as an SVG file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from millstream.gpu_offload.cost import cost_per_million
from millstream.gpu_offload.decision import DeviceSpec
from millstream.gpu_offload.offload_settings import OffloadSettings
from millstream.gpu_offload.profile_report import Profile, SizeRow, StageProfile
from millstream.gpu_offload.service_law import ServiceLaw
from millstream.gpu_offload.words import money, quantity, seconds
from millstream.processor.errors import SettingsError, UnavailableError

_WIDTH, _PANEL, _LEFT, _RIGHT = 960, 330, 90, 930
_CPU, _GPU, _BUDGET, _GRID, _INK = "#2166ac", "#1b7837", "#d6604d", "#dddddd", "#222222"
_FONT: Final = 'font-family="sans-serif"'


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    colour: str
    values: Sequence[float]
    dashed: bool = False


def check_picture(path: Path) -> None:
    """Raises SettingsError for a file that no picture could be written to."""
    if path.suffix.lower() != ".svg" or not path.resolve().parent.is_dir():
        raise SettingsError("the picture", [f"{path} must be a file that ends with .svg, in a directory that is there"])


def write_picture(path: Path, profile: Profile, prices: OffloadSettings, law: ServiceLaw, rate: int) -> None:
    """Write the file, two panels for each offload stage. Raises UnavailableError where it cannot be written."""
    parts: list[str] = []
    top = 40
    for stage in profile.stages:
        parts += _stage(stage, prices, law, rate, top)
        top += 2 * _PANEL + 60
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top}" {_FONT}>'
    title = f"Pipeline {profile.pipeline}: CPU measured on {profile.sample}; GPU assumed, not measured"
    parts = [head, f'<rect width="{_WIDTH}" height="{top}" fill="white"/>', _text(20, 24, title, 15), *parts, "</svg>"]
    try:
        path.write_text("\n".join(parts), encoding="utf-8")
    except OSError as error:
        raise UnavailableError(f"the picture {path} could not be written: {error.strerror}") from error


def _stage(stage: StageProfile, prices: OffloadSettings, law: ServiceLaw, rate: int, top: int) -> list[str]:
    rows, budget_s = stage.sizes, stage.prospects.budget_s
    records = [row.records for row in rows]
    assumed = [_on_gpu(row, law) for row in rows]
    late = [
        _Line("CPU p99", _CPU, [row.p99_s for row in rows]),
        _Line("GPU, assumed", _GPU, assumed, dashed=True),
        _Line(f"budget {seconds(budget_s)}", _BUDGET, [budget_s] * len(rows), dashed=True),
    ]
    cpu, *others = prices.specs()
    cost = [_Line("CPU", _CPU, [_cost(cpu, row.p50_s, row.records, prices, rate) for row in rows])]
    for spec in others:
        values = [_cost(spec, took, row.records, prices, rate) for took, row in zip(assumed, rows, strict=True)]
        cost.append(_Line("GPU, assumed", _GPU, values, dashed=True))
    name = stage.prospects.stage
    return [
        *_panel(top, f"{name}: seconds of a batch against its records", records, late, seconds),
        *_panel(top + _PANEL, f"{name}: cost of a million events at {quantity(rate)} events/s", records, cost, money),
    ]


def _on_gpu(row: SizeRow, law: ServiceLaw) -> float:
    """Values are read and written on the CPU all the same."""
    return law.median_s(row.records) + max(0.0, row.p50_s - row.compute_p50_s)


def _cost(spec: DeviceSpec, took_s: float, records: int, prices: OffloadSettings, rate: int) -> float:
    return max(1e-9, cost_per_million(spec, prices.price_cpu_core_hour, rate * took_s / records, rate))


def _panel(
    top: int, title: str, records: Sequence[int], lines: Sequence[_Line], word: Callable[[float], str]
) -> list[str]:
    low = math.floor(math.log10(min(min(line.values) for line in lines)))
    high = math.ceil(math.log10(max(max(line.values) for line in lines)))
    high = max(high, low + 1)
    first, last = math.log2(records[0]), math.log2(max(records[-1], records[0] * 2))
    floor = top + _PANEL - 60

    def x(value: float) -> float:
        return _LEFT + (math.log2(value) - first) / (last - first) * (_RIGHT - _LEFT)

    def y(value: float) -> float:
        return floor - (math.log10(value) - low) / (high - low) * (floor - top - 30)

    parts = [_text(_LEFT, top + 16, title, 13)]
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{_RIGHT}" y2="{at:.1f}" stroke="{_GRID}"/>')
        parts.append(_text(10, at + 4, word(10.0**power), 11))
    parts += [_text(x(count) - 10, floor + 18, quantity(count), 11) for count in records]
    for number, line in enumerate(lines):
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in zip(records, line.values, strict=True))
        dash = ' stroke-dasharray="6 4"' if line.dashed else ""
        parts.append(f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="2"{dash}/>')
        parts.append(_text(_RIGHT - 150, top + 48 + 16 * number, line.name, 12, line.colour))
    return parts


def _text(x: float, y: float, text: str, size: int, colour: str = _INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}">{escape(text)}</text>'
