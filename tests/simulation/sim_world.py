"""One schedule: a cluster, nodes, a workload and faults, all by one seed; and whether all was well in the end."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import sim_checks
from sim_faults import Faults
from sim_kafka import Kafka, Record
from sim_loop import START_S, SimLoop
from sim_membership import Ledger
from sim_network import Network
from sim_node import Machine, Scene, WallClock, is_kept, is_written_twice

from millstream.connectors.kafka.transaction_requests import InitProducerIdRequest
from millstream.processor import participation
from millstream.processor.ledger import decode
from millstream.processor.membership import Membership, apply
from millstream.processor.partitions import TopicPartition

LIVENESS_S = 25.0
# How long somebody who was in trouble may still be taken for dead.
_AFTERMATH_S = 2.0
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """What kind of schedule. `nodes` None: by chance, mostly few. `moves_only`: nodes come and leave in order.

    `faults` are the kinds that may happen; all where none is named.
    """

    nodes: int | None = None
    moves_only: bool | None = None
    faults: tuple[str, ...] = ()


@dataclass(slots=True)
class Outcome:
    """`failures` is empty where all was well."""

    seed: int
    failures: list[str]
    virtual_s: float = 0.0
    callbacks: int = 0
    records: int = 0
    commits: int = 0
    verdicts: int = 0
    recovery_s: float = 0.0
    trace: list[str] = field(default_factory=list)


class World:
    def __init__(self, seed: int, plan: Plan, mutate: Callable[[World], None] | None = None, *, trace: bool = False):
        self.rng = random.Random(seed)
        self.seed = seed
        self.plan = plan
        self.trace: list[str] = []
        self.loop = SimLoop()
        rng = self.rng
        self.moves_only = rng.random() < 0.1 if plan.moves_only is None else plan.moves_only
        self.nodes = rng.choices([2, 3, 4, 5, 8], [30, 40, 15, 10, 5])[0] if plan.nodes is None else plan.nodes
        self.network = Network(self.loop, rng, brokers=2)
        self.network.way_s = rng.choice([0.0003, 0.001, 0.003])
        self.kafka = Kafka(rng, self.loop.time, self.network.later)
        self.kafka.pace.marker_slow_s = rng.choice([0.01, 0.05, 0.3])
        self.ledger = Ledger(page_records=rng.choice([5, 1000]))
        self.ledger.on_store = self._stored
        shards = rng.randint(1, 6)
        self.scene = Scene(self.loop, self.network, self.kafka, self.ledger, rng, shards)
        self.scene.interval_ms = rng.choice([12, 30, 60])
        self.scene.commit_timeout_s = 2.0 if self.moves_only else rng.choice([0.3, 0.8, 2.0])
        self.scene.beats_broker = rng.randint(1, 2)
        self.scene.trouble.chance = 0.0 if self.moves_only else rng.choice([0.0, 0.0, 0.01, 0.08])
        self.machines: list[Machine] = []
        self.membership = Membership()
        self.broker_back_at = -1.0
        self.mistaken: list[str] = []
        self._sent = 0
        self._is_writing = True
        self.log: Callable[..., None] = self._log if trace else _silent
        self.scene.log = self.log
        if mutate is not None:
            mutate(self)
        self.kafka.create("in", rng.randint(shards, 2 * shards))
        self.kafka.create("out", rng.randint(1, 4))
        self.kafka.create("also", 1)

    def _log(self, *what: object) -> None:
        self.trace.append(f"{self.loop.now - START_S:9.4f} {' '.join(map(str, what))}")

    # -- the nodes and the ledger -------------------------------------------------------------------------------

    def start(self, name: str, zone: str | None = None, workers: int | None = None) -> Machine:
        rng = self.rng
        zone = rng.choice(["", "a", "b"]) if zone is None else zone
        machine = Machine(self.scene, name, zone, rng.choice([1, 1, 2]) if workers is None else workers)
        self.log("start", name, len(machine.workers))
        self.machines.append(machine)
        return machine

    def _stored(self, offset: int, value: bytes) -> None:
        verdicts = self.membership.verdicts
        self.membership = apply(self.membership, offset, decode(value))
        self.log("ledger", offset, value)
        if self.membership.verdicts and self.membership.verdicts[-1:] != verdicts[-1:]:
            verdict = self.membership.verdicts[-1]
            well = [machine for machine in self.machines if self._is_well(machine)]
            if any(machine.member is not None and machine.member.identity.node == verdict.node for machine in well):
                self.mistaken.append(
                    f"{verdict.node} was well and found dead by {verdict.by} at {self.loop.now - START_S:.3f}, "
                    f"after {verdict.silence_ms:.0f} ms of silence"
                )

    def _is_well(self, machine: Machine) -> bool:
        """It is neither in trouble nor was it lately, and neither was a broker."""
        since = self.loop.now - _AFTERMATH_S
        link = machine.link
        is_in_trouble = not machine.is_alive or machine.is_leaving or self.loop.now < machine.held_until
        is_in_trouble |= bool(link.cuts or link.slow or self.network.down)
        return not is_in_trouble and max(machine.disturbed_at, machine.held_until, self.broker_back_at) < since

    # -- the workload -------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Records arrive; some in transactions, of which some are aborted."""
        if not self._is_writing:
            return
        self.network.later(self.rng.expovariate(1 / 0.04), self._write)
        partition = self.rng.randrange(len(self.kafka.topics["in"]))
        place = TopicPartition("in", partition)
        records = [self._record(partition) for _ in range(self.rng.randint(1, 6))]
        if self.rng.random() < 0.85:
            self.kafka.send(place, records)
            return
        name = f"writer {self._sent}"
        identity = self.kafka.fence(None, InitProducerIdRequest(name, 0)).identity
        self.kafka.write(name, identity, place, records)
        ends = self.kafka.commit if self.rng.random() < 0.5 else self.kafka.abort
        self.network.later(self.rng.random() * 0.1, lambda: ends(name))

    def _record(self, partition: int) -> Record:
        self._sent += 1
        key = self.rng.choice([None, b"a", b"b", b"c"])
        return Record(key, b"%d:%d" % (partition, self._sent))

    @staticmethod
    def effect(value: bytes) -> list[str]:
        """What the pipeline's definition says becomes of a value."""
        if not is_kept(value):
            return []
        return ["out", "also"] if is_written_twice(value) else ["out"]

    # -- the schedule -------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        with self.loop.running(), _clock(self.loop), _quiet():
            try:
                failures = self._run()
            except Exception as error:  # whatever it is, it is what came of this seed
                failures = [f"{type(error).__name__}: {error}"]
            finally:
                virtual_s = self.loop.now - START_S
                self.loop.close()
        commits = sum(event.kind == "committed" for event in self.kafka.history)
        return Outcome(
            self.seed, failures, virtual_s, self.loop.callbacks, self._sent, commits,
            len(self.membership.verdicts), self.recovery_s, self.trace,
        )  # fmt: skip

    recovery_s = 0.0

    def _run(self) -> list[str]:
        rng, loop = self.rng, self.loop
        with_workers = min(self.nodes, 4) if self.nodes > 8 else self.nodes
        for number in range(self.nodes):
            workers = None if number < with_workers else 0
            self.network.later(rng.random() * 0.3, lambda n=number, w=workers: self.start(f"n{n}", workers=w))
        self.network.later(0.3, self._write)
        # Time without faults shows nothing: they begin while nodes are still joining, or when all is at work.
        begin = START_S + (rng.choice([0.1, 0.3, 0.8]) if self.nodes <= 20 else 1.0)
        end = begin + (rng.choice([0.4, 0.8, 2.0]) if self.nodes <= 20 else 0.7)
        faults = Faults(self, end)
        faults.plan(begin, rng.randint(1, 6), moves_only=self.moves_only, only=self.plan.faults)
        loop.run_until(end)
        self._calm()
        loop.run_until(end + 0.3)
        self._is_writing = False
        deadline = end + LIVENESS_S
        while not self._is_done() and loop.now < deadline:
            loop.run_until(loop.now + _LOOK_S)
        self.recovery_s = loop.now - end
        return self._judge()

    def _calm(self) -> None:
        self.network.traps.clear()
        self.log("CALM")
        if not any(machine.is_alive and not machine.is_leaving for machine in self.machines):
            self.start("last", workers=1)

    def _living(self) -> Iterator[Machine]:
        return (machine for machine in self.machines if machine.is_alive)

    def _runners(self) -> dict[int, list[str]]:
        runners: dict[int, list[str]] = {}
        for machine in self._living():
            for shard, workers in machine.running.items():
                runners.setdefault(shard, []).extend(workers)
        return runners

    def _not_done(self) -> Iterator[str]:
        """What is still to come, the cheapest question first."""
        if self.network.down or any(m.link.cuts or m.link.slow for m in self._living()):
            yield "there are still faults"
        runners = self._runners()
        if any(len(runners.get(shard, ())) != 1 for shard in range(self.scene.shards)):
            yield f"not every shard has one owner that lives: {runners}"
        for machine in self._living():
            if machine.member is None or machine.member.phase != "in" or machine.is_leaving:
                yield f"{machine.name} is {machine.member and machine.member.phase}"
            elif machine.member.membership.next_offset != self.membership.next_offset:
                yield f"{machine.name} has not read all of the ledger"
        if open_ := self.kafka.open_transactions:
            yield f"open transactions: {open_}"
        for partition, log in enumerate(self.kafka.topics["in"]):
            committed = self.kafka.offsets.get(TopicPartition("in", partition), 0)
            if log.visible(committed, log.stable_end):
                yield f"partition {partition} is at {committed} of {log.stable_end}"

    def _is_done(self) -> bool:
        return next(self._not_done(), None) is None

    def _judge(self) -> list[str]:
        kafka = self.kafka
        failures = [f"not done {LIVENESS_S:g} s after the last fault: {why}" for why in self._not_done()]
        failures += sim_checks.effects(kafka, self.effect)
        failures += sim_checks.transactions(kafka)
        failures += sim_checks.fence_first(kafka)
        failures += sim_checks.nobody_was_refused(kafka) if self.moves_only else []
        failures += self.mistaken + self.scene.failures
        for machine in self._living():
            member = machine.member
            if member is not None and member.membership.next_offset == self.membership.next_offset:
                failures += (
                    [] if member.membership == self.membership else [f"{machine.name} disagrees with the ledger"]
                )
        return failures


def _silent(*what: object) -> None:
    pass


@contextmanager
def _clock(loop: SimLoop) -> Iterator[None]:
    real = participation.time
    participation.time = WallClock(loop)  # type: ignore[assignment]
    try:
        yield
    finally:
        participation.time = real


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
