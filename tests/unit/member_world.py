"""Several nodes' members on one ledger in memory, in virtual time, with whatever can go wrong between them.

The scheduler is seeded: the same seed gives the same run. Each node has a loop, which a pause stops: what happens in
the meantime is found by it afterwards, in order, as a process finds it after SIGCONT.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from millstream.processor.beats import decode_beat, encode_beat
from millstream.processor.ledger import CreatedRecord, DeadRecord, LedgerRecord, decode, encode
from millstream.processor.member import Member, NodeIdentity
from millstream.processor.member_actions import Append, Declared, MemberAction, Overdue, Own, Snapshot
from millstream.processor.membership import Membership
from millstream.processor.membership_log import Entry, LedgerPage
from millstream.processor.timings import Timings


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How long things take, in seconds at most, and how often a request is lost.

    `beat_jitter_s` is how much later than due a loop comes to it, `way_s` how long a request or an answer is under way,
    `release_s` how long a worker takes to let go of a shard. `loss` is the part of appends that fail, half of them
    after they were stored, `beat_loss` that of beats. A page has `page` records at most.
    """

    beat_jitter_s: float = 0.003
    way_s: float = 0.004
    release_s: float = 0.02
    loss: float = 0.0
    beat_loss: float = 0.0
    page: int = 1000


@dataclass
class SimWorker:
    """A worker's process: runs what it is told, and lets go of the rest after a while."""

    incarnation: int
    wanted: frozenset[int] = frozenset()
    runs: set[int] = field(default_factory=set)
    hangs: bool = False


