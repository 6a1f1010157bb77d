"""`make chaos`: the rows of the fault matrix on a real broker, each judged from outside, each takeover timed there.

    python -m millstream.loadgen.chaos --rows 1,2,moves --level idle,half --rounds 10 --json chaos.json

Broker, nodes, generator and reader share this machine. Some rows need root (network namespaces, CPU quotas). A case
that cannot be played says why in the report; what is lost or doubled, or does not go as the matrix says, fails the
command. A missed time does not: it stands in the report beside its target.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from millstream.connectors.kafka.broker_distribution import KAFKA_VERSION
from millstream.connectors.kafka.development_broker import DevelopmentBroker
from millstream.connectors.kafka.development_cluster import DevelopmentCluster
from millstream.loadgen.bench_machine import Machine, Strain
from millstream.loadgen.chaos_case import CaseResult, play_case
from millstream.loadgen.chaos_cases import CASES, ROWS, Case
from millstream.loadgen.chaos_report import detections, pauses, takeovers, write_report
from millstream.loadgen.chaos_stage import Brokers, Level
from millstream.loadgen.chaos_timing import Quantiles
from millstream.loadgen.chaos_warm_up import WARM_UP_S, warm_up
from millstream.loadgen.long_command import FAILED, run_command
from millstream.loadgen.report_file import check_report
from millstream.processor.errors import SettingsError

_ROUNDS_MAX = 1000
# So many faults are judged together: a judge keeps books of all events, and a disk holds them.
_ROUNDS_JUDGED = 60
# Threads of readers are to wake at once, whatever else runs in this process.
_SWITCH_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosSettings:
    """What to play. Raises SettingsError with every mistake at once."""

    rows: tuple[str, ...] = ROWS
    cases: tuple[str, ...] = ()
    levels: tuple[Level, ...] = (Level.IDLE,)
    rounds: int = 3
    seed: int = 1
    warm_up_s: float = WARM_UP_S

    def __post_init__(self) -> None:
        mistakes = [f"there is no row {row!r}; there are {', '.join(ROWS)}" for row in self.rows if row not in ROWS]
        names = [case.name for case in CASES]
        mistakes += [
            f"there is no case {name!r}; there are {', '.join(names)}" for name in self.cases if name not in names
        ]
        if not 1 <= self.rounds <= _ROUNDS_MAX:
            mistakes.append(f"rounds is {self.rounds}; give 1 to {_ROUNDS_MAX}")
        if not 0 <= self.warm_up_s < math.inf:
            mistakes.append(f"the warm-up is {self.warm_up_s:g} s; give 0 or more")
        if not self.levels:
            mistakes.append("no level is named; give idle, half or full")
        if mistakes:
            raise SettingsError("the faults", mistakes)

    def chosen(self) -> list[Case]:
        """The cases in the order in which they are listed."""
        if self.cases:
            return [case for case in CASES if case.name in self.cases]
        return [case for case in CASES if case.row in self.rows]


def play_all(
    settings: ChaosSettings,
    tell: Callable[[str], None],
    on_result: Callable[[CaseResult], None],
    logs: Path | None = None,
) -> None:
    """Play every case at every level; each result is told as soon as it is there."""
    chosen = settings.chosen()
    chance = random.Random(settings.seed)
    for is_clustered in (False, True):
        cases = [case for case in chosen if case.is_clustered == is_clustered]
        if not cases:
            continue
        tell("starting Kafka")
        with ExitStack() as stack:
            brokers: Brokers
            if is_clustered:
                brokers = stack.enter_context(DevelopmentCluster())
            else:
                brokers = stack.enter_context(DevelopmentBroker())
            if settings.warm_up_s:
                tell(f"warming it up for {settings.warm_up_s:g} s")
                warm_up(brokers, settings.warm_up_s, settings.seed)
            for case in cases:
                for level in settings.levels:
                    left = min(settings.rounds, case.rounds_max)
                    while left > 0:
                        rounds = min(left, _ROUNDS_JUDGED)
                        left -= rounds
                        seed = chance.randrange(1 << 31)

                        def tell_case(what: str, case: Case = case, level: Level = level, seed: int = seed) -> None:
                            tell(f"row {case.row}, {case.name} at {level.value} (seed {seed}): {what}")

                        on_result(play_case(case, level, rounds, brokers, seed, tell_case, logs=logs))


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Answers 0 where nothing was lost or doubled and all went as the matrix says."""
    arguments = _parser().parse_args(argv)
    return run_command("chaos", lambda: _execute(arguments))


