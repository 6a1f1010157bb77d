"""`millstream explain`: for each offload stage what was chosen, from which candidates, and why.

Live, from a running node's status; or without one, for arrivals at a steady rate or as recorded, with what the stage's
batches take on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from millstream.gpu_offload.decision import Decision
from millstream.gpu_offload.device_choice import law_from
from millstream.gpu_offload.dry_run import SizeTime, sizes
from millstream.gpu_offload.explanation import explain
from millstream.gpu_offload.offload_settings import CPU, GPU, OffloadSettings
from millstream.gpu_offload.planner import Planner
from millstream.gpu_offload.profile_command import Measured, add_sample_arguments, measured_from
from millstream.gpu_offload.service_law import ServiceLaw
from millstream.gpu_offload.words import quantity
from millstream.processor.errors import SettingsError, UnavailableError
from millstream.processor.setting_sources import PATH, TEXT, Sources, whole

_STEP_S: Final = 0.01
_LOOK_S: Final = 10.0
_RATE: Final = 50_000
_WAIT_S: Final = 5.0
_RUNS: Final = 30


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_sample_arguments(parser)
    parser.add_argument("--node", metavar="HOST:PORT", help="ask a running node instead: its address for HTTP")
    parser.add_argument("--rate", metavar="R", help=f"arrivals at a steady rate, in events a second (default: {_RATE})")
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="recorded arrivals: a line for each moment, seconds and records, as in 0.25 1200",
    )
    parser.add_argument(
        "--with-gpu", action="store_true", help="take a GPU as --gpu describes it for ready and measured"
    )
    parser.add_argument("--json", action="store_true", help="the last decision of each stage as JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Explain; answers the exit code."""
    sources = Sources(arguments, os.environ)
    node = sources.value("node", TEXT)
    if node is not None:
        return _live(node, as_json=arguments.json)
    rate = sources.value("rate", whole(1), _RATE) or _RATE
    path = sources.value("trace", PATH)
    measured = measured_from(sources, arguments, os.environ)
    if not measured.built.offloads:
        raise SettingsError("nothing to explain", [f"pipeline {measured.built.name!r} has no offload stage"])
    arrivals = steady(rate) if path is None else recorded(path)
    decisions = {
        stage.definition.name: _decided(measured, number, arrivals, arguments.with_gpu)
        for number, stage in enumerate(measured.built.offloads)
    }
    if arguments.json:
        last = {name: some[-1] for name, some in decisions.items()}
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(last)) + b"\n")
        return 0
    for some in decisions.values():
        sys.stdout.write(_story(some, measured, is_assumed=arguments.with_gpu))
    return 0


# -- live ------------------------------------------------------------------------------------------------------------


def _live(node: str, *, as_json: bool) -> int:
    try:
        with urllib.request.urlopen(f"http://{node}/status", timeout=_WAIT_S) as answer:
            status = json.load(answer)
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise UnavailableError(f"no status from {node}: {error}") from error
    stages = status.get("offload", [])
    if as_json:
        sys.stdout.write(json.dumps(stages, indent=2) + "\n")
        return 0
    if not stages:
        sys.stdout.write(f"Pipeline {status.get('pipeline')!r} has no offload stage on {node}.\n")
    for stage in stages:
        sys.stdout.write(live_text(stage))
    return 0


def live_text(stage: dict[str, Any]) -> str:
    """A stage of a node's status, for people."""
    counts = stage["counts"]
    done = ", ".join(f"{quantity(records)} on {device}" for device, records in counts["records"].items()) or "none yet"
    lines = [f"Stage {stage['stage']!r}: records computed: {done}; {stage['device_share']:.0%} on devices"]
    lines += [
        f"  {name}: " + ", ".join(f"{what} {count}" for what, count in counts[name].items())
        for name in ("switches", "fallbacks", "probes")
        if counts[name]
    ]
    for worker in stage["workers"]:
        where = worker["device"] or "no device"
        why = f" ({worker['why']})" if worker["why"] else ""
        lines += [
            "",
            f"Worker {worker['worker']}: {where}, {worker['device_state']}{why}",
            worker["explanation"].rstrip(),
        ]
    return "\n".join(lines) + "\n\n"


