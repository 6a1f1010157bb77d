"""Nodes with real agents' membership and pretended workers, many to a process or one to each.

    python -m millstream.loadgen.pretended_nodes <descriptor of a datagram socket>

Each line on its standard input is a `Herd` (JSON): a process with these nodes is forked, which costs a few milliseconds
where starting an interpreter costs a good part of a second, and a second of CPU is what these measurements are about.
Every process says about once a second what it has used and seen (`ProcessReport`), through the socket. When the input
ends, all of them are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import msgspec

from millstream.connectors.kafka.membership_log import KafkaMembershipLog
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.socket_bytes import SocketBytes, socket_bytes
from millstream.processor.beats import decode_beat
from millstream.processor.event_loop import new_event_loop
from millstream.processor.ledger import Stalled
from millstream.processor.member import Member
from millstream.processor.membership_log import BeatsPage, MembershipLog
from millstream.processor.names import Names
from millstream.processor.participation import NodePlace, Participation
from millstream.processor.precedence import take_precedence
from millstream.processor.timings import Timings

REPORT_S: Final = 1.0
_WORKER: Final = 0
_INCARNATION: Final = 1


class Herd(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of one process. A `witness` also notes when beats arrive, and is left out where costs are counted."""

    pipeline: str
    names: list[str]
    brokers: list[str]
    timings: Timings
    is_witness: bool = False


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `agreement` is the same for two nodes only where their memberships are the same."""

    name: str
    node: str
    phase: str
    declared: int
    beats_sent: int
    members: int
    next_offset: int
    agreement: int


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """One process: what it has used since its start, without what these reports cost, and what it sees now.

    `gaps_ms` and `visible_ms` count, for a witness, the times between two beats of another node and from sending an
    own beat to reading it, in whole milliseconds, rounded up, since the last report.
    """

    pid: int
    at_s: float
    cpu_s: float
    traffic: SocketBytes
    nodes: list[NodeReport]
    is_witness: bool
    gaps_ms: dict[int, int]
    visible_ms: dict[int, int]


class PretendedWorkers:
    """One worker that lets go of a shard as soon as it is told to. Implements `participation.Workers`."""

    def __init__(self) -> None:
        self.part: Participation | None = None
        self._owned: frozenset[int] = frozenset()

    def own(self, worker: int, incarnation: int, shards: frozenset[int], stalls: Collection[Stalled]) -> None:
        """Run these shards and no others."""
        del incarnation, stalls
        assert self.part is not None
        loop = asyncio.get_running_loop()
        for shard in sorted(self._owned - shards):
            loop.call_soon(self.part.shard_released, worker, shard)
        self._owned = shards

    def overdue(self, worker: int, incarnation: int, shards: Collection[int]) -> None:
        """It never is: it lets go at once."""

    def elsewhere(self, shards: frozenset[int]) -> None:
        """Nobody asks."""

    def left(self) -> None:
        """It never leaves in order."""


class WitnessLog:
    """Hands everything on to a log and notes when beats arrive."""

    def __init__(self, log: MembershipLog) -> None:
        self._log = log
        self._sent: dict[bytes, float] = {}
        self._last: dict[str, float] = {}
        self.gaps_ms: Counter[int] = Counter()
        self.visible_ms: Counter[int] = Counter()
        self.connect, self.follow, self.append = log.connect, log.follow, log.append
        self.delete_before, self.close = log.delete_before, log.close

    async def send_beat(self, value: bytes) -> None:
        """Note when it was sent."""
        self._sent[value] = time.monotonic()
        await self._log.send_beat(value)

    async def read_beats(self) -> BeatsPage:
        """Note what has arrived."""
        page = await self._log.read_beats()
        now = time.monotonic()
        for value in page.values:
            if (sent := self._sent.pop(value, None)) is not None:
                self.visible_ms[_ms(now - sent)] += 1
            elif (beat := decode_beat(value)) is not None:
                before = self._last.get(beat.node)
                self._last[beat.node] = now
                if before is not None:
                    self.gaps_ms[_ms(now - before)] += 1
        return page


def _ms(seconds: float) -> int:
    return int(seconds * 1000) + 1


@dataclass(slots=True)
class _Node:
    name: str
    part: Participation
    witness: WitnessLog | None


def _make(herd: Herd, name: str) -> _Node:
    names = Names.of(herd.pipeline)
    log = KafkaMembershipLog(KafkaSettings(brokers=tuple(herd.brokers)), ledger=names.ledger, beats=names.beats)
    witness = WitnessLog(log) if herd.is_witness else None
    workers = PretendedWorkers()
    part = workers.part = Participation(NodePlace(name=name, timings=herd.timings), witness or log, workers)
    part.worker_ready(_WORKER, _INCARNATION)
    return _Node(name, part, witness)


def agreement(member: Member) -> int:
    """A number that two nodes share where they see the same membership at the same place in the ledger."""
    membership = member.membership
    seen = (membership.nodes, membership.workers, membership.planned, membership.holders)
    parts = [sorted((str(key), str(value)) for key, value in table.items()) for table in seen]
    return crc32(repr((membership.next_offset, parts)).encode())


class _Reporter:
    """Says once a second what a process has used and seen."""

    def __init__(self, herd: Herd, nodes: Sequence[_Node], way: socket.socket) -> None:
        self._herd = herd
        self._nodes = nodes
        self._way = way
        self._spent_s = 0.0
        # A fold that has not changed gives the same number: with a hundred nodes that is worth remembering.
        self._agreements: dict[str, tuple[object, int]] = {}

    async def run(self, parent: int) -> None:
        while True:
            began = time.process_time()
            report = self._report(began)
            # Where nobody reads, or not fast enough, a report is left out: the next one says the same and more.
            with contextlib.suppress(BlockingIOError):
                self._way.send(msgspec.json.encode(report))
            self._spent_s += time.process_time() - began
            await asyncio.sleep(REPORT_S)
            if os.getppid() != parent:
                return

    def _report(self, cpu_s: float) -> ProcessReport:
        gaps_ms: Counter[int] = Counter()
        visible_ms: Counter[int] = Counter()
        for node in self._nodes:
            if node.witness is not None:
                gaps_ms += node.witness.gaps_ms
                visible_ms += node.witness.visible_ms
                node.witness.gaps_ms.clear()
                node.witness.visible_ms.clear()
        return ProcessReport(
            pid=os.getpid(),
            at_s=time.monotonic(),
            cpu_s=cpu_s - self._spent_s,
            traffic=socket_bytes(),
            nodes=[self._node(node) for node in self._nodes],
            is_witness=self._herd.is_witness,
            gaps_ms=dict(gaps_ms),
            visible_ms=dict(visible_ms),
        )

    def _node(self, node: _Node) -> NodeReport:
        member = node.part.member
        seen, number = self._agreements.get(node.name, (None, 0))
        if seen is not member.membership:
            number = agreement(member)
            self._agreements[node.name] = (member.membership, number)
        return NodeReport(
            name=node.name,
            node=member.identity.node,
            phase=member.phase,
            declared=node.part.declared,
            beats_sent=node.part.beats_sent,
            members=len(member.membership.nodes),
            next_offset=member.membership.next_offset,
            agreement=number,
        )


async def _live(herd: Herd, way: socket.socket, parent: int) -> None:
    nodes = [_make(herd, name) for name in herd.names]
    reporting = asyncio.create_task(_Reporter(herd, nodes, way).run(parent))
    living = [asyncio.create_task(node.part.run()) for node in nodes]
    done, _ = await asyncio.wait([reporting, *living], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        # A node ends by itself only where it cannot go on, and the reporter only where nobody wants to know.
        task.result()


def _fork(herd: Herd, way: socket.socket) -> None:
    parent = os.getpid()
    if os.fork():
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Not closed: libuv aborts where a connection gets the number of a standard stream.
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    if len(herd.names) == 1:
        # As the agent that it stands for. Many in one process want more of a core than the broker could do without.
        take_precedence()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_live(herd, way, parent))
    except BaseException as error:
        print(f"pretended nodes: {error!r}", file=sys.stderr, flush=True)
    finally:
        # Whoever asked for these nodes cannot go on without them, and sees it by the end of the process that forks.
        os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Fork what is asked for until nobody asks any more."""
    logging.basicConfig(level=logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The kernel reaps whoever was killed.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    way = socket.socket(fileno=int(sys.argv[1]))
    way.setblocking(False)
    os.setpgid(0, 0)
    decoder = msgspec.json.Decoder(Herd)
    while line := sys.stdin.buffer.readline():
        _fork(decoder.decode(line), way)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
