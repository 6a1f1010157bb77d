"""What befalls a schedule: which faults, whom, when, and for how long; all of it by the seed.

Every fault is over when the time for faults is over: whoever was frozen goes on, what was cut is joined again. The
dead stay dead, but most of them come back as new nodes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from sim_network import Cut, Slow, Trap

if TYPE_CHECKING:
    from sim_node import Machine
    from sim_world import World

# What a frozen or cut node gets away with, what not, and what is for long.
_SPANS_S = (0.1, 0.15, 0.25, 0.3, 0.4, 0.7, 1.5, 3.0)
_REQUESTS = (
    "InitProducerIdRequest",
    "ProduceRequest",
    "TxnOffsetCommitRequest",
    "EndTxnRequest",
    "OffsetFetchRequest",
    "Fetch",
    "Append",
    "ReadLedger",
)
_HELD_BACK = (
    "EndTxnRequest",
    "EndTxnRequest",
    "TxnOffsetCommitRequest",
    "ProduceRequest",
    "InitProducerIdRequest",
    "OffsetFetchRequest",
    "Append",
    "Beat",
)
_AGENTS = ("Beat", "Beats", "Follow", "Append")


class Faults:
    """Brings faults upon a world until `end`."""

    def __init__(self, world: World, end: float) -> None:
        self._world = world
        self._end = end
        self._rng: random.Random = world.rng
        self._kinds: dict[Callable[[], None], int] = {
            self.kill_machine: 4,
            self.kill_worker: 3,
            self.kill_at_request: 4,
            self.freeze_at_request: 4,
            self.freeze: 4,
            self.freeze_worker: 2,
            self.cut: 6,
            self.cut_agent: 3,
            self.deafen: 1,
            self.hold_back: 4,
            self.slow_way: 1,
            self.broker_away: 2,
            self.step_clock: 1,
            self.hang_worker: 1,
            self.add_partitions: 1,
            self.all_die: 1,
            self.start: 3,
            self.drain: 3,
        }
        self._moves: dict[Callable[[], None], int] = {self.start: 2, self.drain: 2, self.step_clock: 1}

    def plan(self, begin: float, count: int, *, moves_only: bool, only: tuple[str, ...] = ()) -> None:
        kinds = self._moves if moves_only else self._kinds
        if only:
            kinds = {getattr(self, name): 1 for name in only}
        for _ in range(count):
            at = begin + self._rng.random() * (self._end - begin)
            (fault,) = self._rng.choices(list(kinds), list(kinds.values()))
            self._world.network.later(at - self._world.loop.now, fault)

    # -- helpers ------------------------------------------------------------------------------------------------

    def _one(self) -> Machine | None:
        """Any machine that lives; two of three times one that runs shards."""
        living = [machine for machine in self._world.machines if machine.is_alive]
        busy = [machine for machine in living if machine.running]
        if busy and self._rng.random() < 0.67:
            living = busy
        return self._rng.choice(living) if living else None

    def _span(self) -> float:
        """For how long, so that it is over in time."""
        return max(0.0, min(self._rng.choice(_SPANS_S), self._end - self._world.loop.now))

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self._world.network.later(seconds, what)

    def _log(self, *what: object) -> None:
        self._world.log("FAULT", *what)

    def _comes_back(self, machine: Machine) -> None:
        if self._rng.random() < 0.7:
            self._later(self._rng.choice([0.02, 0.1, 0.5, 1.0]), lambda: self._world.start(machine.name, machine.zone))

    # -- deaths -------------------------------------------------------------------------------------------------

    def kill_machine(self) -> None:
        machine = self._one()
        if machine is not None:
            self._kill(machine)
            second = self._one()
            if second is not None and self._rng.random() < 0.2:
                self._later(self._rng.random() * 0.5, lambda: self._kill(second))

    def _kill(self, machine: Machine) -> None:
        if machine.is_alive and self._world.loop.now < self._end:
            self._log("kill", machine.name)
            machine.kill("killed")
            self._comes_back(machine)

    def all_die(self) -> None:
        """A cold start follows."""
        self._log("all die")
        for machine in list(self._world.machines):
            machine.kill("killed")
        for number in range(self._rng.randint(1, 3)):
            self._later(self._rng.random(), lambda number=number: self._world.start(f"cold{number}"))

    def kill_worker(self) -> None:
        machine = self._one()
        workers = [] if machine is None else [w for w in machine.workers.values() if not w.process.is_dead]
        if machine is not None and workers:
            worker = self._rng.choice(workers)
            self._log("kill", worker.process)
            machine.kill_worker(worker, "killed")

    def kill_at_request(self) -> None:
        """When a request of a certain kind reaches its broker; anybody's, or a certain node's."""
        self._trap("kill", self._kill)

    # -- standstills --------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        machine = self._one()
        if machine is not None:
            self._freeze(machine)

    def _freeze(self, machine: Machine) -> None:
        seconds = self._span()
        self._log("freeze", machine.name, f"{seconds:.3f}")
        machine.hold(seconds)

    def freeze_at_request(self) -> None:
        self._trap("freeze", self._freeze)

    def _trap(self, what: str, spring: Callable[[Machine], None]) -> None:
        machine = self._one() if self._rng.random() < 0.7 else None
        trap = Trap(
            self._rng.choice(_REQUESTS),
            machine.link if machine else None,
            after=self._rng.random() < 0.5,
            spring=spring,
        )
        self._log(what, "at", trap.kind, "after" if trap.after else "before", machine.name if machine else "anybody")
        self._world.network.traps.append(trap)

    def freeze_worker(self) -> None:
        """User code that holds the interpreter: the agent does not suffer."""
        machine = self._one()
        if machine is None or not machine.workers:
            return
        worker = self._rng.choice(list(machine.workers.values()))
        seconds = self._span()
        self._log("freeze", worker.process, f"{seconds:.3f}")
        self._world.loop.hold(worker.process)

        def go_on() -> None:
            if self._world.loop.now >= machine.held_until:
                self._world.loop.let_go(worker.process)

        self._later(seconds, go_on)

    def hang_worker(self) -> None:
        """It neither hears its agent nor is heard by it, and goes on, until it is killed for that."""
        machine = self._one()
        if machine is not None and machine.workers:
            worker = self._rng.choice(list(machine.workers.values()))
            seconds = self._span()
            self._log("hangs", worker.process, f"{seconds:.3f}")
            worker.hangs = True
            self._later(seconds, lambda: machine.kill_worker(worker, "it hung"))

    # -- networks and brokers -----------------------------------------------------------------------------------

    def cut(self) -> None:
        machine = self._one()
        if machine is None:
            return
        ways = self._rng.choice([(True, True), (True, True), (True, False), (False, True)])
        brokers = self._rng.choice([None, None, frozenset({1}), frozenset({self._world.network.brokers})])
        cut = Cut(brokers, *ways, resets=self._rng.random() < 0.3)
        if self._rng.random() < 0.4:
            cut = Cut(None, *ways, kinds=(self._rng.choice(_HELD_BACK),))
        self._cut(machine, cut)

    def cut_agent(self) -> None:
        """The agent hears and says nothing, and its workers go on: they are no longer the owners and don't know it."""
        machine = self._one()
        if machine is not None:
            self._cut(machine, Cut(None, requests=True, answers=True, kinds=_AGENTS))

    def deafen(self) -> None:
        """A node that is heard and does not hear: no beat reaches it, not even its own."""
        machine = self._one()
        if machine is not None:
            self._cut(machine, Cut(None, requests=True, answers=True, kinds=("Beats",)))

    def _cut(self, machine: Machine, cut: Cut) -> None:
        seconds = self._span()
        self._log("cut", machine.name, cut, f"{seconds:.3f}")
        machine.link.cuts.append(cut)
        self._later(seconds, lambda: self._heal(machine, cut))

    def _heal(self, machine: Machine, cut: Cut) -> None:
        machine.link.cuts.remove(cut)
        machine.disturbed_at = self._world.loop.now

    def hold_back(self) -> None:
        """Requests of one kind, or their answers, are held back: some of them for longer than anybody waits."""
        machine = self._one()
        if machine is None:
            return
        slow = Slow(self._rng.choice(_HELD_BACK), self._rng.choice([0.3, 1.0, 3.0]))
        self._slow(machine, slow)

    def slow_way(self) -> None:
        machine = self._one()
        if machine is not None:
            self._slow(machine, Slow(None, 0.2))

    def _slow(self, machine: Machine, slow: Slow) -> None:
        seconds = self._span()
        self._log("slow", machine.name, slow, f"{seconds:.3f}")
        machine.link.slow.append(slow)

        def over() -> None:
            machine.link.slow.remove(slow)
            machine.disturbed_at = self._world.loop.now + slow.seconds

        self._later(seconds, over)

    def broker_away(self) -> None:
        broker = self._rng.randint(1, self._world.network.brokers)
        seconds = min(self._span(), 2.0)
        self._log("broker", broker, "is away", f"{seconds:.3f}")
        self._world.network.down.add(broker)

        def back() -> None:
            self._world.network.down.discard(broker)
            self._world.broker_back_at = self._world.loop.now

        self._later(seconds, back)

    # -- what is no fault ---------------------------------------------------------------------------------------

    def step_clock(self) -> None:
        machine = self._one()
        if machine is not None:
            machine.wall_step_s += self._rng.choice([-3600.0, 3600.0])

    def add_partitions(self) -> None:
        count = len(self._world.kafka.topics["in"]) + 1
        self._log("partitions", count)
        self._world.kafka.create("in", count)

    def start(self) -> None:
        self._world.start(f"new{self._rng.randint(0, 9)}")

    def drain(self) -> None:
        machine = self._one()
        others = [other for other in self._world.machines if other.is_alive and other is not machine]
        if machine is not None and any(not other.is_leaving for other in others):
            self._log("drain", machine.name)
            machine.drain()
