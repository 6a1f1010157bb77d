"""`millstream demo --offload`: a stage that may run on a device, a load that changes, and a device that is killed.

    generator ──> input topic ──> node (agent, worker, device's process) ──> output topic ──> judge, check of scores

The device is simulated: a real process that takes as long as a law says. The network's cost on the CPU is measured
first; the law and the load are set by it, so that what the planner ought to do is clear on a machine with little else
to do. What it does is its own choice, and is read from the node's log and `/status`.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from millstream.connectors.kafka.development_broker import DevelopmentBroker
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.gpu_offload.simulated_faults import Fault, FaultKind, write_fault
from millstream.loadgen.companion import Companion
from millstream.loadgen.demo_offload_acts import Director
from millstream.loadgen.demo_offload_check import ScoreCheck, check_scores
from millstream.loadgen.demo_offload_report import Device, Fallback, OffloadDemoReport, fallback_of
from millstream.loadgen.demo_offload_watch import LogLine, OffloadWatch, Seen
from millstream.loadgen.node_process import NodeProcess
from millstream.loadgen.process_end import ProcessEnd
from millstream.loadgen.produce import SendProgress, SendReport, send_all
from millstream.loadgen.scene import Scene, new_scene, warm_up
from millstream.loadgen.schedule import FullSpeed
from millstream.loadgen.steered import SteeredPace
from millstream.loadgen.verdict import Verdict
from millstream.loadgen.verify import JudgeProgress, VerifySettings, judge
from millstream.loadgen.workload import Workload, WorkloadSettings
from millstream.processor.errors import SettingsError, UnavailableError

APP: Final = "millstream.loadgen.demo_offload_app:pipeline"
_PARTITIONS: Final = 4
_WARM_UP_EVENTS: Final = 1000
# A batch is half a MiB at most. With small events that is thousands, for which the network would take a second.
_EVENT_BYTES: Final = 500
_TICK_S: Final = 0.1
_PATIENCE_S: Final = 60.0
_MEASURE_S_MAX: Final = 60.0
_NODE_SECONDS_MAX: Final = 1800
_SHOW_S_MAX: Final = 60.0
# Parts of what a core could do of the network alone: the device's price lies between them.
_QUIET: Final = 0.001
_BUSY: Final = 0.2
# The whole demo has a core or two, which a linear algebra library with threads of its own would take from the others.
_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadDemoSettings:
    """`show_s`: for how long each act goes on after it has shown what it is for. Raises SettingsError."""

    show_s: float = 3.0
    seed: int = 7

    def __post_init__(self) -> None:
        mistakes = []
        if not 0 < self.show_s <= _SHOW_S_MAX:
            mistakes.append(f"seconds is {self.show_s:g}; give more than 0, at most {_SHOW_S_MAX:g}")
        if self.seed < 0:
            mistakes.append(f"seed is {self.seed}; give 0 or more")
        if mistakes:
            raise SettingsError("the demo cannot start", mistakes)


@dataclass(frozen=True, slots=True)
class OffloadProgress:
    """What is going on. `news` are all lines of the node's log about stage and device."""

    what: str
    rate: float = 0.0
    sent: int = 0
    seen: Seen | None = None
    news: tuple[LogLine, ...] = ()


Tell = Callable[[OffloadProgress], None]


def run_offload_demo(
    settings: OffloadDemoSettings,
    kafka: KafkaSettings | None,
    environ: Mapping[str, str],
    tell: Tell,
    announce: Callable[[str], None],
) -> OffloadDemoReport:
    """Show it all, and leave no process behind, however it ends; `announce` hears what the show was set to.

    `kafka` None starts a development broker. Raises UnavailableError, with the end of the node's log, where the node
    does not process within a bound.
    """
    tell(OffloadProgress("the network's cost on the CPU to be measured"))
    device = Device.as_quick_as(_cost_us(environ))
    for line in device.sentences():
        announce(line)
    with ExitStack() as stack:
        if kafka is None:
            tell(OffloadProgress("Kafka to start (the first time, it is downloaded)"))
            broker = stack.enter_context(DevelopmentBroker())
            kafka = KafkaSettings(brokers=(broker.bootstrap,))
        scene = new_scene(kafka, "demo", _PARTITIONS)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-demo-")))
        faults, log_file = directory / "faults.json", directory / "node.log"
        node = stack.enter_context(_node(scene, device, faults, environ, log_file))

        def tell_warm_up(seen: int) -> None:
            tell(OffloadProgress("the first events to pass (a fresh installation compiles its kernels now)", 0.0, seen))

        warm_up(scene, node, FullSpeed(_WARM_UP_EVENTS), settings.seed, tell_warm_up)
        show = _Show(settings, device, node, OffloadWatch(log_file), faults, tell)
        sending = show.play(scene)
        verdict = _judged(scene, show)
        check = _checked(scene, show)
        show.look()
        fallback = fallback_of(show.watch.seen, show.killed_s)
        show.tell("the node to drain and stop")
    return _report(device, show, sending, verdict, check, fallback)


