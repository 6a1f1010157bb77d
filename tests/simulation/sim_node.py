"""Machines with an agent and workers on them: the real `Participation` and `Host`, each in a process of its own.

What starts processes and carries messages between them is a short copy of what the agent does; it decides nothing.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from sim_kafka import Kafka
from sim_log import GROUP, Log, Trouble
from sim_loop import Process, SimLoop, current_process
from sim_membership import Ledger, MembershipLog
from sim_network import Client, Link, Network

from millstream.processor import Pipeline
from millstream.processor.built import BuiltPipeline
from millstream.processor.columns import OutputRecords, Records
from millstream.processor.counts import Counts
from millstream.processor.errors import CorruptBatchError, UnavailableError
from millstream.processor.host import Host, RunOptions
from millstream.processor.interfaces import Effects
from millstream.processor.member import Member, NodeIdentity
from millstream.processor.participation import NodePlace, Participation
from millstream.processor.partitions import TopicPartition
from millstream.processor.shard_host import HostEvent, ShardReleased, ShardRestarted, ShardStarted
from millstream.processor.stage_mark import UNWATCHED, StageMark
from millstream.processor.stalled import Stalled
from millstream.processor.timings import Timings

PIPE_S = 0.0003
DRAIN_S = 3.0
TIMINGS = Timings(
    window=20,
    newcomer_s=0.7,
    reconnect_max_s=0.3,
    ledger_wait_s=2.0,
    resend_s=0.4,
    release_timeout_s=1.5,
    snapshot_records=60,
)


@dataclass(frozen=True)
class Think:
    """The pipeline: what ends with 7 is dropped, every third number is written to a second topic too."""

    rng: random.Random
    seconds: float = 0.02

    async def process(
        self,
        records: Records,
        record_bytes_max: Mapping[str, int],
        mark: StageMark = UNWATCHED,
        given_up: Stalled | None = None,
    ) -> Effects:
        if self.rng.random() < 0.1:
            await asyncio.sleep(self.rng.random() * self.seconds)
        values = records.value.to_list()
        kept = [row for row, value in enumerate(values) if value is not None and is_kept(value)]
        twice = [row for row in kept if is_written_twice(values[row] or b"")]
        partition = np.array([origin.partition for origin in records.origins], np.int32)[records.origin]
        outputs = [
            _outputs(topic, records, partition, rows) for topic, rows in (("out", kept), ("also", twice)) if rows
        ]
        return Effects(outputs, Counts(records_in=len(records), records_out=len(kept) + len(twice)))

    def leave_out(
        self, partition: TopicPartition, error: CorruptBatchError, record_bytes_max: Mapping[str, int]
    ) -> Effects:
        raise AssertionError("nothing is damaged here")


def is_kept(value: bytes) -> bool:
    return not value.endswith(b"7")


def is_written_twice(value: bytes) -> bool:
    return int(value.rpartition(b":")[2]) % 3 == 0


def _outputs(topic: str, records: Records, partition: Any, rows: list[int]) -> OutputRecords:
    at = np.array(rows, np.int64)
    return OutputRecords(
        topic,
        records.key.take(at),
        records.value.take(at),
        records.headers.take(at),
        records.timestamp[at],
        partition[at],
        at.astype(np.int32),
    )


@cache
def _pipeline(shards: int, interval_ms: int) -> BuiltPipeline:
    pipeline = Pipeline(GROUP, shards=shards, commit_interval_ms=interval_ms)
    stream = pipeline.read("in")
    stream.write("out")
    stream.write("also")
    return pipeline.build()


@dataclass(frozen=True, kw_only=True)
class Place(NodePlace):
    """Ids by chance, but by the seed's."""

    rng: random.Random

    def identity(self) -> NodeIdentity:
        return NodeIdentity(node=f"{self.name}-{self.rng.getrandbits(32):08x}", name=self.name, zone=self.zone)


