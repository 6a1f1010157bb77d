"""Where one case takes place: topics, load, nodes, and those who watch; and what is measured of one round."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from millstream.connectors.kafka.settings import KafkaSettings, split_brokers
from millstream.loadgen.chaos_ledger import LedgerWatch
from millstream.loadgen.chaos_load import SteadyLoad
from millstream.loadgen.chaos_offsets import OffsetsWatch
from millstream.loadgen.chaos_timing import OutputWatch, curve
from millstream.loadgen.chaos_troupe import APP, RIPE_S, Actor, Troupe
from millstream.loadgen.cpu_pressure import CpuHogs
from millstream.loadgen.moments import Strike
from millstream.loadgen.scene import Scene, new_scene
from millstream.processor.errors import UnavailableError
from millstream.processor.ledger import DeadRecord

PARTITIONS = 8
CURVE_STEP_S = 0.02
CURVE_BEFORE_S, CURVE_AFTER_S = 0.6, 1.4
_FLOWS_S = 240.0
_VERDICT_S = 30.0
_OUTPUT_S = 60.0
# Faults fall at any phase of these.
_BEAT_S = 0.05


class Brokers(Protocol):
    """A cluster that runs already."""

    @property
    def bootstrap(self) -> str:
        """`host:port`, or several with commas between them."""


class Level(Enum):
    """How busy the machine is: events a second, and whether hogs take all cores besides."""

    IDLE = "idle"
    HALF = "half"
    FULL = "full"

    @property
    def rate(self) -> float:
        """Events a second. At idle 50 for each partition, so that what is timed does not wait for input."""
        return 400.0 if self is Level.IDLE else 20_000.0

    @property
    def has_hogs(self) -> bool:
        """Whether every core is busy anyhow."""
        return self is Level.FULL


@dataclass(slots=True)
class Round:
    """One fault and what came of it; times in milliseconds, from the instant that the fault was ordered.

    `detection_ms` is until the verdict, by the clock of whoever gave it, `told_ms` until it arrived at a reader of the
    ledger. `takeover_ms` is for each partition until the first output of an event that was sent after the fault.
    `whose` says whose time most of it was. `complaints` are broken expectations.
    """

    number: int
    fault: str
    struck: list[str]
    partitions: list[int] = field(default_factory=list)
    detection_ms: float | None = None
    told_ms: float | None = None
    takeover_ms: dict[int, float] = field(default_factory=dict)
    pause_ms: dict[int, float] = field(default_factory=dict)
    whose: str = "ours"
    notes: dict[str, float | str] = field(default_factory=dict)
    curve: tuple[list[int], list[int]] | None = None
    complaints: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """What a case needs. `partitions` are also the shards. A node is struck when it is `ripe_s` old."""

    level: Level
    seed: int
    nodes: int
    workers: int
    rate: float | None = None
    partitions: int = PARTITIONS
    environ: Mapping[str, str] = field(default_factory=dict)
    app: str = APP
    ripe_s: float = RIPE_S


class Stage:
    """A context manager: entering makes topics, starts watchers and nodes, then the load, and waits for output."""

    def __init__(
        self,
        brokers: Brokers,
        settings: StageSettings,
        environ: Mapping[str, str],
        directory: Path,
    ) -> None:
        self.brokers, self.settings = brokers, settings
        self._environ, self.directory = environ, directory
        self.chance = random.Random(settings.seed)
        self._stack = ExitStack()
        self._load: SteadyLoad | None = None
        self.began = 0.0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            settings = self.settings
            kafka = KafkaSettings(brokers=split_brokers(self.brokers.bootstrap))
            self.scene: Scene = new_scene(kafka, "chaos", settings.partitions)
            confluent = kafka.confluent_arguments()
            self.ledger = stack.enter_context(LedgerWatch(confluent, self.scene.pipeline))
            self.output = stack.enter_context(OutputWatch(confluent, self.scene.output, settings.partitions))
            self.offsets = OffsetsWatch(confluent, self.scene.pipeline, self.scene.input, settings.partitions)
            names = {
                "MILLSTREAM_CHAOS_NAME": self.scene.pipeline,
                "MILLSTREAM_CHAOS_INPUT": self.scene.input,
                "MILLSTREAM_CHAOS_OUTPUT": self.scene.output,
                "MILLSTREAM_CHAOS_SHARDS": str(settings.partitions),
            }
            environ = {**self._environ, **names, **settings.environ}
            self.troupe = Troupe(
                self.scene, self.ledger, environ, self.directory, settings.workers, settings.app, settings.ripe_s
            )
            stack.callback(self.troupe.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def open(self) -> None:
        """With the nodes started: load, and output of every partition. Raises UnavailableError where none comes."""
        self.troupe.await_settled(_FLOWS_S)
        rate = self.settings.rate or self.settings.level.rate
        stop_file = self.directory / "stop-load"
        self._load = SteadyLoad(self.scene.kafka, self.scene.input, rate, self.settings.seed, stop_file)
        self._stack.enter_context(self._load)
        self._load.await_start()
        began = time.monotonic()
        found = self.output.await_first(range(self.settings.partitions), began - 30.0, 0.0, _FLOWS_S)
        if len(found) < self.settings.partitions:
            raise UnavailableError(f"only partitions {sorted(found)} had output within {_FLOWS_S:g} s")
        self._stack.enter_context(self.offsets)
        if self.settings.level.has_hogs:
            self._stack.enter_context(CpuHogs())
        self.began = time.monotonic()

    def check(self) -> None:
        """Raises UnavailableError where load or ledger cannot go on."""
        if self._load is not None:
            self._load.check()
        self.ledger.check()

    def stop_load(self) -> str | None:
        """End the load; answers what was wrong with it."""
        assert self._load is not None
        report = self._load.stop()
        return report.first_error if report.failed else None

    @property
    def stage_timeout_s(self) -> float:
        """How long a call to user code may take in the nodes' pipeline."""
        return float(self.settings.environ.get("MILLSTREAM_CHAOS_STAGE_TIMEOUT_S", "60"))

    def random_phase(self) -> float:
        """Wait for a moment that no beat and no commit knows of; answers for how long, in milliseconds."""
        wait_s = self.chance.uniform(0.0, 4 * _BEAT_S)
        time.sleep(wait_s)
        return wait_s * 1000

    def new_round(self, number: int, strike: Strike, struck: Sequence[Actor], shards: set[int]) -> Round:
        """What is known right after a fault."""
        return Round(number, strike.fault, [actor.name for actor in struck], sorted(shards))

    def mark(self) -> int:
        """Where the ledger is now: what comes later has been said later."""
        return len(self.ledger.said)

    def time_verdict(self, into: Round, strike: Strike, node: str | None, since: int) -> None:
        """Wait for the verdict on a node and note how long it took; a complaint where none comes."""
        found = self.ledger.await_record(DeadRecord, lambda record: record.node == node, since, _VERDICT_S)
        if found is None:
            into.complaints.append(f"no verdict on {node} within {_VERDICT_S:g} s")
            return
        at, record = found
        into.detection_ms = record.at_ms - strike.ordered.wall_s * 1000
        into.told_ms = (at - strike.ordered.monotonic_s) * 1000
        into.notes["silence_ms"] = record.silence_ms
        into.notes["threshold_ms"] = record.threshold_ms
        into.notes["by"] = record.by

    def time_output(self, into: Round, strike: Strike, wait_s: float = _OUTPUT_S, *, curved: bool = True) -> None:
        """Wait for output of each struck partition and note how long it took; a complaint where none comes."""
        start, partitions = strike.ordered.monotonic_s, into.partitions
        found = self.output.await_first(partitions, start, strike.done.wall_s * 1e6, wait_s)
        into.takeover_ms = {partition: (at - start) * 1000 for partition, at in found.items()}
        if missing := sorted(set(partitions) - found.keys()):
            into.complaints.append(f"no output of partitions {missing} within {wait_s:g} s")
        if curved:
            time.sleep(max(0.0, start + CURVE_AFTER_S - time.monotonic()))
            chunks = self.output.since(start - CURVE_BEFORE_S)
            into.curve = curve(chunks, partitions, start - CURVE_BEFORE_S, start + CURVE_AFTER_S, CURVE_STEP_S)
