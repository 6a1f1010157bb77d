"""`make load-test`: broker, node, generator and judge on this machine, at several rates, with figures beside targets.

    python -m millstream.loadgen.load_test --rates 20000,50000 --seconds 20

Each rate has topics and a node of its own, and a warm-up that is not measured. A broker that this starts has one
before all of that, at the highest rate: it compiles itself for its first minute or two, and takes a fifth of a core for
that, while the broker of a real cluster has been up for long. A missed target is shown and does not fail the command;
an event that is lost, doubled or out of order does.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from millstream.connectors.kafka.broker_distribution import KAFKA_VERSION
from millstream.connectors.kafka.development_broker import DevelopmentBroker
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.connectors.kafka.settings_arguments import (
    add_kafka_arguments,
    kafka_environment,
    kafka_settings_from,
    names_brokers,
)
from millstream.loadgen.bench import Screen
from millstream.loadgen.bench_machine import Machine, Strain
from millstream.loadgen.load_case import WARM_UP_RATE_MIN, CaseResult, LoadCase, run_case
from millstream.loadgen.load_report import TARGETS, latency_table, process_table, remarks, result_as_json
from millstream.loadgen.long_command import FAILED, run_command, telling
from millstream.loadgen.picture import write_picture
from millstream.loadgen.report_file import check_report, write_json
from millstream.loadgen.verify import InputReading
from millstream.processor.errors import SettingsError

_SOAK_RATE = 50_000.0
_RATE_MAX = 10_000_000
_SECONDS_MAX = 86_400
# The broker's default looks for expired segments every five minutes, in which a long run would fill a small disk.
_BROKER_PROPERTIES = {"log.retention.check.interval.ms": "5000"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTestSettings:
    """What to run. Raises SettingsError with every mistake at once.

    `soak_minutes` replaces the length of each rate, and has the judge read along, so that old records may go.
    `broker_warm_up_s` is how long a broker that the test starts is used before anything is measured; 0 for not at all.
    """

    rates: tuple[float, ...] = tuple(TARGETS)
    seconds: float = 60.0
    soak_minutes: float | None = None
    warm_up_s: float = 10.0
    broker_warm_up_s: float = 60.0
    workers: int = 1
    partitions: int = 6
    seed: int = 7

    def __post_init__(self) -> None:
        mistakes = []
        if not self.rates or not all(1 <= rate <= _RATE_MAX for rate in self.rates):
            mistakes.append(f"the rates are {', '.join(map(str, self.rates))}; give some of 1 to {_RATE_MAX}")
        if not 1 <= self.length_s <= _SECONDS_MAX:
            mistakes.append(f"it would run for {self.length_s:g} s at each rate; give 1 to {_SECONDS_MAX}")
        if not 0 < self.warm_up_s <= _SECONDS_MAX:
            mistakes.append(f"the warm-up is {self.warm_up_s:g} s; give more than 0")
        if not 0 <= self.broker_warm_up_s <= _SECONDS_MAX:
            mistakes.append(f"the broker's warm-up is {self.broker_warm_up_s:g} s; give 0 or more")
        for name, value in (("workers", self.workers), ("partitions", self.partitions)):
            if not 1 <= value <= 1000:
                mistakes.append(f"{name} is {value}; give 1 to 1000")
        if self.seed < 0:
            mistakes.append(f"seed is {self.seed}; give 0 or more")
        if mistakes:
            raise SettingsError("the load test cannot start", mistakes)

    @property
    def length_s(self) -> float:
        """How long each rate is measured."""
        return self.seconds if self.soak_minutes is None else self.soak_minutes * 60

    def cases(self) -> list[LoadCase]:
        """One for each rate."""
        return [self._case(rate, self.length_s) for rate in self.rates]

    def broker_warm_up(self) -> LoadCase | None:
        """What a broker that the test starts has behind it before the first rate; None for nothing."""
        return self._case(max(self.rates), self.broker_warm_up_s) if self.broker_warm_up_s else None

    def _case(self, rate: float, seconds: float) -> LoadCase:
        return LoadCase(
            rate=rate,
            seconds=seconds,
            warm_up_s=self.warm_up_s,
            workers=self.workers,
            partitions=self.partitions,
            seed=self.seed,
            input_reading=InputReading.AFTERWARDS if self.soak_minutes is None else InputReading.ALONGSIDE,
        )


def run_load_test(
    settings: LoadTestSettings,
    kafka: KafkaSettings | None,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    results: list[CaseResult],
) -> None:
    """Run the cases one after the other, and add each result as soon as it is there. `kafka` None starts a broker."""
    with ExitStack() as stack:
        broker_pid, warm_up = None, None
        if kafka is None:
            tell("starting Kafka (the first time, it is downloaded)")
            broker = stack.enter_context(DevelopmentBroker(properties=_BROKER_PROPERTIES))
            kafka, broker_pid, warm_up = (
                KafkaSettings(brokers=(broker.bootstrap,)),
                broker.pid,
                settings.broker_warm_up(),
            )
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-load-test-")))
        if warm_up is not None:
            # Figures that nobody sees; an event that is lost is seen all the same.
            warmed = run_case(
                warm_up, kafka, broker_pid, environ, directory, lambda what: tell(f"the broker warms up: {what}")
            )
            if not warmed.is_clean:
                results.append(warmed)
        for case in settings.cases():

            def tell_case(what: str, rate: float = case.rate) -> None:
                tell(f"{rate:,.0f} events/s: {what}")

            results.append(run_case(case, kafka, broker_pid, environ, directory, tell_case))


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Answers 0 where nothing was lost, doubled or out of order, whatever the figures are."""
    arguments = _parser().parse_args(argv)
    return run_command("load-test", lambda: _execute(arguments))


