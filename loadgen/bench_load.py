"""What a worker is like under an open load: its memory, and the latency of its output."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.bench_orders import Passage
from millstream.loadgen.bench_place import Place
from millstream.loadgen.bench_process import MeasuredProcess, Side
from millstream.loadgen.bench_stage import Sample, Stage
from millstream.loadgen.bench_workloads import BASELINE_WORK, Work
from millstream.loadgen.companion import Companion
from millstream.loadgen.produce import SendProgress, SendReport, send_all
from millstream.loadgen.reading import KeyNumbers, TopicReader
from millstream.loadgen.schedule import Arrivals, Schedule, arrivals_at
from millstream.loadgen.verdict import Verdict
from millstream.loadgen.verify import JudgeProgress, VerifySettings, judge
from millstream.loadgen.workload import Workload, WorkloadSettings
from millstream.processor.errors import UnavailableError

MEMORY_RATE = 200_000.0
LATENCY_RATE = 20_000.0
_WORK = Work.TYPED_JSON_FUNCTION
# At a high rate the loop gathers for long; where latency counts it commits as often as its client lets it.
_LOOP_LATENCY_INTERVAL_MS = 20
_TICK_S = 0.25
# A process that has just worked off its warm-up changes its pace to one small transaction after the other.
_WARM_UP_S = 4.0
_PATIENCE_S = 30.0
# Ten minutes of events would fill a small disk; these bounds keep 20 s of them for whoever is behind.
_RETENTION = {"retention.bytes": str(128 << 20), "segment.bytes": str(32 << 20)}
# Memory rises while buffers and caches fill; what it does after that is the slope.
_SETTLED_FROM = 0.25
_SLOPE_S_MIN = 120.0
_MB = 1e6
_S_PER_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """Events on an open schedule."""

    rate: float
    events: int
    arrivals: Arrivals
    seed: int
    first_id: int = 0


def send_load(kafka: KafkaSettings, topic: str, load: Load, tell: Callable[[SendProgress], None]) -> SendReport:
    """Send a load; runs in a process of its own."""
    workload = Workload(WorkloadSettings(seed=load.seed, first_id=load.first_id))
    schedule = Schedule(arrivals_at(load.arrivals, load.rate, load.seed), load.events)
    return send_all(kafka, topic, workload, schedule, on_progress=tell)


def resident_mb(pid: int) -> float:
    """What a process holds in memory now, in millions of bytes. Raises UnavailableError where the system hides it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError as error:
        raise UnavailableError(f"the memory of process {pid} cannot be read ({error}); this needs Linux") from error
    return pages * resource.getpagesize() / _MB


def slope_mb_per_minute(samples: Sequence[tuple[float, float]]) -> float | None:
    """How memory grows after it has settled, from (seconds, MB); None where that is too short to tell."""
    settled = samples[int(len(samples) * _SETTLED_FROM) :]
    if len(settled) < 2 or settled[-1][0] - settled[0][0] < _SLOPE_S_MIN:
        return None
    seconds, megabytes = np.array(settled).T
    return float(np.polyfit(seconds, megabytes, 1)[0]) * _S_PER_MINUTE


@dataclass(frozen=True, slots=True)
class Memory:
    """The most that a process holds while 200K events a second come in. `baseline_seconds` bounds the loop's run."""

    stage: Stage
    seconds: float
    baseline_seconds: float
    rows: tuple[str, ...] = ("memory_at_200k",)
    runs_max: int | None = 1

    def rehearse(self) -> None:
        """Nothing: each process warms up by itself."""

    def measure(self, side: Side) -> Sample:
        """One run."""
        place = self.stage.place
        seconds = self.seconds if side is Side.OURS else self.baseline_seconds
        load = Load(MEMORY_RATE, int(MEMORY_RATE * seconds), Arrivals.CONSTANT, place.seed)
        with place.cleared():
            source = place.topic("memory-in", _RETENTION)
            passage = place.passage("memory", source, None, _RETENTION)
            with self.stage.process(side, _WORK, passage) as process:
                process.began()
                sending, samples = self._watch(process, source, load)
                process.stop()
                finished = process.finished(self.stage.finish_s_max)
        conditions: dict[str, object] = {
            "seconds": seconds,
            "work": _WORK.value if side is Side.OURS else BASELINE_WORK[_WORK].value,
            "events_sent": sending.delivered,
            "events_sent_per_s": round(sending.events_per_s),
            "events_processed": finished.events,
            "cpu_us_per_event": round(finished.cpu_s / max(1, finished.events) * 1e6, 3),
            "mb_at_end": round(samples[-1][1], 1),
            "mb": "millions of bytes resident, the most of all readings",
        }
        if (slope := slope_mb_per_minute(samples)) is not None:
            conditions["slope_mb_per_minute"] = round(slope, 3)
        return Sample({"memory_at_200k": max(mb for _, mb in samples)}, conditions)

    def _watch(self, process: MeasuredProcess, source: str, load: Load) -> tuple[SendReport, list[tuple[float, float]]]:
        work = partial(send_load, self.stage.place.kafka, source, load)
        samples: list[tuple[float, float]] = []
        with Companion[SendProgress, SendReport]("generator", work) as generator:
            while True:
                sending = generator.listen(_TICK_S)
                process.check()
                samples.append((time.monotonic(), resident_mb(process.pid)))
                if sending is not None:
                    return sending, samples


