"""The demo: a broker, a pipeline in its own processes, a generator and a judge, and the judge's verdict.

    generator ──> input topic ──> node (agent, workers) ──> output topic ──> judge

The parts are separate processes that meet only in Kafka, as they would in earnest. With `kill`, a worker and later
the whole node are killed with SIGKILL while events flow, and the verdict must not change.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

from millstream.connectors.kafka.development_broker import DevelopmentBroker
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.companion import Companion
from millstream.loadgen.node_process import NodeProcess
from millstream.loadgen.produce import SendProgress, SendReport, send_all
from millstream.loadgen.scene import Scene, new_scene, node_of, warm_up
from millstream.loadgen.schedule import Arrivals, FullSpeed, Schedule, arrivals_at
from millstream.loadgen.verdict import Verdict
from millstream.loadgen.verify import JudgeProgress, VerifySettings, judge
from millstream.loadgen.workload import Workload, WorkloadSettings
from millstream.processor.errors import SettingsError, UnavailableError

PATIENCE_S = 60.0
_JUDGE_START_S = 60.0
_TICK_S = 0.1
_KILL_WORKER_AT = 0.25
_KILL_NODE_AT = 0.55
# A node whose demo was itself killed ends by its own clock.
_NODE_SECONDS_MAX = 3600


class Trouble(Enum):
    """Whether the demo kills what it shows."""

    NONE = "none"
    KILL = "kill"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """How much to show. Raises SettingsError with every mistake at once."""

    rate: float = 20_000.0
    seconds: float = 10.0
    workers: int = 2
    partitions: int = 6
    seed: int = 7
    trouble: Trouble = Trouble.NONE

    def __post_init__(self) -> None:
        mistakes = []
        if not 1 <= self.rate <= 10_000_000:
            mistakes.append(f"rate is {self.rate:g} events a second; give 1 to 10 million")
        if not 0 < self.seconds <= _NODE_SECONDS_MAX / 2:
            mistakes.append(f"seconds is {self.seconds:g}; give more than 0, at most {_NODE_SECONDS_MAX // 2}")
        if not 1 <= self.workers <= 1024:
            mistakes.append(f"workers is {self.workers}; give 1 to 1024")
        if not 1 <= self.partitions <= 1000:
            mistakes.append(f"partitions is {self.partitions}; give 1 to 1000")
        if mistakes:
            raise SettingsError("the demo cannot start", mistakes)

    @property
    def events(self) -> int:
        """How many events the measured part sends."""
        return max(1, int(self.rate * self.seconds))

    @property
    def warm_up_events(self) -> int:
        """About a second's worth, so that every kernel and connection has been used before anything is measured."""
        return max(1000, math.ceil(self.rate))


@dataclass(frozen=True, slots=True)
class DemoProgress:
    """What is going on: what is being waited for, and how far generator and judge are."""

    waiting_for: str
    sent: int = 0
    seen: int = 0


@dataclass(frozen=True, slots=True)
class DemoReport:
    """How the demo ended."""

    verdict: Verdict
    sending: SendReport
    warm_up_events: int
    seconds_until_processing: float
    killed: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether everything was sent, and the judge found each event's effect exactly once."""
        return self.verdict.is_clean and not self.sending.failed

    def as_json(self) -> dict[str, object]:
        """One flat object, apart from lists."""
        fields = {**self.verdict.as_json(), "clean": self.is_clean, "warm_up_events": self.warm_up_events}
        fields["seconds_until_processing"] = round(self.seconds_until_processing, 2)
        fields["killed"] = list(self.killed)
        if self.sending.lateness is not None:
            fields["sender_lateness_ms_p99"] = round(self.sending.lateness.p99, 3)
        return fields


Tell = Callable[[DemoProgress], None]


