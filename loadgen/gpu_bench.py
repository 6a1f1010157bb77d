"""`make gpu-bench`: the experiments that need a real GPU, in less than eight minutes, as JSON and as a page.

    python -m millstream.loadgen.gpu_bench --json gpu-bench.json --markdown gpu-bench.md
    python -m millstream.loadgen.gpu_bench --only E3,E4

Without a GPU it says why there is none in one line, and answers 2. What has been found is written after each
experiment, so that one that ends the process costs no more than itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from millstream.gpu_offload.availability import cuda_devices
from millstream.gpu_offload.device_choice import check_device
from millstream.loadgen.bench import Screen
from millstream.loadgen.gpu_bench_experiments import EXPERIMENTS, Bench, Experiment
from millstream.loadgen.gpu_bench_report import page
from millstream.loadgen.long_command import FAILED, TO_MEND, run_command
from millstream.loadgen.report_file import check_report, write_json, write_text
from millstream.processor.errors import MillstreamError, SettingsError


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Answers 0 where every experiment came to its end, 1 where one did not, 2 without a GPU."""
    arguments = _parser().parse_args(argv)
    return run_command("gpu-bench", lambda: _execute(arguments))


def _execute(arguments: argparse.Namespace) -> int:
    device = arguments.device
    if device is None:
        available = cuda_devices()
        if not available.devices:
            print(f"gpu-bench: no GPU to measure: {available.why}", file=sys.stderr)
            return TO_MEND
        device = available.devices[0]
    check_device(device)
    check_report(arguments.json)
    check_report(arguments.markdown)
    bench = Bench(device=device, core_price=arguments.core_price, gpu_price=arguments.gpu_price, quick=arguments.quick)
    report: dict[str, Any] = {"conditions": _conditions(bench), "experiments": []}
    with Screen(Console(stderr=True)) as screen:
        for experiment in _chosen(arguments.only):
            screen.step(f"{experiment.name}: {experiment.title}")
            report["experiments"].append(asyncio.run(run(experiment, bench)))
            write_json(arguments.json, report)
            write_text("the page", arguments.markdown, page(report))
    print(page(report))
    return FAILED if any(one["trouble"] for one in report["experiments"]) else 0


async def run(experiment: Experiment, bench: Bench) -> dict[str, Any]:
    """Run one within its time. Whatever becomes of it, what it has found is there, and why it did not end."""
    found: dict[str, Any] = {}
    trouble = ""
    begun = time.perf_counter()
    try:
        async with asyncio.timeout(experiment.seconds_max):
            await experiment.run(bench, found)
    except TimeoutError:
        trouble = f"stopped after {experiment.seconds_max:.0f} s"
    except MillstreamError as error:
        trouble = str(error)
    except Exception as error:  # a device can make anything fail, and the others are to be measured all the same
        trouble = f"{type(error).__name__}: {error}"
    return {
        "name": experiment.name,
        "title": experiment.title,
        "seconds": time.perf_counter() - begun,
        "trouble": trouble,
        "found": found,
    }


def _chosen(only: str | None) -> Sequence[Experiment]:
    if only is None:
        return EXPERIMENTS
    wanted = only.split(",")
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    if unknown := [name for name in wanted if name not in known]:
        raise SettingsError("gpu-bench", [f"there is no experiment {unknown[0]!r}; there are {', '.join(known)}"])
    return [known[name] for name in wanted]


def _conditions(bench: Bench) -> dict[str, object]:
    return {
        "device": bench.device,
        "simulated": not bench.is_cuda,
        "cores": os.cpu_count() or 1,
        "price_of_a_core_per_hour": bench.core_price,
        "price_of_the_device_per_hour": bench.gpu_price,
        "quick": bench.quick,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m millstream.loadgen.gpu_bench", description="Measure a real GPU, and the planner with it."
    )
    parser.add_argument("--device", metavar="DEVICE", help="such as cuda:0 (the first that there is)")
    parser.add_argument("--only", metavar="E0,...", help="only these experiments")
    parser.add_argument("--core-price", type=float, default=0.04, help="of a CPU core, per hour (%(default)s)")
    parser.add_argument("--gpu-price", type=float, default=3.5, help="of the device, per hour (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="everything once and small, to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", default=Path("gpu-bench.json"), help="(%(default)s)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", default=Path("gpu-bench.md"), help="(%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
