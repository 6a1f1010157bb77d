"""`make bench`: how fast, how frugal and how prompt one worker is, beside a plain confluent-kafka loop.

    python -m millstream.loadgen.bench --only raw_copy,cpu_raw_copy --runs 5

A development broker starts on the same machine (or `--brokers` names a cluster); inputs are filled once; then each
row is measured in fresh processes, run by run in turn with the baseline's, since a machine's speed drifts. A table goes
to stdout, and the same with all conditions to a file. A missed target is shown and does not fail the command.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.status import Status

from millstream.connectors.kafka.broker_distribution import KAFKA_VERSION
from millstream.connectors.kafka.development_broker import DevelopmentBroker
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.connectors.kafka.settings_arguments import (
    add_kafka_arguments,
    kafka_environment,
    kafka_settings_from,
    names_brokers,
)
from millstream.loadgen.bench_load import Latency, Memory
from millstream.loadgen.bench_machine import Machine, Strain
from millstream.loadgen.bench_observing import Observing
from millstream.loadgen.bench_place import Place
from millstream.loadgen.bench_process import Side
from millstream.loadgen.bench_report import SPECS, Row, table
from millstream.loadgen.bench_stage import Case, Sample, Stage
from millstream.loadgen.bench_start import FirstOutput
from millstream.loadgen.bench_throughput import Throughput
from millstream.loadgen.bench_workloads import Work
from millstream.loadgen.long_command import run_command, telling
from millstream.loadgen.report_file import write_json
from millstream.processor.errors import SettingsError

_EVENTS_MAX = 1_000_000_000
_RUNS_MAX = 100
_LONG_S = 600.0
_BASELINE_LONG_S = 60.0
# The broker's default looks for expired segments every five minutes, in which the long run would fill a small disk.
_BROKER_PROPERTIES = {"log.retention.check.interval.ms": "5000"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """What to measure. Raises SettingsError with every mistake at once."""

    events: int = 3_000_000
    runs: int = 3
    partitions: int = 6
    seed: int = 7
    only: tuple[str, ...] = ()
    memory_s: float = 30.0
    latency_s: float = 10.0

    def __post_init__(self) -> None:
        mistakes = [
            f"--only names {name!r}; the rows are {', '.join(SPECS)}" for name in self.only if name not in SPECS
        ]
        for name, value, most in (
            ("events", self.events, _EVENTS_MAX),
            ("runs", self.runs, _RUNS_MAX),
            ("partitions", self.partitions, 1000),
        ):
            if not 1 <= value <= most:
                mistakes.append(f"--{name} is {value}; give 1 to {most}")
        if self.seed < 0:
            mistakes.append(f"--seed is {self.seed}; give 0 or more")
        if mistakes:
            raise SettingsError("the benchmark cannot start", mistakes)

    def wants(self, case: Case) -> bool:
        """Whether one of the case's rows was asked for."""
        return not self.only or not set(self.only).isdisjoint(case.rows)


