"""The demo: a broker, a pipeline in its own processes, a generator and a judge, and the judge's verdict.

    generator ──> input topic ──> nodes (agent, workers) ──> output topic ──> judge

The parts are separate processes that meet only in Kafka, as they would in earnest. With `kill`, a worker and later
the whole node are killed with SIGKILL while events flow, and the node is started again; with `kill-node`, one of
several nodes is killed and stays dead. The verdict must not change.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from millstream.connectors.kafka.development_broker import DevelopmentBroker
from millstream.connectors.kafka.onlooker import Sight
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.arrival_log import ArrivalLog
from millstream.loadgen.companion import Companion
from millstream.loadgen.demo_nodes import WINDOW_S, DemoNodes, NodeKiller, Takeover, await_shares, windows_fill_in_s
from millstream.loadgen.node_process import NodeProcess
from millstream.loadgen.onlooking import Onlooking
from millstream.loadgen.produce import SendProgress, SendReport, send_all
from millstream.loadgen.scene import Scene, new_scene, node_of, warm_up
from millstream.loadgen.schedule import Arrivals, FullSpeed, Schedule, arrivals_at
from millstream.loadgen.seeing_out import Standing, see_out
from millstream.loadgen.verdict import Verdict
from millstream.loadgen.verify import JudgeProgress, VerifySettings, judge
from millstream.loadgen.workload import Workload, WorkloadSettings
from millstream.processor.errors import SettingsError, UnavailableError

PATIENCE_S = 60.0
NODES_MAX = 16
_JUDGE_START_S = 60.0
_TICK_S = 0.1
_KILL_WORKER_AT = 0.25
_KILL_NODE_AT = 0.55
# A part of the load flows before one of several nodes is killed, and a part of it after that.
_FLOW_BEFORE = 0.2
_FLOW_AFTER_S, _FLOW_USUAL_S = 2.0, 6.0
# A node whose demo was itself killed ends by its own clock.
_NODE_SECONDS_MAX = 3600


class Trouble(Enum):
    """What the demo kills of what it shows: nothing; a worker and then the only node; one of several nodes."""

    NONE = "none"
    KILL = "kill"
    KILL_NODE = "kill-node"


@dataclass(frozen=True, slots=True)
class Usual:
    """What is shown of so many nodes where nothing else is asked for."""

    seconds: float
    workers: int
    partitions: int

    @staticmethod
    def of(nodes: int, trouble: Trouble) -> Usual:
        """A single node is shown quickly; one of several is killed only when the others know its beats."""
        seconds = WINDOW_S + _FLOW_USUAL_S if trouble is Trouble.KILL_NODE else 10.0
        return Usual(seconds, 1, max(6, 2 * nodes)) if nodes > 1 else Usual(10.0, 2, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """How much to show; `workers` are of each node. Raises SettingsError with every mistake at once."""

    rate: float = 20_000.0
    seconds: float = 10.0
    nodes: int = 1
    workers: int = 2
    partitions: int = 6
    seed: int = 7
    trouble: Trouble = Trouble.NONE

    def __post_init__(self) -> None:
        if mistakes := [*self._mistakes(), *self._mistakes_together()]:
            raise SettingsError("the demo cannot start", mistakes)

    def _mistakes(self) -> list[str]:
        mistakes = []
        if not 1 <= self.rate <= 10_000_000:
            mistakes.append(f"rate is {self.rate:g} events a second; give 1 to 10 million")
        if not 0 < self.seconds <= _NODE_SECONDS_MAX / 2:
            mistakes.append(f"seconds is {self.seconds:g}; give more than 0, at most {_NODE_SECONDS_MAX // 2}")
        if not 1 <= self.nodes <= NODES_MAX:
            mistakes.append(f"nodes is {self.nodes}; give 1 to {NODES_MAX}, which share this machine")
        if not 1 <= self.workers <= 1024:
            mistakes.append(f"workers is {self.workers}; give 1 to 1024")
        if not 1 <= self.partitions <= 1000:
            mistakes.append(f"partitions is {self.partitions}; give 1 to 1000")
        if self.seed < 0:
            mistakes.append(f"seed is {self.seed}; give 0 or more")
        return mistakes

    def _mistakes_together(self) -> list[str]:
        mistakes = []
        if self.nodes > 1 and self.partitions < self.nodes:
            mistakes.append(
                f"partitions is {self.partitions} and nodes is {self.nodes}: some would have nothing to do; "
                f"give --partitions {self.nodes} or more, or fewer nodes"
            )
        if self.trouble is Trouble.KILL_NODE and self.nodes == 1:
            mistakes.append(
                "--kill-node kills one of several nodes for good, and nodes is 1: nobody could take over; "
                "give --nodes 3, or --kill, which starts the only node again"
            )
        if self.trouble is Trouble.KILL and self.nodes > 1:
            mistakes.append(f"--kill is for a single node, and nodes is {self.nodes}; give --kill-node")
        shortest_s = WINDOW_S + _FLOW_AFTER_S
        if self.trouble is Trouble.KILL_NODE and self.seconds < shortest_s:
            mistakes.append(
                f"seconds is {self.seconds:g}: the node is killed when the others have heard its beats for "
                f"{WINDOW_S:g} s, and then the load has to go on; give --seconds {shortest_s:g} or more"
            )
        return mistakes

    @property
    def node_names(self) -> tuple[str, ...]:
        """What the nodes are called; the last one is the one to be killed."""
        return tuple(f"node-{number}" for number in range(1, self.nodes + 1))

    @property
    def shards(self) -> int | None:
        """One for each partition, so that every node has some; a single node makes its own choice."""
        return self.partitions if self.nodes > 1 else None

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
    """What is going on: what is being waited for, how far generator and judge are, and what has happened.

    `sight` is the membership of several nodes as it was seen last.
    """

    waiting_for: str
    sent: int = 0
    seen: int = 0
    sight: Sight | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DemoReport:
    """How the demo ended. `takeover` is there when one of several nodes was killed."""

    verdict: Verdict
    sending: SendReport
    warm_up_events: int
    seconds_until_processing: float
    killed: tuple[str, ...]
    nodes: int = 1
    takeover: Takeover | None = None

    @property
    def is_clean(self) -> bool:
        """Whether everything was sent, the judge found each event's effect exactly once, and all was taken over."""
        was_taken_over = self.takeover is None or self.takeover.is_complete
        return self.verdict.is_clean and not self.sending.failed and was_taken_over

    def as_json(self) -> dict[str, object]:
        """One flat object, apart from lists and the takeover."""
        fields = {**self.verdict.as_json(), "clean": self.is_clean, "warm_up_events": self.warm_up_events}
        fields["seconds_until_processing"] = round(self.seconds_until_processing, 2)
        fields["nodes"] = self.nodes
        fields["killed"] = list(self.killed)
        if self.takeover is not None:
            fields["takeover"] = self.takeover.as_json()
        if self.sending.lateness is not None:
            fields["sender_lateness_ms_p99"] = round(self.sending.lateness.p99, 3)
        return fields