class SimNode:
    """One life of one node: an agent with its loop, its way to the broker, and its workers."""

    def __init__(self, world: World, node: str, name: str, zone: str) -> None:
        self.world = world
        self.node = node
        self.name = name
        self.member = Member(NodeIdentity(node=node, name=name, zone=zone), world.timings)
        self.workers: dict[int, SimWorker] = {}
        self.alive = True
        self.awake_at = 0.0
        self.connected_at = 0.0
        self.disturbed_at: float | None = None
        self.declared_at: float | None = None
        self.seq = 0
        self.beats_read = len(world.beats)
        self.ledger_read = 0
        self.is_following = False
        self.can_follow = True
        self.is_listening = False
        self.tick_due: float | None = None

    @property
    def is_well(self) -> bool:
        """Whether it runs, and can hear and be heard."""
        return self.alive and self.world.now >= max(self.awake_at, self.connected_at)

    @property
    def is_up_to_date(self) -> bool:
        """Whether it has been well for long enough to have heard of everything."""
        return self.alive and self.can_follow and self.world.now > max(self.awake_at, self.connected_at) + 0.5

    # -- its loop -----------------------------------------------------------------------------------------------

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Run `what` in this node's loop, at `when` or as soon after that as it is awake."""

        def run() -> None:
            if not self.alive:
                return
            if self.world.now < self.awake_at:
                self.world.at(self.awake_at, run)
                return
            what()

        self.world.at(when, run)

    def start(self) -> None:
        self.tick(self.world.now)
        self.poll()
        self.listen()
        self.send_beat()

    def tick(self, due: float) -> None:
        if self.tick_due is not None and due != self.tick_due:
            return
        now = self.world.now
        self.tick_due = None
        self.perform(self.member.tick(now, now - due))

    def drain(self, timeout_s: float) -> None:
        """What an agent does when it is told to end: workers that hang are killed in the end."""

        def cut_short() -> None:
            for worker, it in list(self.workers.items()):
                self.kill_worker(worker, it.incarnation)

        self.perform(self.member.drain(self.world.now))
        self.at(self.world.now + timeout_s, cut_short)

    def plan_tick(self) -> None:
        due = self.member.next_deadline()
        if due is None or (self.tick_due is not None and self.tick_due <= due):
            return
        self.tick_due = due
        self.at(max(due, self.world.now) + self.world.jitter(), lambda: self.tick(due))

    def perform(self, actions: Iterable[MemberAction]) -> None:
        for action in actions:
            match action:
                case Append(records, until):
                    self.append(records, until)
                case Own():
                    self.own(action)
                case Overdue(worker, incarnation, _):
                    self.kill_worker(worker, incarnation)
                case Snapshot(record):
                    self.append(
                        [record], self.world.now + 1.0, then=lambda through=record.through: self.delete(through)
                    )
                case Declared():
                    self.declared_at = self.world.now
                    self.workers.clear()
        if self.member.has_left:
            self.workers.clear()
        self.plan_tick()

    # -- its way to the broker ----------------------------------------------------------------------------------

    def send_beat(self) -> None:
        if self.member.may_beat(self.world.now):
            self.beat()
        due = self.world.now + self.world.timings.beat_interval_s
        if not self.member.has_left and not self.member.is_declared:
            self.at(due + self.world.jitter(), self.send_beat)

    def beat(self) -> None:
        seq, self.seq = self.seq, self.seq + 1
        self.member.beat_sent(self.world.now, seq)
        if self.world.random.random() >= self.world.weather.beat_loss:
            self.at_broker(lambda: self.world.take_beat(encode_beat(self.node, seq)))

    def at_broker(self, what: Callable[[], None]) -> None:
        """Have a request reach the broker; it is held up while the broker or the way to it is away."""
        arrival = max(self.world.now, self.connected_at) + self.world.way()

        def run() -> None:
            if self.world.now < self.connected_at and not self.alive:
                return
            if (until := max(self.world.broker_at, self.connected_at)) > self.world.now:
                self.world.at(until + self.world.way(), run)
                return
            what()

        self.world.at(arrival, run)

    def append(self, records: Iterable[LedgerRecord], until: float, then: Callable[[], None] = lambda: None) -> None:
        values = [encode(record) for record in records]
        world = self.world
        is_lost = world.random.random() < world.weather.loss
        is_stored = not is_lost or world.random.random() < 0.5

        def arrived() -> None:
            if is_stored:
                world.take_records(values)
            if not is_lost:
                then()
            elif world.now + 0.1 < until:
                self.at(world.now + 0.1, lambda: self.append(list(map(decode, values)), until, then))

        self.at_broker(arrived)

    def delete(self, through: int) -> None:
        self.world.log_start = max(self.world.log_start, through + 1)

    def listen(self) -> None:
        """Read beats when there are some; one read at a time."""
        if self.is_listening or self.beats_read >= len(self.world.beats):
            return
        self.is_listening = True

        def answered() -> None:
            self.is_listening = False
            page = self.world.beats[self.beats_read : self.beats_read + self.world.weather.page]
            self.beats_read += len(page)
            beats = [beat for value in page if (beat := decode_beat(value)) is not None]
            is_behind = self.beats_read < len(self.world.beats)
            self.perform(self.member.beats(self.world.now, beats, is_behind=is_behind))
            self.listen()

        self.answer(answered)

    def poll(self) -> None:
        """A read of the ledger that has nothing new is answered after a while."""
        if self.can_follow:
            self.follow()
        self.at(self.world.now + 0.5, self.poll)

    def follow(self) -> None:
        """Read the ledger when there is something new; one read at a time."""
        if self.is_following or not self.can_follow:
            return
        self.is_following = True

        def answered() -> None:
            self.is_following = False
            start = max(self.ledger_read, self.world.log_start)
            entries = [
                Entry(start + i, value)
                for i, value in enumerate(self.world.records[start : start + self.world.weather.page])
            ]
            self.ledger_read = start + len(entries)
            page = LedgerPage(entries, self.ledger_read, self.world.log_start, len(self.world.records))
            self.perform(self.member.ledger(self.world.now, page))
            self.world.compare(self.member.membership)
            if not page.caught_up:
                self.follow()

        self.answer(answered)

    def answer(self, what: Callable[[], None]) -> None:
        def run() -> None:
            if (until := max(self.world.broker_at, self.connected_at)) > self.world.now:
                self.at(until + self.world.way(), run)
                return
            what()

        self.at(max(self.world.now, self.connected_at, self.world.broker_at) + self.world.way(), run)

    # -- its workers --------------------------------------------------------------------------------------------

    def start_worker(self, worker: int, incarnation: int = 1) -> None:
        self.workers[worker] = SimWorker(incarnation)
        self.perform(self.member.worker_ready(self.world.now, worker, incarnation))

    def kill_worker(self, worker: int, incarnation: int) -> None:
        current = self.workers.get(worker)
        if current is None or current.incarnation != incarnation:
            return
        del self.workers[worker]
        self.perform(self.member.worker_gone(self.world.now, worker, incarnation, "it was killed"))
        if self.member.phase != "leaving":
            self.at(self.world.now + 0.1, lambda: self.start_worker(worker, incarnation + 1))

    def own(self, own: Own) -> None:
        worker = self.workers.get(own.worker)
        if worker is None or worker.incarnation != own.incarnation:
            return
        assert not (own.shards - worker.wanted) & (worker.runs - worker.wanted), "told to run what is being released"
        worker.wanted = own.shards
        worker.runs |= own.shards
        self.world.check_single_runner(own.shards)
        for shard in sorted(worker.runs - own.shards):
            self.at(
                self.world.now + self.world.random.uniform(0, self.world.weather.release_s), self.let_go(own, shard)
            )

    def let_go(self, own: Own, shard: int) -> Callable[[], None]:
        def run() -> None:
            worker = self.workers.get(own.worker)
            if worker is None or worker.incarnation != own.incarnation or worker.hangs or shard not in worker.runs:
                return
            worker.runs.discard(shard)
            self.perform(self.member.shard_released(self.world.now, own.worker, shard))

        return run


