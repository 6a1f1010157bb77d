"""Numbers as a person reads them: three digits that count, and a unit that fits."""

from __future__ import annotations

import math

from millstream.gpu_offload.decision import UNBOUNDED_S


def seconds(value: float) -> str:
    """A time: 850 ns, 12.3 µs, 4.56 ms, 1.2 s; what has no bound is "growing"."""
    if value >= UNBOUNDED_S:
        return "growing"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{_digits(value / size)} {unit}"
    return f"{_digits(value * 1e9)} ns"


def quantity(value: float) -> str:
    """A number of things, or a rate: 0.25, 7, 950, 12.5K, 3.1M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("K", 1e4)):
        if value >= size:
            return f"{_digits(value / (size if unit != 'K' else 1e3))}{unit}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else _digits(value)


def money(value: float) -> str:
    """A price in whatever currency the prices are in: 12.50, 0.0421, 0.0000467."""
    if value <= 0.0 or value >= 10.0:
        return f"{value:.2f}"
    digits = 2 - math.floor(math.log10(value))
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def _digits(value: float) -> str:
    if value >= 99.5:
        return f"{value:.0f}"
    return f"{value:.1f}".removesuffix(".0") if value >= 9.95 else f"{value:.2f}".rstrip("0").rstrip(".")
