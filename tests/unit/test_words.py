"""Numbers are written so that they can be read aloud."""

from __future__ import annotations

import pytest

from millstream.gpu_offload.decision import UNBOUNDED_S
from millstream.gpu_offload.words import money, quantity, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0085, "8.5 ms"), (35e-3, "35 ms"), (60e-6, "60 µs"), (294e-9, "294 ns"), (2.0, "2 s"), (0.0, "0 ns")],
)
def test_times(value: float, text: str) -> None:
    assert seconds(value) == text


def test_a_time_without_bound() -> None:
    assert seconds(UNBOUNDED_S) == "growing"


@pytest.mark.parametrize(
    ("value", "text"), [(7, "7"), (2.25, "2.25"), (950, "950"), (1750.4, "1,750"), (50_123, "50.1K"), (3.1e6, "3.1M")]
)
def test_quantities(value: float, text: str) -> None:
    assert quantity(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(12.5, "12.50"), (3.5, "3.5"), (0.0421, "0.0421"), (4.67e-5, "0.0000467"), (0.0, "0.00")]
)
def test_prices(value: float, text: str) -> None:
    assert money(value) == text
