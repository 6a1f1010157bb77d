"""What all cases share: where they run, on what input, for how long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from millstream.loadgen.bench_orders import Order, Passage
from millstream.loadgen.bench_place import Inputs, Place
from millstream.loadgen.bench_process import MeasuredProcess, Side
from millstream.loadgen.bench_workloads import Work

# The loop is fastest with large transactions, each of which costs it about a tenth of a second to end.
_LOOP_TRANSACTION_RECORDS = 300_000


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one side: a figure for each row of its case, and what else there is to know of it."""

    values: Mapping[str, float]
    conditions: Mapping[str, object]


class Case(Protocol):
    """Something that is measured: figures for one or more rows at once."""

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows that it has figures for."""

    @property
    def runs_max(self) -> int | None:
        """More runs than this take too long; None for no such bound."""

    def rehearse(self) -> None:
        """Once before the first run: have warm what users would have warm."""

    def measure(self, side: Side) -> Sample:
        """One run. Raises UnavailableError where something of it failed."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the cases run."""

    place: Place
    inputs: Inputs
    environ: Mapping[str, str]
    finish_s_max: float = 300.0

    def process(self, side: Side, work: Work, measured: Passage) -> MeasuredProcess:
        """A process that warms up with the same work before the measured passage. Inside of `Place.cleared` only."""
        warm_up = self.place.passage("warm-up", self.inputs.warm_up, self.inputs.warm_up_events)
        order = Order(
            kafka=self.place.kafka.to_json(),
            work=work,
            warm_up=with_even_transactions(warm_up),
            measured=measured,
        )
        return MeasuredProcess(side, order, self.place.directory / f"{measured.name}.log")


def with_even_transactions(passage: Passage) -> Passage:
    """The same with the loop's transactions of one size: it would wait for records that never come otherwise."""
    assert passage.events is not None
    transactions = max(1, round(passage.events / _LOOP_TRANSACTION_RECORDS))
    return passage.in_transactions_of(math.ceil(passage.events / transactions))