def _execute(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    check_report(arguments.json)
    environ = {**os.environ, **kafka_environment(arguments)}
    kafka = kafka_settings_from(arguments, os.environ) if names_brokers(arguments, os.environ) else None
    results: list[CaseResult] = []
    strain = Strain.now()

    def tell() -> None:
        _show(results)
        _write(arguments.json, results, _conditions(settings, strain, is_own_broker=kafka is None))

    with telling(tell), Screen(Console(stderr=True)) as screen:
        run_load_test(settings, kafka, environ, _seldom(screen.step), results)
    return exit_code(results)


def exit_code(results: Sequence[CaseResult]) -> int:
    """0 where nothing was lost, doubled or out of order; a missed target changes nothing."""
    return 0 if all(result.is_clean for result in results) else FAILED


def _seldom(step: Callable[[str], None]) -> Callable[[str], None]:
    """Where nobody watches, a line for each phase of each rate is enough."""
    if sys.stderr.isatty():
        return step
    told: set[str] = set()

    def tell(what: str) -> None:
        phase = ":".join(what.split(":")[:2])
        if phase not in told:
            told.add(phase)
            step(phase)

    return tell


def _settings(arguments: argparse.Namespace) -> LoadTestSettings:
    default = (_SOAK_RATE,) if arguments.soak_minutes is not None else LoadTestSettings().rates
    try:
        rates = tuple(map(float, arguments.rates.split(","))) if arguments.rates else default
    except ValueError as error:
        raise SettingsError(
            "the load test cannot start", [f"--rates is {arguments.rates!r}; give events a second, such as 20000,50000"]
        ) from error
    return LoadTestSettings(
        rates=rates,
        seconds=arguments.seconds,
        soak_minutes=arguments.soak_minutes,
        warm_up_s=arguments.warm_up_s,
        broker_warm_up_s=arguments.broker_warm_up_s,
        workers=arguments.workers,
        partitions=arguments.partitions,
        seed=arguments.seed,
    )


def _show(results: Sequence[CaseResult]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(latency_table(results))
    console.print(process_table(results))
    for result in results:
        for remark in remarks(result):
            console.print(f"{result.case.rate:,.0f} events/s: {remark}", markup=False, highlight=False)


def _conditions(settings: LoadTestSettings, strain: Strain, *, is_own_broker: bool) -> dict[str, object]:
    return {
        "machine": Machine.here().as_json(),
        "broker": f"Apache Kafka {KAFKA_VERSION}, one node, on the same cores"
        if is_own_broker
        else "an existing cluster",
        "pipeline": "typed JSON in, a function for each event, typed JSON out; exactly once",
        "workers": settings.workers,
        "partitions": settings.partitions,
        "seed": settings.seed,
        "arrivals": "Poisson, open schedule",
        "broker_warm_up": _said(settings.broker_warm_up() if is_own_broker else None),
        "warm_up": f"{settings.warm_up_s:g} s before each, not measured, at {WARM_UP_RATE_MIN:,.0f} events/s or more",
        "timed": "intended send to arrival at a read_committed reader",
        **strain.until_now(),
    }


def _said(broker_warm_up: LoadCase | None) -> str:
    if broker_warm_up is None:
        return "none"
    return f"{broker_warm_up.seconds:g} s before everything, not measured, at {broker_warm_up.rate:,.0f} events/s"


def _write(path: Path, results: Sequence[CaseResult], conditions: Mapping[str, object]) -> None:
    """The report, and beside it a picture for each rate. Raises UnavailableError where the disk takes none."""
    write_json(path, {"conditions": conditions, "rates": [result_as_json(result) for result in results]})
    for result in results:
        title = f"{result.case.rate:,.0f} events a second for {result.case.seconds:,.0f} s"
        picture = path.with_name(f"{path.stem}-{result.case.rate:.0f}.svg")
        write_picture(picture, title, result.verdict.timeline, result.verdict.sentences())


def _parser() -> argparse.ArgumentParser:
    defaults = LoadTestSettings()
    parser = argparse.ArgumentParser(
        prog="python -m millstream.loadgen.load_test",
        description="Run broker, pipeline, generator and judge on this machine at several rates.",
    )
    add_kafka_arguments(parser)
    parser.add_argument("--rates", metavar="N,...", help="events a second (20000,50000,200000; a soak: 50000)")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="at each rate (%(default)s)")
    parser.add_argument("--soak-minutes", type=float, metavar="N", help="run for so long, and say how memory grows")
    parser.add_argument("--warm-up-s", type=float, default=defaults.warm_up_s, help="before each rate (%(default)s)")
    parser.add_argument(
        "--broker-warm-up-s",
        type=float,
        default=defaults.broker_warm_up_s,
        metavar="N",
        help="of a broker that this starts, at the highest rate, before everything; 0: none (%(default)s)",
    )
    parser.add_argument("--workers", type=int, default=defaults.workers, help="worker processes (%(default)s)")
    parser.add_argument("--partitions", type=int, default=defaults.partitions, help="of each topic (%(default)s)")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of the events (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", default=Path("load-test.json"), help="(%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
