"""One run of the load test: a node, a generator and a judge at one rate, and what each process used meanwhile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.companion import Companion
from millstream.loadgen.node_process import NodeProcess
from millstream.loadgen.process_watch import ProcessWatch, Use
from millstream.loadgen.produce import SendProgress, SendReport, send_all
from millstream.loadgen.scene import Scene, new_scene, node_of, warm_up
from millstream.loadgen.schedule import Arrivals, Schedule, arrivals_at
from millstream.loadgen.seeing_out import Standing, see_out
from millstream.loadgen.verdict import Verdict
from millstream.loadgen.verify import InputReading, JudgeProgress, VerifySettings, judge
from millstream.loadgen.workload import Workload, WorkloadSettings
from millstream.processor.errors import UnavailableError

PATIENCE_S = 60.0
# A broker compiles itself by what it does often; at a low rate that would take minutes, and fall into the measuring.
WARM_UP_RATE_MIN = 50_000.0
_TICK_S = 0.25
_NODE_SPARE_S = 900
# Generator and judge tell how far they are every fifth of a second; what grows by less cannot be told from that.
_FLAT_S = 0.3
# Long runs would fill a small disk; the judge reads along, and this keeps a minute of events for whoever is behind.
_RETENTION = {"retention.bytes": str(192 << 20), "segment.bytes": str(48 << 20), "file.delete.delay.ms": "1000"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCase:
    """Events at a rate for so long, after a warm-up at the same rate, or at WARM_UP_RATE_MIN where that is higher."""

    rate: float
    seconds: float
    warm_up_s: float
    workers: int
    partitions: int
    seed: int
    input_reading: InputReading = InputReading.AFTERWARDS

    @property
    def events(self) -> int:
        """How many are measured."""
        return max(1, int(self.rate * self.seconds))

    @property
    def warm_up_events(self) -> int:
        """How many go before."""
        return max(1, int(self.warm_up_rate * self.warm_up_s))

    @property
    def warm_up_rate(self) -> float:
        """How many of them a second."""
        return max(self.rate, WARM_UP_RATE_MIN)


@dataclass(slots=True)
class UnderWay:
    """How many events were sent and not yet seen by the judge, over the time of sending."""

    samples: list[int] = field(default_factory=list)

    def note(self, events: int) -> None:
        """One sample."""
        self.samples.append(max(0, events))

    def middle_and_end(self) -> tuple[float, float]:
        """The medians of the second and of the last third; zeros without samples."""
        third = len(self.samples) // 3
        if not third:
            return 0.0, 0.0
        return statistics.median(self.samples[third : 2 * third]), statistics.median(self.samples[-third:])


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of a run. Of `events_under_way` see `UnderWay.middle_and_end`."""

    case: LoadCase
    verdict: Verdict
    sending: SendReport
    uses: Mapping[str, Use]
    events_under_way: tuple[float, float]

    @property
    def is_clean(self) -> bool:
        """Whether everything was sent, and had its effect exactly once."""
        return self.verdict.is_clean and not self.sending.failed

    @property
    def is_flat(self) -> bool:
        """Whether the lag did not grow while events came in."""
        middle, end = self.events_under_way
        return end - middle <= _FLAT_S * self.case.rate


def run_case(
    case: LoadCase,
    kafka: KafkaSettings,
    broker_pid: int | None,
    environ: Mapping[str, str],
    directory: Path,
    tell: Callable[[str], None],
) -> CaseResult:
    """Run it, and leave no process behind. Raises UnavailableError where something of it fails or does not get on."""
    is_long = case.input_reading is InputReading.ALONGSIDE
    with ExitStack() as stack:
        scene = new_scene(kafka, "load-test", case.partitions, _RETENTION if is_long else None)
        seconds_max = int(case.seconds + case.warm_up_s) + _NODE_SPARE_S
        node = stack.enter_context(node_of(scene, case.workers, seconds_max, environ, directory))
        pace = Schedule(arrivals_at(Arrivals.POISSON, case.warm_up_rate, case.seed), case.warm_up_events)
        tell("warming up")
        warm_up(scene, node, pace, case.seed, lambda seen: tell(f"warming up: {seen:,} events processed"))
        court = stack.enter_context(Companion("judge", partial(_judge, case, scene)))
        _await_seat(court, node)
        generator = stack.enter_context(Companion("generator", partial(_send, case, scene)))
        processes: dict[str, Sequence[int]] = {
            "worker": node.children(),
            "agent": [pid for pid in (node.pid,) if pid is not None],
            "generator": [generator.pid],
            "judge": [court.pid],
        }
        if broker_pid is not None:
            processes = {"broker": [broker_pid], **processes}
        watch, under_way = ProcessWatch(processes), UnderWay()
        sending, verdict = _follow(case, node, court, generator, watch, under_way, tell)
    return CaseResult(case, verdict, sending, watch.uses(), under_way.middle_and_end())


def _await_seat(court: Companion[JudgeProgress, Verdict], node: NodeProcess) -> None:
    """Until the judge has read what the warm-up left: what it measures then is not behind that."""
    deadline = time.monotonic() + PATIENCE_S
    before = -1
    while court.progress is None or court.progress.outputs > before:
        before = court.progress.outputs if court.progress is not None else -1
        court.listen(2 * _TICK_S)
        time.sleep(2 * _TICK_S)
        node.check()
        if time.monotonic() > deadline:
            raise UnavailableError(f"the judge did not begin to read in {PATIENCE_S:.0f} s")


def _follow(
    case: LoadCase,
    node: NodeProcess,
    court: Companion[JudgeProgress, Verdict],
    generator: Companion[SendProgress, SendReport],
    watch: ProcessWatch,
    under_way: UnderWay,
    tell: Callable[[str], None],
) -> tuple[SendReport, Verdict]:
    def on_tick(standing: Standing) -> None:
        seen = standing.seen - case.warm_up_events
        if standing.is_sending and standing.sent:
            watch.look()
            under_way.note(standing.sent - seen)
        phase = "sending" if standing.is_sending else standing.phase
        tell(f"{phase}: {standing.sent:,} of {case.events:,} sent, {seen:,} seen")

    within_s = case.seconds + 4 * PATIENCE_S
    return see_out(generator, court, node, within_s=within_s, tick_s=_TICK_S, on_tick=on_tick)


def _judge(case: LoadCase, scene: Scene, tell: Callable[[JudgeProgress], None]) -> Verdict:
    settings = VerifySettings(
        inputs=(scene.input,),
        outputs=(scene.output,),
        group=scene.pipeline,
        follow_events=case.warm_up_events + case.events,
        warm_up_events=case.warm_up_events,
        input_reading=case.input_reading,
        patience_s=PATIENCE_S,
    )
    return judge(scene.kafka.confluent_arguments(), settings, on_progress=tell)


def _send(case: LoadCase, scene: Scene, tell: Callable[[SendProgress], None]) -> SendReport:
    workload = Workload(WorkloadSettings(seed=case.seed, first_id=case.warm_up_events))
    schedule = Schedule(arrivals_at(Arrivals.POISSON, case.rate, case.seed), case.events)
    return send_all(scene.kafka, scene.input, workload, schedule, on_progress=tell)