class Screen:
    """Progress on stderr: a line that changes, or one for each step where nobody watches."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = Status("", console=console) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def step(self, what: str) -> None:
        """What is being done now."""
        if self._status is not None:
            self._status.update(what)
        else:
            self._console.print(what, highlight=False, soft_wrap=True)

    def note(self, what: str) -> None:
        """Something that stays on the screen."""
        self._console.print(what, highlight=False, soft_wrap=True)


def cases(settings: BenchSettings, stage: Stage) -> list[Case]:
    """What was asked for, in the order of the rows."""
    baseline_s = min(settings.memory_s, _BASELINE_LONG_S)
    every: list[Case] = [
        *(Throughput(stage, work) for work in Work),
        Memory(stage, settings.memory_s, baseline_s),
        FirstOutput(stage),
        Latency(stage, settings.latency_s),
        Observing(stage),
    ]
    return [case for case in every if settings.wants(case)]


def run_bench(
    settings: BenchSettings, kafka: KafkaSettings | None, environ: Mapping[str, str], screen: Screen, rows: list[Row]
) -> None:
    """Measure, and add to `rows` as they are done. No process and no topic is left, however it ends.

    `kafka` None starts a development broker.
    """
    with ExitStack() as stack:
        version = "of the cluster"
        if kafka is None:
            screen.step("starting Kafka (the first time, it is downloaded)")
            broker = stack.enter_context(DevelopmentBroker(properties=_BROKER_PROPERTIES))
            kafka = KafkaSettings(brokers=(broker.bootstrap,))
            version = f"{KAFKA_VERSION}, one node, 1 GiB heap, on the same cores"
            environ = {**environ, "MILLSTREAM_BROKERS": broker.bootstrap}
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-bench-")))
        place = Place(kafka, settings.partitions, directory, settings.seed)
        stack.enter_context(place.cleared())
        screen.step(f"filling the input with {settings.events:,} events")
        stage = Stage(place, place.preload(settings.events), environ)
        common = {
            "partitions": settings.partitions,
            "event_bytes": round(stage.inputs.event_bytes, 1),
            "guarantee": "exactly-once",
            "workers": 1,
            **Machine.here().as_json(),
            "kafka": version,
        }
        chosen = cases(settings, stage)
        if settings.runs > 1:
            _warm_broker(stage, screen)
        for case in chosen:
            rows += _measure(case, settings, common, screen)


def _warm_broker(stage: Stage, screen: Screen) -> None:
    """One run of each side that is not counted: a Java broker is slow in its first seconds."""
    screen.step("warming up the broker")
    for side in Side:
        Throughput(stage, Work.RAW_COPY).measure(side)


def _measure(case: Case, settings: BenchSettings, common: Mapping[str, object], screen: Screen) -> list[Row]:
    runs = min(settings.runs, case.runs_max or settings.runs)
    samples: dict[Side, list[Sample]] = {side: [] for side in Side}
    name = case.rows[0]
    screen.step(f"{name}: getting ready")
    case.rehearse()
    strain = Strain.now()
    for run in range(1, runs + 1):
        for side in Side:
            screen.step(f"{name}: run {run} of {runs}, {'ours' if side is Side.OURS else 'baseline'}")
            samples[side].append(case.measure(side))
    conditions = {
        **common,
        **strain.until_now(),
        **samples[Side.OURS][-1].conditions,
        "baseline_conditions": samples[Side.BASELINE][-1].conditions,
    }
    rows = [
        Row(
            SPECS[row],
            [sample.values[row] for sample in samples[Side.OURS]],
            [sample.values[row] for sample in samples[Side.BASELINE]],
            conditions,
        )
        for row in case.rows
        if not settings.only or row in settings.only
    ]
    for row in rows:
        screen.note(row.sentence())
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and answer its exit code: 0 where every row was measured, whatever its figure."""
    arguments = _parser().parse_args(argv)
    return run_command("bench", lambda: _execute(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m millstream.loadgen.bench",
        description="Measure one worker beside a plain confluent-kafka loop.",
    )
    add_kafka_arguments(parser)
    defaults = BenchSettings()
    parser.add_argument("--events", type=int, default=defaults.events, help="in the backlog (%(default)s)")
    parser.add_argument("--runs", type=int, default=defaults.runs, help="of each side (%(default)s)")
    parser.add_argument("--partitions", type=int, default=defaults.partitions, help="of each topic (%(default)s)")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of the events (%(default)s)")
    parser.add_argument("--only", metavar="ROW,...", default="", help=f"some of: {', '.join(SPECS)}")
    parser.add_argument("--long", action="store_true", help="watch memory for ten minutes, and say how it grows")
    parser.add_argument("--json", type=Path, metavar="FILE", default=Path("bench.json"), help="(%(default)s)")
    return parser


def _execute(arguments: argparse.Namespace) -> int:
    settings = BenchSettings(
        events=arguments.events,
        runs=arguments.runs,
        partitions=arguments.partitions,
        seed=arguments.seed,
        only=tuple(name.strip() for name in arguments.only.split(",") if name.strip()),
        memory_s=_LONG_S if arguments.long else BenchSettings().memory_s,
    )
    environ = {**os.environ, **kafka_environment(arguments)}
    kafka = kafka_settings_from(arguments, os.environ) if names_brokers(arguments, os.environ) else None
    rows: list[Row] = []

    def tell() -> None:
        Console(width=None if sys.stdout.isatty() else 140).print(table(rows))
        write_json(arguments.json, [row.as_json() for row in rows])

    with telling(tell), Screen(Console(stderr=True)) as screen:
        run_bench(settings, kafka, environ, screen, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