class World:
    """A broker, a clock, nodes, and what is to be true of all of them."""

    def __init__(self, seed: int, *, shards: int = 6, timings: Timings | None = None, weather: Weather | None = None):
        self.random = random.Random(seed)
        self.timings = timings or Timings()
        self.weather = weather or Weather()
        self.now = 1000.0
        self.beats: list[bytes] = []
        self.records: list[bytes] = [encode(CreatedRecord(shards))]
        self.log_start = 0
        self.broker_at = 0.0
        self.nodes: list[SimNode] = []
        self.verdicts: list[tuple[float, DeadRecord]] = []
        self._seen: dict[int, Membership] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    # -- time ---------------------------------------------------------------------------------------------------

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(when, self.now), next(self._count), what))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let so much time pass, or less if `until` comes true."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end and not until():
            self.now, _, what = heapq.heappop(self._queue)
            what()
        if not until():
            self.now = end

    def jitter(self) -> float:
        return self.random.uniform(0, self.weather.beat_jitter_s)

    def way(self) -> float:
        return self.random.uniform(0.0005, self.weather.way_s)

    # -- the broker ---------------------------------------------------------------------------------------------

    def take_beat(self, value: bytes) -> None:
        self.beats.append(value)
        for node in self.nodes:
            node.listen()

    def take_records(self, values: list[bytes]) -> None:
        for value in values:
            record = decode(value)
            if isinstance(record, DeadRecord):
                self.verdicts.append((self.now, record))
        self.records += values
        for node in self.nodes:
            node.follow()

    # -- faults -------------------------------------------------------------------------------------------------

    def start(self, name: str, *, workers: int = 1, zone: str = "") -> SimNode:
        lives = sum(node.name == name for node in self.nodes)
        node = SimNode(self, f"{name}-{lives}", name, zone)
        self.nodes.append(node)
        node.start()
        for worker in range(workers):
            node.start_worker(worker)
        return node

    def kill(self, node: SimNode) -> None:
        node.alive = False
        node.disturbed_at = self.now
        node.workers.clear()

    def pause(self, node: SimNode, seconds: float) -> None:
        node.awake_at = max(node.awake_at, self.now + seconds)
        node.disturbed_at = self.now

    def cut(self, node: SimNode, seconds: float) -> None:
        node.connected_at = max(node.connected_at, self.now + seconds)
        node.disturbed_at = self.now

    def stop_broker(self, seconds: float) -> None:
        self.broker_at = self.now + seconds

    # -- what must be true --------------------------------------------------------------------------------------

    def compare(self, membership: Membership) -> None:
        """Whoever has read as much of the ledger believes the same."""
        known = self._seen.setdefault(membership.next_offset, membership)
        assert known == membership, f"two nodes disagree at offset {membership.next_offset}"

    def check_single_runner(self, shards: Iterable[int]) -> None:
        """No two workers run one shard, unless a node is not well: that one may not have heard yet."""
        runners = defaultdict(list)
        for node in self.nodes:
            if node.is_up_to_date:
                for number, worker in node.workers.items():
                    for shard in worker.runs if not worker.hangs else ():
                        runners[shard].append((node.node, number))
        twice = {shard: runners[shard] for shard in shards if len(runners[shard]) > 1}
        assert not twice, f"two workers run one shard: {twice}"

    def running(self) -> dict[int, list[str]]:
        """Who runs each shard, among the nodes that are well."""
        runners: dict[int, list[str]] = {}
        for node in self.nodes:
            if node.is_well:
                for number, worker in sorted(node.workers.items()):
                    for shard in sorted(worker.runs):
                        runners.setdefault(shard, []).append(f"{node.node}/{number}")
        return runners

    def check_all_run(self, shards: int = 6) -> None:
        runners = self.running()
        assert {shard: len(theirs) for shard, theirs in runners.items()} == dict.fromkeys(range(shards), 1), runners

    def appended(self, kind: type[LedgerRecord]) -> list[LedgerRecord]:
        return [record for record in map(decode, self.records) if isinstance(record, kind)]

    def dead(self) -> list[str]:
        """The nodes that verdicts are about, in the log's order, with repetitions."""
        return [record.node for _, record in self.verdicts]