@dataclass
class Scene:
    """What all machines share. `failures` are errors that nobody should ever have met."""

    loop: SimLoop
    network: Network
    kafka: Kafka
    ledger: Ledger
    rng: random.Random
    shards: int
    interval_ms: int = 30
    commit_timeout_s: float = 2.0
    beats_broker: int = 1
    trouble: Trouble = field(default_factory=Trouble)
    failures: list[str] = field(default_factory=list)
    log: Callable[..., None] = lambda *_: None

    def failed(self, process: Process, error: BaseException) -> None:
        """A process has met an error that it should never meet."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.log("".join(traceback.format_exception(error)))
        self.failures.append(f"{process} ended with {type(error).__name__}: {error}")


class Worker:
    """One life of one worker."""

    def __init__(self, machine: Machine, number: int, incarnation: int) -> None:
        scene = machine.scene
        self.machine = machine
        self.number = number
        self.incarnation = incarnation
        self.process = scene.loop.process(f"{machine.name}/{number}.{incarnation}", machine)
        self.running: set[int] = set()
        self.is_up = False
        self.hangs = False
        self._scene = scene
        self._said_at = 0.0
        self._told_at = 0.0
        self._host: Host | None = None
        scene.loop.create_task(self._main(), context=self.process.context.copy())

    async def _main(self) -> None:
        scene, rng = self._scene, self._scene.rng
        await asyncio.sleep(0.02 + rng.random() * 0.05)
        client = Client(self.process, self.machine.link)
        log = Log(
            scene.network,
            scene.kafka,
            scene.ledger,
            client,
            rng,
            scene.trouble,
            scene.shards,
            scene.commit_timeout_s,
        )
        pipeline = replace(_pipeline(scene.shards, scene.interval_ms), program=Think(rng))
        self._host = Host(pipeline, log, RunOptions())
        try:
            await self._host.prepare()
            self._say(lambda agent: agent.participation.worker_ready(self.number, self.incarnation))
            self.is_up = True
            await self._host.serve(self._report)
        except UnavailableError as error:
            scene.log("worker", self.process, "ends:", error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            scene.failed(self.process, error)
        self.machine.worker_died(self, "it ended")

    def _report(self, event: HostEvent) -> None:
        match event:
            case ShardStarted(shard):
                self.running.add(shard)
                self._scene.log(self.process, "runs", shard)
            case ShardReleased(shard):
                self.running.discard(shard)
                self._scene.log(self.process, "released", shard)
                self._say(lambda agent: agent.participation.shard_released(self.number, shard))
            case ShardRestarted(shard, reason):
                self._scene.log(self.process, "restarts", shard, reason)

    def _say(self, what: Callable[[Agent], None]) -> None:
        """Over the pipe: in order, and read by the agent in its own time."""
        agent, loop = self.machine.agent, self._scene.loop
        if agent is None or self.hangs:
            return
        self._said_at = max(self._said_at, loop.now + PIPE_S * self._scene.rng.random() * 2)

        def read() -> None:
            if self.machine.workers.get(self.number) is self:
                what(agent)

        loop.call_at(self._said_at, read, context=agent.process.context)

    def tell(self, shards: frozenset[int], stalls: Collection[Stalled]) -> None:
        """What the agent writes to the pipe."""
        loop = self._scene.loop
        self._told_at = max(self._told_at, loop.now + PIPE_S * self._scene.rng.random() * 2)

        def read() -> None:
            if self._host is not None and not self.hangs:
                self._host.assign(shards, tuple(stalls))

        loop.call_at(self._told_at, read, context=self.process.context)


class Agent:
    """Implements `participation.Workers`."""

    def __init__(self, machine: Machine) -> None:
        scene = machine.scene
        self.machine = machine
        self.process = scene.loop.process(f"{machine.name} agent", machine)
        place = Place(name=machine.name, zone=machine.zone, timings=TIMINGS, rng=scene.rng)
        log = MembershipLog(scene.network, scene.ledger, Client(self.process, machine.link), scene.beats_broker)
        # Made within its process: it looks at the clocks.
        self.participation: Participation = self.process.context.run(Participation, place, log, self)
        scene.loop.create_task(self._main(), context=self.process.context.copy())

    async def _main(self) -> None:
        try:
            await self.participation.run()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.machine.scene.failed(self.process, error)

    def own(self, worker: int, incarnation: int, shards: frozenset[int], stalls: Collection[Stalled]) -> None:
        current = self.machine.workers.get(worker)
        self.machine.scene.log(self.process, "gives", worker, sorted(shards))
        if current is not None and current.incarnation == incarnation:
            current.tell(shards, stalls)

    def overdue(self, worker: int, incarnation: int, shards: Collection[int]) -> None:
        current = self.machine.workers.get(worker)
        if current is not None and current.incarnation == incarnation:
            self.machine.kill_worker(current, f"it has not released {sorted(shards)}")

    def elsewhere(self, shards: frozenset[int]) -> None:
        pass

    def left(self) -> None:
        self.machine.kill("it has left")


class Machine:
    """One life of one node."""

    def __init__(self, scene: Scene, name: str, zone: str, workers: int) -> None:
        self.scene = scene
        self.name = name
        self.zone = zone
        self.link = Link(name, self)
        self.workers: dict[int, Worker] = {}
        self.is_alive = True
        self.is_leaving = False
        # When somebody who is well would last have seen it out of order, and until when it is held.
        self.disturbed_at = -1.0
        self.held_until = 0.0
        self.wall_step_s = 0.0
        self.agent: Agent | None = None
        self.agent = Agent(self)
        for number in range(workers):
            self.workers[number] = Worker(self, number, 1)

    @property
    def processes(self) -> list[Process]:
        agent = [self.agent.process] if self.agent else []
        return agent + [worker.process for worker in self.workers.values()]

    @property
    def member(self) -> Member | None:
        return self.agent.participation.member if self.agent and self.is_alive else None

    @property
    def running(self) -> dict[int, list[str]]:
        """Who on it runs which shard."""
        found: dict[int, list[str]] = {}
        for worker in self.workers.values():
            for shard in worker.running:
                found.setdefault(shard, []).append(worker.process.name)
        return found

    # -- what befalls it ----------------------------------------------------------------------------------------

    def kill(self, why: str) -> None:
        """All of it at once, with what it has not sent yet."""
        if self.is_alive:
            self.scene.log(self.name, "is gone:", why)
            self.is_alive = False
            self.disturbed_at = self.scene.loop.now
            for process in self.processes:
                self.scene.loop.kill(process)
            self.workers.clear()

    def kill_worker(self, worker: Worker, why: str) -> None:
        self.scene.loop.kill(worker.process)
        self.worker_died(worker, why)

    def worker_died(self, worker: Worker, why: str) -> None:
        """The agent sees the exit, and starts another one soon."""
        scene, agent = self.scene, self.agent
        if not self.is_alive or agent is None or self.workers.get(worker.number) is not worker:
            return
        scene.log(worker.process, "died:", why)
        scene.loop.kill(worker.process)
        worker.running.clear()

        def reap() -> None:
            if self.workers.get(worker.number) is not worker:
                return
            del self.workers[worker.number]
            agent.participation.worker_gone(worker.number, worker.incarnation, why, ())
            if not self.is_leaving:
                scene.loop.call_later(0.1, start, context=agent.process.context)

        def start() -> None:
            if not self.is_leaving:
                self.workers[worker.number] = Worker(self, worker.number, worker.incarnation + 1)

        scene.loop.call_later(0.001 + scene.rng.random() * 0.004, reap, context=agent.process.context)

    def hold(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so many seconds."""
        loop = self.scene.loop
        self.held_until = max(self.held_until, loop.now + seconds)
        for process in self.processes:
            loop.hold(process)
        self.scene.network.later(seconds, self._let_go)

    def _let_go(self) -> None:
        if self.is_alive and self.scene.loop.now >= self.held_until - 1e-9:
            self.scene.log(self.name, "goes on")
            self.disturbed_at = self.scene.loop.now
            for process in self.processes:
                self.scene.loop.let_go(process)

    def drain(self) -> None:
        """SIGTERM: leave in order, within a bound."""
        agent, loop = self.agent, self.scene.loop
        if agent is not None and self.is_alive and not self.is_leaving:
            self.is_leaving = True
            loop.call_later(0, agent.participation.depart, context=agent.process.context)
            self.scene.network.later(DRAIN_S, lambda: self.kill("it has not left in time"))


class WallClock:
    """Stands for the module `time`: each machine's wall clock may be stepped."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def time(self) -> float:
        process = current_process()
        return 1.7e9 + self._loop.now + (process.machine.wall_step_s if process else 0.0)