@dataclass(frozen=True, slots=True)
class Latency:
    """From each event's intended send time until a reader of committed output has it, at 20K events a second."""

    stage: Stage
    seconds: float
    rows: tuple[str, ...] = ("latency_20k_p50", "latency_20k_p99")
    runs_max: int | None = None

    def rehearse(self) -> None:
        """A shorter run that is not counted, so that the broker has seen many small transactions."""
        replace(self, seconds=self.seconds / 2).measure(Side.OURS)

    def measure(self, side: Side) -> Sample:
        """One run. Raises UnavailableError where the judge finds an event lost, doubled or out of order."""
        place, warm_up_events = self.stage.place, int(LATENCY_RATE * _WARM_UP_S)
        events = int(LATENCY_RATE * self.seconds)
        load = Load(LATENCY_RATE, events, Arrivals.POISSON, place.seed, first_id=warm_up_events)
        with place.cleared():
            source = place.topic("latency-in")
            passage = place.passage("latency", source, None)
            if side is Side.BASELINE:
                passage = passage.committing_every(_LOOP_LATENCY_INTERVAL_MS)
            with self.stage.process(side, _WORK, passage) as process:
                process.began()
                # Keys of their own: the load numbers the events of its keys from zero.
                place.fill(source, warm_up_events, rate=LATENCY_RATE, key_prefix="warm")
                _await_output(place, passage.target, warm_up_events, process)
                sending, verdict = self._watch(process, passage, load, warm_up_events)
                process.stop()
                process.finished(self.stage.finish_s_max)
        return self._sample(side, sending, verdict)

    def _watch(
        self, process: MeasuredProcess, passage: Passage, load: Load, warm_up_events: int
    ) -> tuple[SendReport, Verdict]:
        arguments = self.stage.place.confluent_arguments
        case = VerifySettings(
            inputs=(passage.source,),
            outputs=(passage.target,),
            follow_events=warm_up_events + load.events,
            warm_up_events=warm_up_events,
            patience_s=_PATIENCE_S,
        )
        deadline = time.monotonic() + self.seconds + 4 * _PATIENCE_S
        with Companion[JudgeProgress, Verdict]("judge", partial(_judge, arguments, case)) as court:
            while court.progress is None:
                court.listen(_TICK_S)
                _check_in_time(process, deadline)
            work = partial(send_load, self.stage.place.kafka, passage.source, load)
            with Companion[SendProgress, SendReport]("generator", work) as generator:
                while (sending := generator.listen(_TICK_S)) is None or (verdict := court.listen(_TICK_S)) is None:
                    _check_in_time(process, deadline)
        return sending, verdict

    def _sample(self, side: Side, sending: SendReport, verdict: Verdict) -> Sample:
        if not verdict.is_clean or verdict.latency is None:
            raise UnavailableError(f"{side.value} at 20K events/s: {'; '.join(verdict.sentences())}")
        conditions: dict[str, object] = {
            "seconds": self.seconds,
            "work": _WORK.value if side is Side.OURS else BASELINE_WORK[_WORK].value,
            "arrivals": Arrivals.POISSON.value,
            "timed": "intended send to arrival at a read_committed reader",
            **verdict.latency.as_fields("latency_ms"),
        }
        if side is Side.BASELINE:
            conditions["commit_interval_ms"] = _LOOP_LATENCY_INTERVAL_MS
        if sending.lateness is not None:
            conditions["sender_lateness_ms_p99"] = round(sending.lateness.p99, 3)
        return Sample(dict(zip(self.rows, (verdict.latency.p50, verdict.latency.p99), strict=True)), conditions)


def _judge(
    confluent_arguments: dict[str, object], case: VerifySettings, tell: Callable[[JudgeProgress], None]
) -> Verdict:
    return judge(confluent_arguments, case, on_progress=tell)


def _await_output(place: Place, topic: str, events: int, process: MeasuredProcess) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    seen = 0
    with TopicReader(place.confluent_arguments, [topic], KeyNumbers()) as reader:
        while seen < events:
            seen += len(reader.read(_TICK_S))
            _check_in_time(process, deadline)


def _check_in_time(process: MeasuredProcess, deadline: float) -> None:
    process.check()
    if time.monotonic() > deadline:
        raise UnavailableError("the measured process, its load or its judge did not get anywhere in time")