def run_demo(settings: DemoSettings, kafka: KafkaSettings | None, environ: Mapping[str, str], tell: Tell) -> DemoReport:
    """Show it all, and leave no process behind, however it ends.

    `kafka` None starts a development broker; on an existing cluster the demo's topics get names of their own and stay.
    `environ` is what the node is started with. Raises UnavailableError, with the end of the node's log, when the node
    does not process within a bound.
    """
    with ExitStack() as stack:
        if kafka is None:
            tell(DemoProgress("Kafka to start (the first time, it is downloaded)"))
            broker = stack.enter_context(DevelopmentBroker())
            kafka = KafkaSettings(brokers=(broker.bootstrap,))
        scene = new_scene(kafka, "demo", settings.partitions)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-demo-")))
        node = stack.enter_context(node_of(scene, settings.workers, _NODE_SECONDS_MAX, environ, directory))

        def tell_warm_up(seen: int) -> None:
            tell(DemoProgress("the first events to pass (a fresh installation compiles its kernels now)", 0, seen))

        pace = FullSpeed(settings.warm_up_events)
        seconds_until_processing = warm_up(scene, node, pace, settings.seed, tell_warm_up)
        verdict, sending, killed = _measure(settings, scene, node, tell)
        seen = verdict.balance.outputs - settings.warm_up_events
        tell(DemoProgress("the node to drain and stop", sending.events, seen))
    return DemoReport(verdict, sending, settings.warm_up_events, seconds_until_processing, killed)


def _measure(
    settings: DemoSettings, scene: Scene, node: NodeProcess, tell: Tell
) -> tuple[Verdict, SendReport, tuple[str, ...]]:
    with ExitStack() as stack:
        court = stack.enter_context(Companion("judge", partial(_judge, settings, scene)))
        deadline = time.monotonic() + _JUDGE_START_S
        while court.progress is None:
            tell(DemoProgress("the judge to take its seat"))
            court.listen(_TICK_S)
            if time.monotonic() > deadline:
                raise UnavailableError(f"the judge did not begin to read in {_JUDGE_START_S:.0f} s")
        generator = stack.enter_context(Companion("generator", partial(_send, settings, scene)))
        killer = _Killer(settings, node)
        sending, verdict = None, None
        deadline = time.monotonic() + settings.seconds + 4 * PATIENCE_S
        while sending is None or verdict is None:
            sending = sending or generator.listen(_TICK_S / 2)
            verdict = verdict or court.listen(_TICK_S / 2)
            sent = sending.events if sending else generator.progress.sent if generator.progress else 0
            killer.act(sent)
            node.check()
            phase = "events to flow" if sending is None else f"the judge: {court.progress.phase}"
            tell(DemoProgress(phase, sent, max(0, court.progress.outputs - settings.warm_up_events)))
            if time.monotonic() > deadline:
                raise UnavailableError(f"no verdict in time; the node's log ends with:\n{node.log_end()}")
    return verdict, sending, tuple(killer.killed)


class _Killer:
    """Kills a worker, later the whole node, as soon as a part of the events was sent; then starts the node again."""

    def __init__(self, settings: DemoSettings, node: NodeProcess) -> None:
        self._node = node
        self._plan: list[tuple[float, Callable[[], None]]] = []
        if settings.trouble is Trouble.KILL:
            self._plan = [
                (_KILL_WORKER_AT * settings.events, self._kill_worker),
                (_KILL_NODE_AT * settings.events, self._kill_node),
            ]
        self.killed: list[str] = []

    def act(self, sent: int) -> None:
        """Do what is due after so many events. Raises UnavailableError where there was no worker to kill."""
        if self._plan and sent >= self._plan[0][0]:
            _, strike = self._plan.pop(0)
            strike()

    def _kill_worker(self) -> None:
        if self._node.kill_worker() is None:
            raise UnavailableError("no worker process was found to kill; is this system Linux?")
        self.killed.append("worker")

    def _kill_node(self) -> None:
        self._node.kill()
        self._node.start()
        self.killed.append("node")


def _judge(settings: DemoSettings, scene: Scene, tell: Callable[[JudgeProgress], None]) -> Verdict:
    case = VerifySettings(
        inputs=(scene.input,),
        outputs=(scene.output,),
        group=scene.pipeline,
        follow_events=settings.warm_up_events + settings.events,
        warm_up_events=settings.warm_up_events,
        patience_s=PATIENCE_S,
    )
    return judge(scene.kafka.confluent_arguments(), case, on_progress=tell)


def _send(settings: DemoSettings, scene: Scene, tell: Callable[[SendProgress], None]) -> SendReport:
    workload = Workload(WorkloadSettings(seed=settings.seed, first_id=settings.warm_up_events))
    schedule = Schedule(arrivals_at(Arrivals.POISSON, settings.rate, settings.seed), settings.events)
    return send_all(scene.kafka, scene.input, workload, schedule, on_progress=tell)
