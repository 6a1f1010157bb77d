"""The nodes that faults befall: real `millstream run` processes that come and go, all of one pipeline."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from millstream.loadgen import node_faults
from millstream.loadgen.chaos_ledger import LedgerWatch
from millstream.loadgen.moments import Strike
from millstream.loadgen.networks import Network
from millstream.loadgen.node_process import NodeProcess
from millstream.loadgen.proxy_thread import ProxyThread
from millstream.loadgen.scene import Scene
from millstream.loadgen.wall_clock import WallClock
from millstream.processor.errors import UnavailableError
from millstream.processor.ledger import JoinRecord
from millstream.processor.membership import WorkerId

APP = "millstream.loadgen.chaos_app:pipeline"
# A detector judges a newcomer only after a longer silence, until it has heard 200 of its beats.
RIPE_S = 13.0
_NODE_SECONDS_MAX = 7200
_START_S = 90.0
_LOOK_S = 0.05


@dataclass(slots=True)
class Actor:
    """One node. Its name stays its own; its id is another with each of its lives."""

    name: str
    process: NodeProcess
    network: Network | None = None
    proxy: ProxyThread | None = None
    clock: WallClock | None = None
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def pid(self) -> int:
        """The agent's. Raises UnavailableError where the node does not run."""
        if self.process.pid is None:
            raise UnavailableError(f"node {self.name} does not run")
        return self.process.pid

    def start(self) -> None:
        """Start it, in its network if it has one."""
        if self.network is None:
            self.process.start()
        else:
            self.network.call(self.process.start)


class Troupe:
    """All nodes of one pipeline; `close` in the end."""

    def __init__(
        self,
        scene: Scene,
        watch: LedgerWatch,
        environ: Mapping[str, str],
        directory: Path,
        workers: int,
        app: str = APP,
        ripe_s: float = RIPE_S,
    ) -> None:
        self._scene, self._watch = scene, watch
        self._environ, self._directory = dict(environ), directory
        self._workers, self._app, self._ripe_s = workers, app, ripe_s
        self._numbers = itertools.count()
        self.actors: list[Actor] = []
        # Ids of nodes to which something was done: a verdict on them is no mistake.
        self.struck: set[str] = set()

    def close(self) -> None:
        """End every node, by force: what they do has been judged, and to drain one after the other takes long."""
        for actor in self.actors:
            actor.process.kill()
            actor.stack.close()

    def start(self, *, network: bool = False, proxy: bool = False, clock: bool = False) -> Actor:
        """One more node, not awaited. Raises UnavailableError where it cannot have what it is to have."""
        number = next(self._numbers)
        # Ids go by their names' order, and the first of those who live gives the verdict: the oldest.
        name = f"n{number:04}"
        brokers, environ = ",".join(self._scene.kafka.brokers), self._environ
        with ExitStack() as stack:
            own_network = stack.enter_context(Network()) if network else None
            own_proxy = own_clock = None
            if network or proxy:
                host = own_network.host_address if own_network is not None else "127.0.0.1"
                own_proxy = stack.enter_context(ProxyThread(brokers, host=host, name=f"proxy of {name}", seed=number))
                brokers = own_proxy.bootstrap
            if clock:
                own_clock = stack.enter_context(WallClock(name))
                environ = own_clock.environ(environ)
            arguments = [self._app, "--workers", str(self._workers), "--node-name", name, "--zone", f"z{number % 2}"]
            arguments += ["--max-seconds", str(_NODE_SECONDS_MAX), "--brokers", brokers, "--http", "off"]
            process = NodeProcess(arguments, environ, self._directory / f"{name}.log")
            actor = Actor(name, process, own_network, own_proxy, own_clock, stack.pop_all())
        self.actors.append(actor)
        actor.start()
        return actor

    def remove(self, actor: Actor) -> None:
        """A node that is dead, or is to be: it leaves nothing behind."""
        actor.process.kill()
        actor.stack.close()
        self.actors.remove(actor)

    def drain(self, wait_s: float) -> list[tuple[str, int | None]]:
        """SIGTERM to every node; answers names and exit codes of those that do not end with 0 in time."""
        actors, self.actors = self.actors, []
        for actor in actors:
            os.kill(actor.pid, signal.SIGTERM)
        codes = [(actor.name, actor.process.await_exit(wait_s)) for actor in actors]
        for actor in actors:
            actor.process.kill()
            actor.stack.close()
        return [(name, code) for name, code in codes if code != 0]

    def strike(self, actor: Actor, what: Callable[[int], Strike]) -> Strike:
        """Do something to a node for which it may be found dead."""
        self.note_struck(actor)
        return what(actor.pid)

    def note_struck(self, actor: Actor) -> None:
        """From now on a verdict on this node, in its present life, is no mistake."""
        if (node := self._watch.node_id(actor.name)) is not None:
            self.struck.add(node)

    def kill(self, actor: Actor) -> Strike:
        """SIGKILL to all of a node, which is gone afterwards."""
        strike = self.strike(actor, node_faults.kill)
        self.remove(actor)
        return strike

    def workers_of(self, actor: Actor) -> list[WorkerId]:
        """Its workers that the ledger holds for alive."""
        node = self._watch.node_id(actor.name)
        return [] if node is None else list(self._watch.membership.workers_of(node))

    def shards_of(self, actor: Actor) -> set[int]:
        """What its workers run, by the ledger."""
        node = self._watch.node_id(actor.name)
        return {shard for shard, holder in self._watch.membership.holders.items() if holder.node == node}

    def age_s(self, actor: Actor) -> float:
        """For how long this node, in its present life, has been in the ledger; 0 where it is not."""
        node = self._watch.node_id(actor.name)
        joined = [at for at, record in self._watch.all_of(JoinRecord) if record.node == node]
        if not joined or node not in self._watch.membership.nodes:
            return 0.0
        return time.monotonic() - joined[-1]

    def unsettled(self) -> str | None:
        """Why not every node is up and every shard where it should be; None where all is well."""
        membership = self._watch.membership
        for actor in self.actors:
            if len(self.workers_of(actor)) < self._workers:
                return f"node {actor.name} has {len(self.workers_of(actor))} of {self._workers} workers"
        names = {actor.name for actor in self.actors}
        if strangers := [node.name for node in membership.nodes.values() if node.name not in names]:
            return f"nodes {', '.join(strangers)} are still held for alive"
        shards = membership.facts.shards
        if shards is None or len(membership.holders) < shards:
            return f"{len(membership.holders)} of {shards} shards have an owner"
        return None if membership.holders == membership.planned else "shards are on their way"

    def await_settled(self, wait_s: float = _START_S) -> None:
        """Until all is well. Raises UnavailableError with the reason and a log's end where it is not in time."""
        deadline = time.monotonic() + wait_s
        while (reason := self.unsettled()) is not None:
            for actor in self.actors:
                actor.process.check()
            self._watch.check()
            if time.monotonic() > deadline:
                ends = "\n".join(f"{actor.name}: {actor.process.log_end()}" for actor in self.actors)
                raise UnavailableError(f"after {wait_s:g} s {reason}; the nodes' logs end with:\n{ends}")
            time.sleep(_LOOK_S)

    def await_ripe(self, count: int) -> list[Actor]:
        """Until all is well and so many nodes are judged by their own beats; answers those, the oldest first."""
        while True:
            self.await_settled()
            ripe = sorted(
                (actor for actor in self.actors if self.age_s(actor) >= self._ripe_s), key=lambda actor: actor.name
            )
            if len(ripe) >= min(count, len(self.actors)):
                return ripe
            time.sleep(_LOOK_S)