class _Show:
    """The acts, with the load as each wants it."""

    def __init__(
        self,
        settings: OffloadDemoSettings,
        device: Device,
        node: NodeProcess,
        watch: OffloadWatch,
        faults: Path,
        tell: Tell,
    ) -> None:
        self._settings, self._device, self._node, self._faults, self._tell = settings, device, node, faults, tell
        self._sent = 0
        self._rate: Any = multiprocessing.get_context("spawn").Value("d", _QUIET * device.cpu_events_per_s)
        self._end: ProcessEnd | None = None
        self.watch = watch
        self.director = Director(time.monotonic(), settings.show_s)

    @property
    def killed_s(self) -> float | None:
        """When the device's process was dead, in seconds since the epoch."""
        return None if self._end is None else self._end.at_s

    def play(self, scene: Scene) -> SendReport:
        """All acts, and the end of the load."""
        send = partial(_send, scene, self._settings.seed, self._rate)
        with Companion("generator", send) as generator:
            deadline = time.monotonic() + _PATIENCE_S
            while generator.progress is None:
                self._step(generator, "the generator to begin")
                if time.monotonic() > deadline:
                    raise UnavailableError(f"the generator sent nothing in {_PATIENCE_S:.0f} s")
            self.director = Director(time.monotonic(), self._settings.show_s)
            while (act := self.director.act) is not None:
                self._step(generator, act.title)
                if self.director.go_on(time.monotonic(), self.watch.seen):
                    self._change()
            deadline = time.monotonic() + _PATIENCE_S
            while (sending := self._step(generator, "the load to end")) is None:
                if time.monotonic() > deadline:
                    raise UnavailableError(f"the generator did not end in {_PATIENCE_S:.0f} s")
        return sending

    def look(self) -> None:
        """Take in what the node says. Raises UnavailableError where it has ended."""
        self._node.check()
        self.watch.look()

    def tell(self, what: str) -> None:
        """Tell how everything stands."""
        self._tell(OffloadProgress(what, self._rate.value, self._sent, self.watch.seen, tuple(self.watch.news)))

    def _step(self, generator: Companion[SendProgress, SendReport], what: str) -> SendReport | None:
        report = generator.listen(_TICK_S)
        if generator.progress is not None:
            self._sent = generator.progress.sent
        self.look()
        self.tell(what)
        return report

    def _change(self) -> None:
        act = self.director.act
        part = 0.0 if act is None else _BUSY if act.is_busy else _QUIET
        self._rate.value = part * self._device.cpu_events_per_s
        if act is not None and act.kills:
            pid = self.watch.seen.device_pid
            if pid is None:
                raise UnavailableError("no device's process was found to kill, though the stage runs on the device")
            self._end = ProcessEnd(pid, act.within_s)
            write_fault(self._faults, Fault(kind=FaultKind.KILLED, batches=1))


def _cost_us(environ: Mapping[str, str]) -> float:
    command = [sys.executable, "-P", "-m", "millstream.loadgen.demo_offload_app"]
    try:
        done = subprocess.run(
            command,
            env={**environ, **_ONE_THREAD},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_MEASURE_S_MAX,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"the network's cost was not measured in {_MEASURE_S_MAX:.0f} s") from error
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"the network's cost could not be measured: {error.stderr}") from error
    return float(done.stdout)


def _node(scene: Scene, device: Device, faults: Path, environ: Mapping[str, str], log_file: Path) -> NodeProcess:
    arguments = [APP, "--workers=1", f"--max-seconds={_NODE_SECONDS_MAX}", "--node-name=node", "--log-level=info"]
    arguments += ["--http=127.0.0.1:0", f"--devices={device.text},faults={faults}", *device.price_arguments()]
    names = {
        "MILLSTREAM_BROKERS": ",".join(scene.kafka.brokers),
        "MILLSTREAM_DEMO_NAME": scene.pipeline,
        "MILLSTREAM_DEMO_INPUT": scene.input,
        "MILLSTREAM_DEMO_OUTPUT": scene.output,
    }
    return NodeProcess(arguments, {**environ, **_ONE_THREAD, **names}, log_file)


def _send(scene: Scene, seed: int, rate: Any, tell: Callable[[SendProgress], None]) -> SendReport:
    tell(SendProgress(0))
    workload = Workload(WorkloadSettings(seed=seed, first_id=_WARM_UP_EVENTS, payload_bytes=_EVENT_BYTES))
    pace = SteeredPace(partial(_rate_of, rate, os.getppid()))
    return send_all(scene.kafka, scene.input, workload, pace, on_progress=tell)


def _rate_of(rate: Any, parent: int) -> float:
    # A load without an end must not outlive the demo, should that be killed.
    return float(rate.value) if os.getppid() == parent else 0.0


def _judged(scene: Scene, show: _Show) -> Verdict:
    def tell(progress: JudgeProgress) -> None:
        show.look()
        show.tell(f"the judge: {progress.phase}, {progress.outputs:,} outputs")

    case = VerifySettings(
        inputs=(scene.input,), outputs=(scene.output,), group=scene.pipeline, patience_s=_PATIENCE_S, settle_s=1.0
    )
    return judge(scene.kafka.confluent_arguments(), case, on_progress=tell)


def _checked(scene: Scene, show: _Show) -> ScoreCheck:
    def tell(checked: int) -> None:
        show.tell(f"the check of all scores against the CPU's: {checked:,}")

    return check_scores(scene.kafka.confluent_arguments(), scene.output, _PARTITIONS, tell)


def _report(
    device: Device, show: _Show, sending: SendReport, verdict: Verdict, check: ScoreCheck, fallback: Fallback
) -> OffloadDemoReport:
    return OffloadDemoReport(
        device=device,
        seen=show.watch.seen,
        sending=sending,
        verdict=verdict,
        check=check,
        fallback=fallback,
        not_seen=show.director.not_seen,
    )