# -- by trace --------------------------------------------------------------------------------------------------------

Arrivals = Sequence[tuple[float, int]]


def steady(rate: int) -> Arrivals:
    """Ten seconds of arrivals by chance at this rate, always the same."""
    counts = np.random.default_rng(0).poisson(rate * _STEP_S, round(_LOOK_S / _STEP_S))
    return [(place * _STEP_S, int(count)) for place, count in enumerate(counts)]


def recorded(path: Path) -> Arrivals:
    """Arrivals from a file. Raises SettingsError for what is not seconds that grow, and numbers of records."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise SettingsError("the trace", [f"{path} cannot be read: {error.strerror}"]) from error
    found: list[tuple[float, int]] = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            moment = _moment(line)
            if moment is None or (found and moment[0] < found[-1][0]):
                mistake = f"{path}, line {number}: {line[:40]!r}; a line is seconds, which grow, and records: 0.25 1200"
                raise SettingsError("the trace", [mistake])
            found.append(moment)
    if not found:
        raise SettingsError("the trace", [f"{path} has no arrivals in it"])
    return found


def _moment(line: str) -> tuple[float, int] | None:
    try:
        at, records = line.replace(",", " ").split()
        return float(at), int(records)
    except ValueError:
        return None


def _decided(measured: Measured, number: int, arrivals: Arrivals, with_gpu: bool) -> list[Decision]:
    stage = measured.built.offloads[number]
    found = sizes(measured.built, measured.sample, stage, measured.seconds / 5)
    law = law_from(measured.gpu) if with_gpu else None
    mean_bytes = sum(len(value or b"") for value in measured.sample.values) / len(measured.sample.values)
    definition = stage.definition
    return list(
        decided(
            definition.name, definition.latency_budget_ms / 1000, found, arrivals, measured.offload, law, mean_bytes
        )
    )


def decided(
    stage: str,
    budget_s: float,
    found: Sequence[SizeTime],
    arrivals: Arrivals,
    prices: OffloadSettings,
    law: ServiceLaw | None,
    record_bytes: float,
) -> Iterator[Decision]:
    """The planner's decisions over the arrivals; the first one and each that is another than the one before, and the
    last. Without a `law` the GPU is not there, and only its chances are judged."""
    planner = Planner(stage, budget_s, prices.specs())
    start = arrivals[0][0]
    for one in found:
        runs = [(one.records, took) for took in _thinned(one.seconds)]
        planner.calibrated(start, CPU, runs)
        if law is not None:
            beside = max(0.0, one.quantile(0.5) - one.compute_p50_s)
            planner.calibrated(start, GPU, [(one.records, law.median_s(one.records) + beside)] * _RUNS)
    if law is not None:
        planner.device_state(start, GPU, "ready")
    told: Decision | None = None
    decision: Decision | None = None
    for at, records in arrivals:
        planner.arrived(at, records, int(records * record_bytes))
        if planner.is_due(at):
            decision = planner.decide(at)
            if told is None or (decision.option.device, decision.reason_code) != (told.option.device, told.reason_code):
                told = decision
                yield decision
    last = planner.decide(arrivals[-1][0] + 1e-3)
    if told is None or decision is not told or last.option != told.option:
        yield last


def _thinned(seconds: Sequence[float]) -> Sequence[float]:
    """At least as many as make a size known, at most a few hundred."""
    return list(seconds)[:300] if len(seconds) >= _RUNS else list(seconds) * (-(-_RUNS // max(1, len(seconds))))


def _story(decisions: Sequence[Decision], measured: Measured, *, is_assumed: bool) -> str:
    last = decisions[-1]
    lines = [f"CPU measured here on {measured.sample.origin}."]
    lines.append(
        f"GPU assumed ({measured.gpu}), not measured."
        if is_assumed
        else "No GPU: only whether one could win is judged, by its floor. --with-gpu takes one for ready."
    )
    if len(decisions) > 1:
        lines.append("What changed:")
        lines += [f"  at {one.at_s:8.2f} s  {one.option.device}: {one.reason_code}, {one.reason}" for one in decisions]
    return "\n".join(lines) + "\n\n" + explain(last).rstrip() + "\n\n"
