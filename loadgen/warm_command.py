"""`millstream warm`: compile every kernel now, so that no process has to later.

For images and machines that are made once and started often. The kernels land where numba looks for them
(`NUMBA_CACHE_DIR`, see docs/operations.md). They fit the machine's own processor; on another model, what differs is
compiled again there, unless `NUMBA_CPU_NAME` names one that both are.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
from rich.console import Console

from millstream.connectors.kafka.warm_up import warm_kernels
from millstream.gpu_offload.replay import warm_up
from millstream.loadgen.accounting import FIRST_SIZE, Books, Observed
from millstream.loadgen.event_fields import event_fields
from millstream.loadgen.regret_cases import cases
from millstream.loadgen.regret_run import run_case
from millstream.loadgen.workload import Workload, WorkloadSettings


def configure(parser: argparse.ArgumentParser) -> None:
    """There is nothing to choose."""
    del parser


def execute(arguments: argparse.Namespace) -> int:
    """Compile, or find compiled, all kernels of workers, planner, generator, judge and regret trials; answers 0."""
    del arguments
    with Console(stderr=True).status("") as status:
        for part, warm in (
            ("workers", warm_kernels),
            ("planner", warm_up),
            ("generator", warm_generator),
            ("judge", warm_judge),
            ("regret trials", warm_trials),
        ):
            status.update(f"compiling the kernels of the {part}")
            warm()
    return 0


def warm_generator() -> None:
    """Every kernel of the load generator is compiled afterwards."""
    Workload(WorkloadSettings()).next_events(np.zeros(1, np.int64))


def warm_trials() -> None:
    """Every kernel of the planner's trials is compiled afterwards."""
    case = next(iter(cases(0, short=True)))
    run_case(case, 0, with_rivals=False)


def warm_judge() -> None:
    """Every kernel of the judge is compiled afterwards."""
    books = Books()
    numbers = np.zeros(1, np.int64)
    events = Observed(numbers, numbers, numbers, numbers, numbers, numbers)
    books.enter_inputs(events)
    books.enter_outputs(events)
    # An id that lies outside of the first arrays has the books look what is settled.
    books.enter_inputs(replace(events, event_id=np.full(1, FIRST_SIZE)))
    books.balance()
    event_fields([])