Tell = Callable[[DemoProgress], None]


class _Judged(NamedTuple):
    verdict: Verdict
    arrivals: ArrivalLog


def run_demo(settings: DemoSettings, kafka: KafkaSettings | None, environ: Mapping[str, str], tell: Tell) -> DemoReport:
    """Show it all, and leave no process behind, however it ends.

    `kafka` None starts a development broker; on an existing cluster the demo's topics get names of their own and stay.
    `environ` is what the nodes are started with. Raises UnavailableError, with the end of the nodes' logs, when they do
    not process within a bound.
    """
    with ExitStack() as stack:
        if kafka is None:
            tell(DemoProgress("Kafka to start (the first time, it is downloaded)"))
            broker = stack.enter_context(DevelopmentBroker())
            kafka = KafkaSettings(brokers=(broker.bootstrap,))
        scene = new_scene(kafka, "demo", settings.partitions)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-demo-")))
        started = {
            name: node_of(scene, settings.workers, _NODE_SECONDS_MAX, environ, directory, name, settings.shards)
            for name in settings.node_names
        }
        nodes = stack.enter_context(DemoNodes(started))

        def tell_warm_up(seen: int) -> None:
            tell(DemoProgress("the first events to pass (a fresh installation compiles its kernels now)", 0, seen))

        pace = FullSpeed(settings.warm_up_events)
        seconds_until_processing = warm_up(scene, nodes, pace, settings.seed, tell_warm_up)
        onlooking = None
        if settings.nodes > 1:
            onlooking = stack.enter_context(Onlooking(kafka, scene.pipeline))
            await_shares(
                nodes,
                settings.node_names,
                onlooking,
                lambda sight: tell(DemoProgress("the nodes to share the shards", sight=sight)),
            )
        report = _measure(settings, scene, nodes, onlooking, tell)
        report = replace(report, seconds_until_processing=seconds_until_processing)
        seen = report.verdict.balance.outputs - settings.warm_up_events
        tell(DemoProgress("the nodes to drain and stop", report.sending.events, seen))
    return report


