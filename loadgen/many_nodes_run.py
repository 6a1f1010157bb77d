"""Nodes by the dozen on one broker: what they cost, what they see of each other, and how they find one that is killed.

One node is the witness, which notes when beats arrive and costs more by that. Some have a process each, as in life, and
can be killed; the others share a few processes, where one wake-up often serves several of them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from millstream.connectors.kafka.membership_log import KafkaMembershipLog
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.cpu_pressure import CpuHogs
from millstream.loadgen.node_herds import NodeHerds, agree
from millstream.loadgen.pretended_nodes import REPORT_S, Herd, ProcessReport
from millstream.loadgen.process_watch import cpu_s
from millstream.loadgen.socket_bytes import SocketBytes
from millstream.loadgen.topics import TopicAdmin
from millstream.loadgen.verdict_watch import SeenVerdict, VerdictWatch
from millstream.processor import ledger
from millstream.processor.errors import SettingsError
from millstream.processor.ledger import CreatedRecord
from millstream.processor.names import Names
from millstream.processor.preparation import own_topics
from millstream.processor.timings import Timings

NODES_MIN: Final = 4
_LONE_NODES: Final = 4
_SHARDS_PER_NODE: Final = 2
_JOIN_S: Final = 60.0
_AGREE_S: Final = 10.0
_VERDICT_S: Final = 5.0
_REPLACE_S: Final = 30.0
# What nodes of one process say in a row of joins is a burst of work for all of them on the same cores.
_NAMES_OF_LASTING: Final = "a"
_NAMES_OF_MORTAL: Final = "m"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyNodesSettings:
    """What to run. Raises SettingsError with every mistake at once.

    `processes` share all nodes but the witness and those that have a process each. Of a series of `kills` one comes
    every `kill_every_s` on average, and each killed node is replaced. `hogs` take CPU from the first measurement on.
    """

    nodes: tuple[int, ...] = (10, 30, 100)
    seconds: float = 30.0
    processes: int = 3
    kills: int = 1
    kill_every_s: float = 1.0
    hogs: int = 0
    seed: int = 7
    timings: Timings = field(default_factory=Timings)

    def __post_init__(self) -> None:
        mistakes = []
        if not self.nodes or not all(NODES_MIN <= count <= 1000 for count in self.nodes):
            mistakes.append(f"nodes are {', '.join(map(str, self.nodes))}; give some of {NODES_MIN} to 1000")
        if not 1 <= self.seconds <= 3600:
            mistakes.append(f"seconds is {self.seconds:g}; give 1 to 3600")
        if not 0.5 <= self.kill_every_s <= 3600:
            mistakes.append(f"kill_every_s is {self.kill_every_s:g}; give 0.5 to 3600: a verdict takes a third of that")
        for name, value, least in (("processes", self.processes, 1), ("kills", self.kills, 1), ("hogs", self.hogs, 0)):
            if not least <= value <= 100_000:
                mistakes.append(f"{name} is {value}; give {least} or more")
        if self.kills > 1:
            mistakes += [self._too_few(count) for count in self.nodes if self.mortal(count) < self.reserve]
        if mistakes:
            raise SettingsError("many nodes cannot be started", mistakes)

    def _too_few(self, count: int) -> str:
        return (
            f"nodes is {count}: a node is known well {self.fill_s:.0f} s after it came, and one is killed every "
            f"{self.kill_every_s:g} s, which takes {self.reserve} that may be killed and leaves {self.mortal(count)}; "
            "give more nodes, or kill less often"
        )

    @property
    def fill_s(self) -> float:
        """How long after a node came everyone has seen enough of its beats, and it of theirs."""
        return self.timings.window * self.timings.beat_interval_s * 1.15 + REPORT_S

    @property
    def reserve(self) -> int:
        """How many nodes must have a process each, so that one of them is always known well."""
        return int(self.fill_s / self.kill_every_s) + 2

    def mortal(self, count: int) -> int:
        """How many of so many nodes have a process each."""
        return min(_LONE_NODES, count - 2) if self.kills == 1 else count - max(3, count // 6) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """One kill. `verdicts` is how many DEAD records the ledger has for it; `detected_s` counts from the kill."""

    node: str
    detected_s: float | None
    verdicts: int
    silence_ms: float
    threshold_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one node uses in a second; CPU in percent of one core. `lone` have a process each, `shared` do not."""

    lone_cpu: Sequence[float]
    shared_cpu: float | None
    broker_cpu: float | None
    sent: float
    received: float
    packets: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyNodesResult:
    """One run. `mistaken` are verdicts on nodes that nobody had killed; histograms are by whole milliseconds."""

    nodes: int
    mortal: int
    seconds: float
    cost: Cost
    gaps_ms: Counter[int]
    visible_ms: Counter[int]
    kills: Sequence[Killed]
    mistaken: Sequence[SeenVerdict]
    has_agreed: bool

    @property
    def is_clean(self) -> bool:
        """Whether every killed node was found once, nobody else was, and all agree."""
        return self.has_agreed and not self.mistaken and all(killed.verdicts == 1 for killed in self.kills)


