"""`make regret`: the planner on traces of many kinds, beside an oracle, fixed choices and the rules of other systems.

    python -m millstream.loadgen.regret --seed 7 --json regret.json --picture regret.svg
    python -m millstream.loadgen.regret --trace "step up" --short

Everything is in virtual time, with service times by a law: no device is asked, and a minute takes a second or two.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from millstream.loadgen.bench import Screen
from millstream.loadgen.long_command import FAILED, run_command
from millstream.loadgen.picture import check_picture
from millstream.loadgen.regret_cases import BUDGET_S, LEAD_S, cases
from millstream.loadgen.regret_report import as_json, markdown, picture, planner_table, rivals_table
from millstream.loadgen.regret_run import CaseResult, misses, run_case
from millstream.loadgen.report_file import check_report, write_json, write_text
from millstream.processor.errors import SettingsError

_TITLE = "The planner and others, by trace"


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Answers 0 where the planner has reached all that it was to reach, known limits apart; else 1."""
    arguments = _parser().parse_args(argv)
    return run_command("regret", lambda: _execute(arguments))


def _execute(arguments: argparse.Namespace) -> int:
    check_report(arguments.json)
    check_picture(arguments.picture)
    results: list[CaseResult] = []
    with Screen(Console(stderr=True)) as screen:
        for case in cases(arguments.seed, short=arguments.short):
            if _is_chosen(case.name, arguments.trace):
                screen.step(f"{case.name} ({case.site.name})")
                results.append(run_case(case, arguments.seed, with_rivals=not arguments.alone))
                _write(arguments, results)
    if not results:
        raise SettingsError("nothing to try", [f"no trace has {arguments.trace[0]!r} in its name"])
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(planner_table(results))
    console.print(rivals_table(results))
    return FAILED if any(misses(result) and not result.known_limit for result in results) else 0


def _is_chosen(name: str, chosen: Sequence[str] | None) -> bool:
    return chosen is None or any(part in name for part in chosen)


def _write(arguments: argparse.Namespace, results: Sequence[CaseResult]) -> None:
    """All files, after each case: the next one may be interrupted."""
    write_json(arguments.json, {"conditions": _conditions(arguments), "cases": [as_json(one) for one in results]})
    write_text("the picture", arguments.picture, picture(results, _TITLE))
    if arguments.markdown is not None:
        write_text("the tables", arguments.markdown, markdown(results))


def _conditions(arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "time": "virtual; service times by a law, no device was asked",
        "budget_ms": BUDGET_S * 1e3,
        "not_scored_s": LEAD_S,
        "seed": arguments.seed,
        "short": arguments.short,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m millstream.loadgen.regret",
        description="Try the planner on traces, beside an oracle and others.",
    )
    parser.add_argument("--seed", type=int, default=7, help="of arrivals and service times (%(default)s)")
    parser.add_argument("--short", action="store_true", help="a third of each trace")
    parser.add_argument("--alone", action="store_true", help="the planner and the oracle, without the others")
    parser.add_argument(
        "--trace", metavar="NAME", action="append", help="only those with this in their names; repeat it"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", default=Path("regret.json"), help="(%(default)s)")
    parser.add_argument("--picture", type=Path, metavar="FILE", default=Path("regret.svg"), help="(%(default)s)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the tables for a document")
    return parser


if __name__ == "__main__":
    sys.exit(main())
