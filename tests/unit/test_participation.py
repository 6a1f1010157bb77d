"""Nodes at work on one ledger: they share the shards, take over from the dead, and begin anew after a mistake."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from memory_membership import MemoryMembership, MemoryMembershipLog
from virtual_time import simulated

from millstream.processor.errors import CorruptBatchError, PositionLostError, RefusedError, UnavailableError
from millstream.processor.ledger import CreatedRecord, DeadRecord, LeaveRecord, SnapshotRecord, decode, encode
from millstream.processor.participation import NodePlace, Participation, default_node_name
from millstream.processor.stalled import Stalled
from millstream.processor.timings import Timings
from millstream.processor.together import first_error

# A window that fills in two seconds.
QUICK = Timings(window=40)
SHARDS = 6


class Node:
    """A participation with workers that do as they are told, unless they hang."""

    def __init__(self, cluster: Cluster, name: str, timings: Timings) -> None:
        self.cluster = cluster
        self.log: MemoryMembershipLog = cluster.shared.log()
        self.part = Participation(NodePlace(name=name, timings=timings), self.log, self)
        self.runs: dict[int, set[int]] = {}
        self.incarnations: dict[int, int] = {}
        self.hangs: set[int] = set()
        self.killed: list[int] = []
        self.stalls: list[Stalled] = []
        self.told: list[tuple[int, frozenset[int]]] = []
        self.of_others: frozenset[int] | None = None
        self.has_left = False
        self.running = asyncio.create_task(self.part.run())

    def start(self, workers: int = 1) -> None:
        for worker in range(workers):
            self.ready(worker)

    def ready(self, worker: int) -> None:
        self.incarnations[worker] = self.incarnations.get(worker, 0) + 1
        self.runs[worker] = set()
        self.part.worker_ready(worker, self.incarnations[worker])

    def lose(self, worker: int, stalls: Collection[Stalled] = ()) -> None:
        """The worker's process is gone."""
        self.hangs.discard(worker)
        del self.runs[worker]
        self.part.worker_gone(worker, self.incarnations[worker], "it was ended by SIGKILL", stalls)

    @property
    def all_runs(self) -> set[int]:
        return set().union(*self.runs.values())

    # -- what the membership asks for --

    def own(self, worker: int, incarnation: int, shards: frozenset[int], stalls: Collection[Stalled]) -> None:
        assert incarnation == self.incarnations[worker]
        self.told.append((worker, shards))
        self.stalls = list(stalls)
        self.runs[worker] |= shards
        self.cluster.check_one_owner()
        if worker not in self.hangs:
            for shard in sorted(self.runs[worker] - shards):
                asyncio.get_running_loop().call_later(0.01, self.release, worker, incarnation, shard)

    def release(self, worker: int, incarnation: int, shard: int) -> None:
        if incarnation == self.incarnations[worker] and shard in self.runs.get(worker, ()):
            self.runs[worker].discard(shard)
            self.part.shard_released(worker, shard)

    def overdue(self, worker: int, incarnation: int, shards: Collection[int]) -> None:
        assert incarnation == self.incarnations[worker]
        assert set(shards) <= self.runs[worker]
        self.killed.append(worker)
        self.lose(worker)

    def elsewhere(self, shards: frozenset[int]) -> None:
        self.of_others = shards

    def left(self) -> None:
        self.has_left = True


class Cluster:
    """Nodes on one ledger. `doubtful` are those that cannot know that they were found dead."""

    def __init__(self, timings: Timings) -> None:
        self.shared = MemoryMembership()
        self.shared.store([encode(CreatedRecord(SHARDS))])
        self.nodes: list[Node] = []
        self.doubtful: set[Node] = set()
        self._timings = timings

    def add(self, name: str, *, workers: int = 1) -> Node:
        node = Node(self, name, self._timings)
        self.nodes.append(node)
        node.start(workers)
        return node

    async def kill(self, node: Node) -> None:
        """The node's process is gone, without a word."""
        self.nodes.remove(node)
        await cancelled(node.running)

    def check_one_owner(self) -> None:
        runs = [shard for node in self.nodes if node not in self.doubtful for shard in node.all_runs]
        assert len(runs) == len(set(runs)), f"a shard has two owners: {[node.runs for node in self.nodes]}"

    def is_served(self) -> bool:
        loads = [len(runs) for node in self.nodes for runs in node.runs.values()]
        runs = sorted(shard for node in self.nodes for shard in node.all_runs)
        return runs == list(range(SHARDS)) and max(loads) - min(loads) <= 1

    async def served(self) -> None:
        await until(self.is_served, "every shard is run once")

    def records(self, kind: type) -> list[object]:
        return [record for record in (decode(entry.value) for entry in self.shared.entries) if isinstance(record, kind)]


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