class ManyNodesRun:
    """One run with one number of nodes."""

    def __init__(
        self,
        settings: ManyNodesSettings,
        count: int,
        kafka: KafkaSettings,
        broker_pid: int | None,
        pipeline: str,
        tell: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._count = count
        self._kafka = kafka
        self._broker_pid = broker_pid
        self._pipeline = pipeline
        self._tell = tell
        self._random = random.Random(settings.seed)
        self._mortal_started = 0
        self._gaps_ms: Counter[int] = Counter()
        self._visible_ms: Counter[int] = Counter()

    def run(self) -> ManyNodesResult:
        """Raises UnavailableError where the nodes do not come together."""
        settings, names = self._settings, Names.of(self._pipeline)
        self._prepare(names)
        with NodeHerds() as herds, VerdictWatch(self._kafka.confluent_arguments(), names.ledger) as watch:
            self._gather(herds)
            self._tell(f"waiting {settings.fill_s:.0f} s for every node to know the others' beats")
            time.sleep(settings.fill_s)
            with CpuHogs(settings.hogs):
                self._tell(f"measuring for {settings.seconds:g} s")
                cost = self._measure(herds)
                began = time.monotonic()
                orders = self._kill(herds, watch)
                self._note_beats(herds, began)
            survivors = self._count - (1 if settings.kills == 1 else 0)
            has_agreed = self._agrees(herds, survivors)
            return ManyNodesResult(
                nodes=self._count,
                mortal=settings.mortal(self._count),
                seconds=settings.seconds,
                cost=cost,
                gaps_ms=self._gaps_ms,
                visible_ms=self._visible_ms,
                kills=[_killed(node, at_s, watch.verdicts()) for node, at_s in orders.items()],
                mistaken=[seen for seen in watch.verdicts() if seen.at_s < orders.get(seen.record.node, float("inf"))],
                has_agreed=has_agreed,
            )

    # -- the nodes ----------------------------------------------------------------------------------------------

    def _prepare(self, names: Names) -> None:
        admin = TopicAdmin(self._kafka.confluent_arguments())
        for plan in own_topics(names, 1):
            admin.create(plan.name, plan.partitions, plan.settings)
        asyncio.run(_append_created(self._kafka, names, self._count * _SHARDS_PER_NODE))

    def _gather(self, herds: NodeHerds) -> None:
        """A process at a time: what a hundred nodes have to say of each other at once is more than two cores do."""
        mortal = self._settings.mortal(self._count)
        lasting = [f"{_NAMES_OF_LASTING}{number:04d}" for number in range(self._count - mortal)]
        self._add(herds, lasting[:1], is_witness=True)
        processes = min(self._settings.processes, len(lasting) - 1)
        for number in range(processes):
            self._add(herds, lasting[1 + number :: processes])
        for _ in range(mortal):
            self._add_mortal(herds)
        self._await(herds, self._count)

    def _add(self, herds: NodeHerds, names: list[str], *, is_witness: bool = False) -> None:
        before = len(herds.nodes())
        self._tell(f"starting nodes: {before} of {self._count}")
        herds.start(self._herd(names, is_witness=is_witness))
        self._await(herds, before + len(names))

    def _herd(self, names: list[str], *, is_witness: bool = False) -> Herd:
        return Herd(
            pipeline=self._pipeline,
            names=names,
            brokers=list(self._kafka.brokers),
            timings=self._settings.timings,
            is_witness=is_witness,
        )

    def _add_mortal(self, herds: NodeHerds) -> None:
        herds.start(self._herd([f"{_NAMES_OF_MORTAL}{self._mortal_started:04d}"]))
        self._mortal_started += 1

    @staticmethod
    def _await(herds: NodeHerds, count: int) -> None:
        herds.wait_until(lambda nodes: agree(nodes, count), f"a membership of {count} nodes", _JOIN_S)

    def _agrees(self, herds: NodeHerds, count: int) -> bool:
        deadline = time.monotonic() + _AGREE_S
        while not agree(herds.nodes(), count):
            if time.monotonic() > deadline:
                return False
            time.sleep(REPORT_S / 4)
        return True

    # -- what they use ------------------------------------------------------------------------------------------

    def _measure(self, herds: NodeHerds) -> Cost:
        began, broker_before = time.monotonic(), self._broker_cpu_s()
        time.sleep(self._settings.seconds)
        took_s = time.monotonic() - began
        broker_s = self._broker_cpu_s() - broker_before
        time.sleep(REPORT_S)
        self._note_beats(herds, began)
        uses = [_Use.between(reports, began) for reports in herds.reports().values() if not reports[-1].is_witness]
        traffic = sum((use.traffic_per_s for use in uses), start=_Traffic())
        nodes = sum(use.nodes for use in uses)
        shared = [use for use in uses if use.nodes > 1]
        return Cost(
            lone_cpu=sorted(100 * use.cpu_per_s for use in uses if use.nodes == 1),
            shared_cpu=100 * sum(use.cpu_per_s for use in shared) / sum(use.nodes for use in shared)
            if shared
            else None,
            broker_cpu=None if self._broker_pid is None else 100 * broker_s / took_s,
            sent=traffic.sent / nodes,
            received=traffic.received / nodes,
            packets=traffic.packets / nodes,
        )

    def _broker_cpu_s(self) -> float:
        return 0.0 if self._broker_pid is None else cpu_s(self._broker_pid)

    def _note_beats(self, herds: NodeHerds, since_s: float) -> None:
        for reports in herds.reports().values():
            for report in reports:
                if report.is_witness and report.at_s > since_s:
                    self._gaps_ms.update(report.gaps_ms)
                    self._visible_ms.update(report.visible_ms)

    # -- deaths -------------------------------------------------------------------------------------------------

    def _kill(self, herds: NodeHerds, watch: VerdictWatch) -> dict[str, float]:
        """Kill one node after the other; answers when each was, by its id."""
        settings = self._settings
        orders: dict[str, float] = {}
        due, last = time.monotonic(), ""
        for number in range(settings.kills):
            self._tell(f"killing node {number + 1} of {settings.kills}{last}")
            due = max(due + settings.kill_every_s, time.monotonic())
            # Anywhere within a beat, and within whatever else goes round.
            phase_s = self._random.uniform(0, settings.timings.beat_interval_s * 4)
            time.sleep(max(0.0, due - time.monotonic()) + phase_s)
            pid, node = self._victim(herds)
            orders[node] = herds.kill(pid).monotonic_s
            seen = watch.wait_for(node, _VERDICT_S)
            last = f"; the last was found after {(seen.at_s - orders[node]) * 1000:.0f} ms" if seen else ""
            herds.forget(pid)
            if settings.kills > 1:
                self._add_mortal(herds)
        # Whoever else finds it dead says so within its turn.
        time.sleep(settings.timings.verdict_valid_s + REPORT_S)
        return orders

    def _victim(self, herds: NodeHerds) -> tuple[int, str]:
        """The node of a process of its own that is in for longest, and long enough."""
        deadline = time.monotonic() + _REPLACE_S
        while True:
            known = {
                pid: _in_since(reports)
                for pid, reports in herds.reports().items()
                if len(reports[-1].nodes) == 1 and not reports[-1].is_witness
            }
            ripe = [pid for pid, since_s in known.items() if time.monotonic() - since_s >= self._settings.fill_s]
            if ripe:
                pid = min(ripe, key=known.__getitem__)
                return pid, herds.reports()[pid][-1].nodes[0].node
            if time.monotonic() > deadline:
                raise SettingsError(
                    "the series of kills", ["no node is known for long enough; give more nodes or kill less often"]
                )
            time.sleep(REPORT_S / 10)


@dataclass(frozen=True, slots=True)
class _Traffic:
    """By the second."""

    sent: float = 0.0
    received: float = 0.0
    packets: float = 0.0

    def __add__(self, other: _Traffic) -> _Traffic:
        return _Traffic(self.sent + other.sent, self.received + other.received, self.packets + other.packets)


@dataclass(frozen=True, slots=True)
class _Use:
    """What one process used by the second."""

    nodes: int
    cpu_per_s: float
    traffic_per_s: _Traffic

    @staticmethod
    def between(reports: Sequence[ProcessReport], since_s: float) -> _Use:
        measured = [report for report in reports if report.at_s >= since_s]
        first, last = measured[0], measured[-1]
        seconds = last.at_s - first.at_s
        traffic: SocketBytes = last.traffic - first.traffic
        packets = traffic.packets_sent + traffic.packets_received
        return _Use(
            len(last.nodes),
            (last.cpu_s - first.cpu_s) / seconds,
            _Traffic(traffic.sent / seconds, traffic.received / seconds, packets / seconds),
        )


def _in_since(reports: Sequence[ProcessReport]) -> float:
    """When the node of this process came in, by its reports; never where it has not."""
    since_s = float("inf")
    for report in reversed(reports):
        if report.nodes[0].phase != "in":
            break
        since_s = report.at_s
    return since_s


def _killed(node: str, at_s: float, verdicts: Iterable[SeenVerdict]) -> Killed:
    seen = [verdict for verdict in verdicts if verdict.record.node == node]
    first = seen[0] if seen else None
    return Killed(
        node=node,
        detected_s=first.at_s - at_s if first else None,
        verdicts=len(seen),
        silence_ms=first.record.silence_ms if first else 0.0,
        threshold_ms=first.record.threshold_ms if first else 0.0,
    )


async def _append_created(kafka: KafkaSettings, names: Names, shards: int) -> None:
    log = KafkaMembershipLog(kafka, ledger=names.ledger, beats=names.beats)
    try:
        await log.connect()
        await log.append([ledger.encode(CreatedRecord(shards))])
    finally:
        log.close()
