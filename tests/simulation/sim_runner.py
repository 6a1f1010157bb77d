"""Many schedules, on several processes: what `make sim` runs.

Every schedule follows from its seed alone: a seed that has failed fails again, and `--seed N --trace` tells its story.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from sim_mutations import MUTATIONS, mutated
from sim_world import Outcome, Plan, World

_TOLD_MAX = 5


def run_seed(seed: int, plan: Plan | None = None, *, mutation: str | None = None, trace: bool = False) -> Outcome:
    """One schedule; with `mutation`, one safeguard is missing."""
    was_collecting = gc.isenabled()
    # A schedule is short and ends with everything; looking for garbage meanwhile takes a tenth of the time.
    gc.disable()
    try:
        with mutated(mutation) as mutate:
            return World(seed, plan or Plan(), mutate, trace=trace).run()
    finally:
        if was_collecting:
            gc.enable()


def run_seeds(seeds: Iterable[int], jobs: int, plan: Plan, mutation: str | None = None) -> Iterator[Outcome]:
    """Their outcomes, as they come."""
    work = partial(run_seed, plan=plan, mutation=mutation)
    if jobs == 1:
        yield from map(work, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, initializer=gc.freeze) as pool:
        yield from pool.imap_unordered(work, seeds, chunksize=8)


def told(outcome: Outcome) -> str:
    """A failure, and how to see it again."""
    more = len(outcome.failures) - _TOLD_MAX
    lines = [f"seed {outcome.seed} failed:", *(f"  {failure}" for failure in outcome.failures[:_TOLD_MAX])]
    lines += [f"  and {more} more"] if more > 0 else []
    return "\n".join([*lines, f"  again: python tests/simulation/run.py --seed {outcome.seed} --trace"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers the exit code: 1 where a schedule failed."""
    parser = argparse.ArgumentParser(description="Simulated clusters, nodes and faults in virtual time, by seeds.")
    parser.add_argument("--seeds", type=int, default=2000, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count(), help="how many processes")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="tell what happens (with --seed)")
    parser.add_argument("--nodes", type=int, help="so many nodes, rather than a few by chance")
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), help="take one safeguard away")
    chosen = parser.parse_args(arguments)
    plan = Plan(nodes=chosen.nodes)
    if chosen.seed is not None:
        outcome = run_seed(chosen.seed, plan, mutation=chosen.mutation, trace=chosen.trace)
        print(*outcome.trace, sep="\n")
        print(told(outcome) if outcome.failures else f"seed {outcome.seed}: all was well")
        return 1 if outcome.failures else 0
    return _run_all(range(chosen.first, chosen.first + chosen.seeds), chosen.jobs, plan, chosen.mutation)


def _run_all(seeds: range, jobs: int, plan: Plan, mutation: str | None) -> int:
    began = time.monotonic()
    totals: Counter[str] = Counter()
    recoveries = []
    for outcome in run_seeds(seeds, jobs, plan, mutation):
        totals["seeds"] += 1
        totals["failed"] += bool(outcome.failures)
        totals["records"] += outcome.records
        totals["commits"] += outcome.commits
        totals["verdicts"] += outcome.verdicts
        totals["virtual s"] += round(outcome.virtual_s)
        recoveries.append(outcome.recovery_s)
        if outcome.failures:
            print(told(outcome), flush=True)
    seconds = time.monotonic() - began
    print(", ".join(f"{count} {what}" for what, count in totals.items()))
    print(f"all was well again {max(recoveries):.1f} s after the last fault at most (virtual time)")
    print(f"{seconds:.1f} s with {jobs} processes: {60 * totals['seeds'] / seconds:.0f} schedules a minute")
    return 1 if totals["failed"] else 0