async def until(condition: Callable[[], object], what: str, patience_s: float = 60.0) -> float:
    """Wait for it in virtual time; answers how long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() < began + patience_s, f"never happened: {what}"
        await asyncio.sleep(0.005)
    return loop.time() - began


@asynccontextmanager
async def cluster(nodes: int, *, workers: int = 1, timings: Timings = QUICK) -> AsyncIterator[Cluster]:
    """Nodes that have known each other for a while."""
    made = Cluster(timings)
    try:
        for number in range(nodes):
            made.add(f"n{number}", workers=workers)
        await made.served()
        await asyncio.sleep(3)
        yield made
        for node in made.nodes:
            assert not node.running.done() or node.has_left
    finally:
        for node in made.nodes:
            await cancelled(node.running)
    assert len(asyncio.all_tasks()) == 1, "no task is left"


# -- together ---------------------------------------------------------------------------------------------------------


@simulated
async def test_one_node_runs_everything_and_its_workers_share_it() -> None:
    async with cluster(1, workers=3) as world:
        (node,) = world.nodes
        assert [len(runs) for runs in node.runs.values()] == [2, 2, 2]
        assert node.of_others == frozenset()
        assert [len(shards) for _, shards in node.told] == [2, 2, 2], "all of them were announced at once"


@simulated
async def test_nodes_that_come_get_their_share_and_know_what_others_run() -> None:
    async with cluster(2) as world:
        world.add("late")
        await world.served()
        for node in world.nodes:
            assert node.of_others is not None
            assert node.of_others | node.all_runs == set(range(SHARDS))
        assert world.records(DeadRecord) == []


@simulated
async def test_a_node_that_dies_without_a_word_is_found_and_its_shards_are_run_again() -> None:
    async with cluster(3) as world:
        dead = world.nodes[0]
        await world.kill(dead)
        assert await until(lambda: world.records(DeadRecord), "it is found dead") < 0.5
        assert await until(world.is_served, "its shards are run") < 0.1
        assert len(world.records(DeadRecord)) == 1
        assert all(node.part.declared == 0 for node in world.nodes)


@simulated
async def test_a_worker_that_dies_is_replaced_by_others_at_once_and_its_next_owner_knows_where_it_hung() -> None:
    async with cluster(2) as world:
        first, second = world.nodes
        shard = min(first.runs[0])
        first.lose(0, [Stalled(shard, "score", "in", 0, 10, 20)])
        assert await until(lambda: second.all_runs == set(range(SHARDS)), "the other runs them") < 0.1
        assert second.stalls == [Stalled(shard, "score", "in", 0, 10, 20, attempts=1)]
        first.ready(0)
        await world.served()


@simulated
async def test_a_node_that_ends_in_order_hands_over_and_says_goodbye() -> None:
    async with cluster(3) as world:
        leaving = world.nodes[1]
        leaving.part.depart()
        for worker, runs in leaving.runs.items():
            for shard in sorted(runs):
                leaving.release(worker, 1, shard)
        assert await until(lambda: leaving.has_left, "it has left") < 0.1
        beats = leaving.part.beats_sent
        await world.kill(leaving)
        assert await until(world.is_served, "the others run its shards") < 0.1
        await asyncio.sleep(2)
        assert leaving.part.beats_sent == beats
        assert (world.records(DeadRecord), len(world.records(LeaveRecord))) == ([], 1)


@simulated
async def test_a_node_that_ends_before_it_was_in_needs_no_goodbye() -> None:
    shared = Cluster(QUICK)
    node = Node(shared, "n", QUICK)
    node.log.is_cut = True
    node.part.depart()
    assert node.has_left
    await cancelled(node.running)


# -- mistakes ---------------------------------------------------------------------------------------------------------


async def found_dead_by_mistake(world: Cluster, node: Node) -> str:
    """Cut the node off until the others have its shards. Answers who it was."""
    was = node.part.member.identity.node
    world.doubtful.add(node)
    node.log.is_cut = True
    others = [other for other in world.nodes if other is not node]
    await until(
        lambda: set().union(*(other.all_runs for other in others)) == set(range(SHARDS)), "the others take over"
    )
    node.log.is_cut = False
    return was


@simulated
async def test_a_node_that_was_found_dead_by_mistake_drops_everything_and_joins_as_another() -> None:
    async with cluster(3, workers=2) as world:
        node = world.nodes[0]
        was = await found_dead_by_mistake(world, node)
        told = len(node.told)
        await until(lambda: node.part.declared, "it learns of it")
        assert node.part.member.identity.node != was
        assert [shards for _, shards in node.told[told : told + 2]] == [frozenset(), frozenset()]
        await until(lambda: not node.all_runs, "it drops everything")
        world.doubtful.clear()
        await world.served()
        assert node.part.declared == 1
        assert [getattr(record, "node", None) for record in world.records(DeadRecord)] == [was]


@simulated
async def test_a_worker_that_does_not_drop_what_is_no_longer_its_own_is_to_be_killed() -> None:
    async with cluster(2, workers=2) as world:
        node = world.nodes[0]
        node.hangs.add(1)
        await found_dead_by_mistake(world, node)
        await until(lambda: node.part.declared, "it learns of it")
        assert await until(lambda: node.killed, "the worker is killed") == pytest.approx(
            QUICK.release_timeout_s, abs=0.1
        )
        assert node.killed == [1]
        world.doubtful.clear()
        node.ready(1)
        await world.served()
        assert node.killed == [1]


@simulated
async def test_a_worker_that_still_lets_go_of_something_when_the_node_begins_anew_does_that_first() -> None:
    async with cluster(2) as world:
        node = world.nodes[0]
        node.hangs.add(0)
        world.add("late")
        await until(lambda: node.told[-1][1] < node.runs[0], "the worker is asked for a shard")
        await found_dead_by_mistake(world, node)
        await until(lambda: node.part.declared, "it learns of it")
        for shard in sorted(node.runs[0])[1:]:
            node.release(0, 1, shard)
        await asyncio.sleep(1)
        assert node.told[-1] == (0, frozenset()), "one shard is still on its way out"
        (last,) = node.runs[0]
        node.release(0, 1, last)
        node.hangs.clear()
        world.doubtful.clear()
        await world.served()


@simulated
async def test_a_worker_that_leaves_is_not_announced_in_the_next_life() -> None:
    async with cluster(2, workers=2) as world:
        node = world.nodes[0]
        node.hangs.add(1)
        node.part.worker_leaving(1)
        await found_dead_by_mistake(world, node)
        await until(lambda: node.part.declared, "it learns of it")
        for shard in sorted(node.runs[1]):
            node.release(1, 1, shard)
        world.doubtful.clear()
        del node.runs[1]
        await world.served()
        assert node.told[-1][0] == 0


@simulated
async def test_a_node_that_was_found_dead_while_it_ended_does_not_join_again() -> None:
    async with cluster(2) as world:
        node = world.nodes[0]
        node.hangs.add(0)
        node.part.depart()
        await found_dead_by_mistake(world, node)
        await until(lambda: node.has_left, "it ends")
        assert node.part.declared == 1
        await world.kill(node)
        await world.served()


@simulated
async def test_a_node_that_is_found_dead_again_and_again_always_comes_back() -> None:
    async with cluster(3) as world:
        node = world.nodes[2]
        for times in range(1, 6):
            await found_dead_by_mistake(world, node)
            await until(lambda times=times: node.part.declared == times, "it learns of it")  # type: ignore[misc]
            await until(lambda: not node.all_runs, "it drops everything")
            world.doubtful.clear()
            await world.served()
            await asyncio.sleep(3)


# -- trouble ----------------------------------------------------------------------------------------------------------


@simulated
async def test_a_broker_that_cannot_be_reached_at_first_is_waited_for() -> None:
    world = Cluster(QUICK)
    node = Node(world, "n", QUICK)
    world.nodes.append(node)
    node.log.trouble.fail("connect", UnavailableError("not now"), times=500)
    node.start()
    await world.served()
    await cancelled(node.running)


@pytest.mark.parametrize("step", ["append", "follow", "beat", "beats", "delete"])
@pytest.mark.parametrize("after", [False, True])
@simulated
async def test_a_step_that_fails_for_a_moment_harms_nobody(step: str, *, after: bool) -> None:
    async with cluster(3, timings=replace(QUICK, snapshot_records=4)) as world:
        node = world.nodes[1]
        node.log.trouble.fail(step, UnavailableError("not now"), after=after, times=3)
        world.nodes[0].lose(0)
        node.lose(0)
        world.nodes[0].ready(0)
        node.ready(0)
        await world.served()
        await asyncio.sleep(5)
        assert world.records(DeadRecord) == []


@simulated
async def test_the_ledger_is_kept_short_by_snapshots_and_one_that_joins_reads_on_from_there() -> None:
    async with cluster(2, timings=replace(QUICK, snapshot_records=8)) as world:
        for _ in range(20):
            world.nodes[0].lose(0)
            await asyncio.sleep(0.5)
            world.nodes[0].ready(0)
            await asyncio.sleep(0.5)
        assert world.shared.log_start > 0
        assert len(world.shared.entries) < 40
        world.add("late")
        await world.served()


@simulated
async def test_who_may_not_delete_works_on(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(2, timings=replace(QUICK, snapshot_records=8)) as world:
        for node in world.nodes:
            node.log.trouble.fail("delete", RefusedError("user 'bob' may not delete records"), times=10**6)
        for _ in range(20):
            world.nodes[0].lose(0)
            world.nodes[0].ready(0)
            await asyncio.sleep(0.5)
        await world.served()
        assert len(world.records(SnapshotRecord)) > 1
        assert "user 'bob' may not delete records" in caplog.text


@pytest.mark.parametrize("step", ["connect", "append", "follow", "beat", "beats"])
@simulated
async def test_what_trying_again_cannot_mend_ends_it_with_its_message(step: str) -> None:
    world = Cluster(QUICK)
    node = Node(world, "n", QUICK)
    node.log.trouble.fail(step, RefusedError("the broker refuses user 'bob'"))
    node.start()
    await asyncio.wait({node.running}, timeout=60)
    error = node.running.exception()
    assert error is not None
    assert str(first_error(ExceptionGroup("all", [error]))) == "the broker refuses user 'bob'"  # type: ignore[list-item]
    assert node.log.is_cut, "it lets go of the log"


@simulated
async def test_a_ledger_that_is_damaged_or_not_understood_ends_it() -> None:
    for spoil, text in (
        (
            lambda log: log.trouble.fail("follow", CorruptBatchError("crc", base_offset=3, next_offset=4)),
            "cannot be read: .*crc",
        ),
        (lambda log: log._shared.store([b'{"type":"of-the-future","version":99}']), "record of version 99"),
    ):
        world = Cluster(QUICK)
        node = Node(world, "n", QUICK)
        spoil(node.log)
        node.start()
        await asyncio.wait({node.running}, timeout=60)
        error = node.running.exception()
        assert error is not None
        with pytest.raises(RefusedError, match=text):
            raise first_error(ExceptionGroup("all", [error]))  # type: ignore[list-item]


@simulated
async def test_a_place_in_the_ledger_that_is_lost_is_found_again() -> None:
    async with cluster(2) as world:
        world.nodes[0].log.trouble.fail("follow", PositionLostError("not there"), times=3)
        world.nodes[1].lose(0)
        await until(lambda: world.nodes[0].all_runs == set(range(SHARDS)), "the news is read")
        assert world.nodes[0].part.declared == 0


@simulated
async def test_when_the_ledger_is_made_anew_every_node_joins_it_again_and_all_is_served() -> None:
    async with cluster(3) as world:
        world.doubtful.update(world.nodes)
        world.shared.make_anew()
        world.shared.store([encode(CreatedRecord(SHARDS))])
        await asyncio.sleep(15)
        world.doubtful.clear()
        await world.served()
        world.check_one_owner()


@simulated
async def test_an_outage_of_the_ledger_leaves_no_heap_of_work_behind() -> None:
    async with cluster(2, timings=replace(QUICK, snapshot_records=4, ledger_wait_s=1e6)) as world:
        tasks = len(asyncio.all_tasks())
        for node in world.nodes:
            node.log.trouble.fail("append", UnavailableError("not now"), times=10**6)
        world.nodes[0].lose(0)
        for _ in range(12):
            await asyncio.sleep(5)
            assert len(asyncio.all_tasks()) <= tasks + 4
            assert all(len(node.part._appends) <= 3 for node in world.nodes)
        for node in world.nodes:
            node.log.trouble._faults.clear()
        assert await until(lambda: world.nodes[1].all_runs == set(range(SHARDS)), "the news comes through") < 2


@simulated
async def test_beats_that_get_no_answer_never_pile_up() -> None:
    async with cluster(1) as world:
        (node,) = world.nodes
        tasks = len(asyncio.all_tasks())
        node.log.trouble.hold("beat")
        for _ in range(100):
            await asyncio.sleep(1)
            assert len(asyncio.all_tasks()) <= tasks + 10
        node.log.trouble.let_go("beat")
        await asyncio.sleep(5)
        assert len(asyncio.all_tasks()) <= tasks + 2
        assert node.part.member.doubt(asyncio.get_running_loop().time()) is None


@simulated
async def test_a_record_that_is_out_of_date_when_its_turn_comes_is_not_stored() -> None:
    async with cluster(3) as world:
        blocked = world.nodes[1]
        blocked.log.trouble.hold("append")
        blocked.lose(0)
        await world.kill(world.nodes[2])
        await until(lambda: world.records(DeadRecord), "the other one says it")
        await asyncio.sleep(10)
        blocked.log.trouble.let_go("append")
        await asyncio.sleep(5)
        assert len(world.records(DeadRecord)) == 1


@pytest.mark.parametrize("round_", range(6))
@simulated
async def test_whatever_happens_in_the_end_every_shard_is_run_once(round_: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed} of round {round_}")
    dice = random.Random(seed)
    async with cluster(3, workers=2, timings=replace(QUICK, snapshot_records=30)) as world:
        world.doubtful.update(world.nodes)
        for node in world.nodes:
            node.log.trouble.rng = random.Random(dice.random())
            node.log.trouble.chance = dict.fromkeys(("append", "follow", "beat", "beats", "delete"), 0.1)
        for number in range(25):
            await misfortune(world, dice, number)
            await asyncio.sleep(dice.choice([0.01, 0.2, 2.0]))
        for node in world.nodes:
            node.log.trouble.chance = {}
            node.log.is_cut = False
            for worker in (0, 1):
                if worker not in node.runs:
                    node.ready(worker)
        await asyncio.sleep(15)
        await world.served()


async def misfortune(world: Cluster, dice: random.Random, number: int) -> None:
    node = dice.choice(world.nodes)
    match dice.choice(["cut", "heal", "heal", "lose", "ready", "ready", "kill", "add"]):
        case "cut":
            node.log.is_cut = True
        case "heal":
            node.log.is_cut = False
        case "lose" if node.runs:
            node.lose(dice.choice(sorted(node.runs)))
        case "ready":
            for worker in {0, 1} - node.runs.keys():
                node.ready(worker)
        case "kill" if len(world.nodes) > 1:
            await world.kill(node)
        case "add" if len(world.nodes) < 5:
            world.doubtful.add(world.add(f"m{number}", workers=2))


# -- names ------------------------------------------------------------------------------------------------------------


def test_two_nodes_of_one_name_are_two_nodes() -> None:
    place = NodePlace(name="n", zone="a", labels=("gpu",))
    first, second = place.identity(), place.identity()
    assert first.node != second.node
    assert first.node.startswith("n-")
    assert (first.name, first.zone, first.labels) == ("n", "a", ("gpu",))


@pytest.mark.parametrize(
    ("host", "name"), [("web-1.example.org", "web-1.example.org"), ("w 1/ä", "w-1--"), ("", "node")]
)
def test_the_machines_name_is_made_fit(host: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert default_node_name() == name