def _execute(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    path: Path = arguments.json
    check_report(path)
    sys.setswitchinterval(_SWITCH_S)
    console, results, strain, began = Console(stderr=True), list[CaseResult](), Strain.now(), time.monotonic()

    def tell(what: str) -> None:
        console.print(f"{time.monotonic() - began:7.1f} s  {what}", markup=False, highlight=False, soft_wrap=True)

    def take(result: CaseResult) -> None:
        results.append(result)
        tell(_sentence(result))
        # The report grows with every case: hours of work are not lost with the last one.
        write_report(path, results, _conditions(settings, strain))

    play_all(settings, tell, take, arguments.logs)
    return 0 if all(result.is_clean for result in results) else FAILED


def _sentence(result: CaseResult) -> str:
    shown = [
        f"{name} {quantiles.p50:.0f}/{quantiles.p99:.0f}/{quantiles.longest:.0f}"
        for name, quantiles in _figures(result)
        if quantiles is not None
    ]
    judged = "not judged"
    if result.verdict is not None:
        balance = result.verdict.balance
        judged = f"{balance.inputs:,} events, lost {balance.lost}, doubled {balance.doubled}"
    wrong = [*result.complaints, *([result.failure] if result.failure else [])]
    if result.verdict is not None and not result.verdict.is_clean:
        wrong += result.verdict.sentences()
    end = "" if result.is_clean else f"; WRONG: {'; '.join(wrong)}"
    return (
        f"=> row {result.case.row}, {result.case.name} at {result.level.value}: {len(result.rounds)} faults, {judged}, "
        f"mistaken verdicts {result.mistaken}; ms p50/p99/max: {', '.join(shown)}{end}"
    )


def _figures(result: CaseResult) -> list[tuple[str, Quantiles | None]]:
    rounds = result.rounds
    return [("detection", detections(rounds)), ("takeover", takeovers(rounds)), ("pause", pauses(rounds))]


def _conditions(settings: ChaosSettings, strain: Strain) -> dict[str, object]:
    return {
        "machine": Machine.here().as_json(),
        "broker": f"Apache Kafka {KAFKA_VERSION}, one node (rows with a cluster: three), on the same cores",
        "pipeline": "typed JSON in, a function for each event, typed JSON out; exactly once; 8 shards",
        "levels": {level.value: f"{level.rate:,.0f} events/s{', hogs' if level.has_hogs else ''}" for level in Level},
        "warm-up": f"{settings.warm_up_s:g} s at half load for each broker or cluster, before its first fault",
        "seed": settings.seed,
        **strain.until_now(),
    }


def _settings(arguments: argparse.Namespace) -> ChaosSettings:
    try:
        levels = tuple(Level(name) for name in arguments.level.split(","))
    except ValueError as error:
        raise SettingsError("the faults", [f"--level is {arguments.level!r}; give some of idle,half,full"]) from error
    return ChaosSettings(
        rows=tuple(arguments.rows.split(",")) if arguments.rows else ROWS,
        cases=tuple(arguments.cases.split(",")) if arguments.cases else (),
        levels=levels,
        rounds=arguments.rounds,
        warm_up_s=arguments.warm_up,
        seed=arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m millstream.loadgen.chaos",
        description="Play the rows of the fault matrix on a real broker, judged and timed from outside.",
    )
    parser.add_argument("--rows", metavar="ROW,...", help=f"which rows (all: {','.join(ROWS)})")
    parser.add_argument("--cases", metavar="CASE,...", help="which cases, instead of whole rows")
    parser.add_argument("--level", default="idle,half,full", help="how busy the machine is (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="faults of each case at each level (%(default)s)")
    parser.add_argument("--seed", type=int, help="decides victims and phases (drawn, and printed with each case)")
    parser.add_argument(
        "--warm-up", type=float, metavar="SECONDS", default=WARM_UP_S, help="load before the first fault (%(default)g)"
    )
    parser.add_argument("--logs", type=Path, metavar="DIRECTORY", help="keep the nodes' logs here")
    parser.add_argument("--json", type=Path, metavar="FILE", default=Path("chaos.json"), help="(%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