def _measure(
    settings: DemoSettings, scene: Scene, nodes: DemoNodes, onlooking: Onlooking | None, tell: Tell
) -> DemoReport:
    with ExitStack() as stack:
        court = stack.enter_context(Companion("judge", partial(_judge, settings, scene)))
        deadline = time.monotonic() + _JUDGE_START_S
        while court.progress is None:
            tell(DemoProgress("the judge to take its seat", sight=None if onlooking is None else onlooking.sight))
            court.listen(_TICK_S)
            if time.monotonic() > deadline:
                raise UnavailableError(f"the judge did not begin to read in {_JUDGE_START_S:.0f} s")
        generator = stack.enter_context(Companion("generator", partial(_send, settings, scene)))
        show = _Show(settings, nodes, onlooking, tell)
        within_s = settings.seconds + 4 * PATIENCE_S
        sending, judged = see_out(generator, court, nodes, within_s=within_s, tick_s=_TICK_S / 2, on_tick=show.on_tick)
    return DemoReport(
        judged.verdict,
        sending,
        settings.warm_up_events,
        0.0,
        show.killed,
        settings.nodes,
        None if show.node_killer is None else show.node_killer.takeover(judged.arrivals),
    )


class _Show:
    """What happens while events flow: what is to be killed is killed, and all of it is told."""

    def __init__(self, settings: DemoSettings, nodes: DemoNodes, onlooking: Onlooking | None, tell: Tell) -> None:
        self._settings, self._onlooking, self._tell = settings, onlooking, tell
        self._killer = _Killer(settings, nodes[settings.node_names[0]])
        self.node_killer: NodeKiller | None = None
        if settings.trouble is Trouble.KILL_NODE:
            events_before = int(_FLOW_BEFORE * settings.events)
            self.node_killer = NodeKiller(nodes, settings.node_names[-1], events_before)

    @property
    def killed(self) -> tuple[str, ...]:
        """What was killed, in this order."""
        if self.node_killer is not None and self.node_killer.strike is not None:
            return (self.node_killer.victim,)
        return tuple(self._killer.killed)

    def on_tick(self, standing: Standing) -> None:
        """Raises UnavailableError where something cannot be killed or seen."""
        self._killer.act(standing.sent)
        sight = None
        if self._onlooking is not None:
            self._onlooking.check()
            sight = self._onlooking.sight
        if self.node_killer is not None and sight is not None:
            self.node_killer.act(sight, standing.sent, is_sending=standing.is_sending)
        seen = max(0, standing.seen - self._settings.warm_up_events)
        notes = () if self.node_killer is None else tuple(self.node_killer.notes)
        self._tell(DemoProgress(self._phase(standing, sight), standing.sent, seen, sight, notes))

    def _phase(self, standing: Standing, sight: Sight | None) -> str:
        if not standing.is_sending:
            return f"the judge: {standing.phase}"
        killer = self.node_killer
        if killer is None or sight is None:
            return "events to flow"
        if killer.strike is not None:
            return "the others to take over, and events to flow"
        if windows_fill_in_s(sight.view) > 0:
            return f"{killer.victim} to be known by its beats; after {WINDOW_S:g} s of them it will be killed"
        return f"enough events to flow before {killer.victim} is killed"


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


def _judge(settings: DemoSettings, scene: Scene, tell: Callable[[JudgeProgress], None]) -> _Judged:
    case = VerifySettings(
        inputs=(scene.input,),
        outputs=(scene.output,),
        group=scene.pipeline,
        follow_events=settings.warm_up_events + settings.events,
        warm_up_events=settings.warm_up_events,
        patience_s=PATIENCE_S,
    )
    arrivals = ArrivalLog()
    noted = arrivals if settings.trouble is Trouble.KILL_NODE else None
    return _Judged(judge(scene.kafka.confluent_arguments(), case, on_progress=tell, arrivals=noted), arrivals)


def _send(settings: DemoSettings, scene: Scene, tell: Callable[[SendProgress], None]) -> SendReport:
    workload = Workload(WorkloadSettings(seed=settings.seed, first_id=settings.warm_up_events))
    schedule = Schedule(arrivals_at(Arrivals.POISSON, settings.rate, settings.seed), settings.events)
    return send_all(scene.kafka, scene.input, workload, schedule, on_progress=tell)
