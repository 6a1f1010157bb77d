"""Several nodes together: they agree, every shard runs once and soon again, and nobody well is found dead."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from member_world import SimNode, Weather, World

from millstream.processor.ledger import DeadRecord, LeaveRecord, ReleasedRecord, SeizedRecord, SnapshotRecord
from millstream.processor.timings import Timings, check_timings

# A window that fills in two seconds; all else is as it is by default.
QUICK = Timings(window=40)
SEEDS = st.integers(0, 2**32)


def settled(seed: int, count: int, *, workers: int = 1, weather: Weather | None = None) -> tuple[World, list[SimNode]]:
    """Nodes that have known each other for a while."""
    world = World(seed, timings=QUICK, weather=weather)
    nodes = [world.start(f"n{number}", workers=workers) for number in range(count)]
    world.run(5)
    world.check_all_run()
    assert world.dead() == []
    return world, nodes


def until_dead(world: World, node: SimNode) -> float:
    """Seconds until the verdict on the node is in the ledger."""
    began = world.now
    world.run(3, until=lambda: node.node in world.dead())
    assert node.node in world.dead(), f"{node.node} was not found dead"
    return world.now - began


@pytest.mark.parametrize("count", [2, 3, 7])
def test_a_killed_node_is_found_dead_once_and_its_shards_run_again(count: int) -> None:
    world, nodes = settled(1, count)
    world.kill(nodes[-1])
    assert until_dead(world, nodes[-1]) < 0.35
    world.run(0.05)
    world.check_all_run()
    world.run(2)
    assert world.dead() == [nodes[-1].node], "one death, one verdict"


def test_the_first_node_in_order_dies_too() -> None:
    world, nodes = settled(2, 3)
    world.kill(nodes[0])
    assert until_dead(world, nodes[0]) < 0.35
    assert [record.by for _, record in world.verdicts] == [nodes[1].node]


def test_a_death_that_the_first_judge_cannot_tell_is_told_by_the_next() -> None:
    world, nodes = settled(3, 5)
    world.kill(nodes[3])
    world.run(0.1)
    world.pause(nodes[0], 0.6)
    assert until_dead(world, nodes[3]) < 0.37
    assert world.verdicts[0][1].by == nodes[1].node


@given(seed=SEEDS)
@settings(max_examples=12, deadline=None)
def test_most_of_the_nodes_die_together(seed: int) -> None:
    world, nodes = settled(seed, 3)
    for node in nodes[1:]:
        world.kill(node)
    until_dead(world, nodes[1])
    until_dead(world, nodes[2])
    world.run(0.1)
    world.check_all_run()
    assert sorted(world.dead()) == [nodes[1].node, nodes[2].node]


# How far down the detector can go where beats are as calm as here.
LOW = Timings(window=40, own_beats=2, beat_wait_s=0.1, silence_min_s=0.16, deviation_min_s=0.01)


@pytest.mark.parametrize(("timings", "at_most"), [(QUICK, 0.29), (LOW, 0.2)])
def test_detection_times_with_calm_beats(timings: Timings, at_most: float) -> None:
    check_timings(timings, commit_timeout_s=10, transaction_timeout_s=30)
    world = World(4, timings=timings)
    nodes = [world.start(f"n{number}") for number in range(3)]
    times = []
    for _ in range(60):
        victim = world.random.choice(nodes)
        world.run(world.random.uniform(3, 3.1))
        world.kill(victim)
        times.append(until_dead(world, victim))
        nodes.remove(victim)
        nodes.append(world.start(victim.name))
    cuts = statistics.quantiles(times, n=100)
    print(f"detection: p50 {cuts[49] * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms, max {max(times) * 1000:.0f} ms")
    assert len(world.dead()) == 60
    assert timings.silence_min_s - 2 * timings.beat_interval_s < cuts[49] < at_most
    assert max(times) < at_most + 0.06


@given(seed=SEEDS, seconds=st.floats(0.0, 0.15), count=st.integers(2, 5))
@settings(max_examples=12, deadline=None)
def test_a_short_freeze_is_no_death(seed: int, seconds: float, count: int) -> None:
    world, nodes = settled(seed, count)
    world.pause(nodes[seed % count], seconds)
    world.run(3)
    assert world.dead() == []
    world.check_all_run()


@given(seed=SEEDS, seconds=st.sampled_from([0.6, 5.0, 90.0]), count=st.integers(2, 4))
@settings(max_examples=12, deadline=None)
def test_a_long_freeze_is_a_death_and_who_wakes_harms_nobody(seed: int, seconds: float, count: int) -> None:
    world, nodes = settled(seed, count)
    frozen = nodes[seed % count]
    world.pause(frozen, seconds)
    world.run(seconds)
    others = [it.node for it in world.nodes if it is not frozen]
    assert world.dead() == [frozen.node]
    world.run(3)
    assert frozen.declared_at is not None
    assert world.dead() == [frozen.node], f"it found {others} dead when it woke"
    world.check_all_run()


@given(seed=SEEDS, count=st.integers(2, 4))
@settings(max_examples=12, deadline=None)
def test_a_frozen_judge_takes_nobody_for_dead(seed: int, count: int) -> None:
    """It alone is asleep, for less than its own death takes, again and again."""
    world, nodes = settled(seed, count)
    for _ in range(20):
        world.pause(nodes[0], world.random.uniform(0.05, 0.18))
        world.run(world.random.uniform(0.2, 0.6))
    assert world.dead() == []


@given(seed=SEEDS, count=st.integers(2, 5))
@settings(max_examples=12, deadline=None)
def test_all_nodes_frozen_together_wake_without_a_verdict(seed: int, count: int) -> None:
    """A machine that sleeps, or a clock that jumps."""
    world, nodes = settled(seed, count)
    for node in nodes:
        world.pause(node, 3.0 + world.random.uniform(0, 0.3))
    world.run(8)
    assert world.dead() == []
    world.check_all_run()


@given(seed=SEEDS, seconds=st.floats(0.05, 20), count=st.integers(2, 6))
@settings(max_examples=25, deadline=None)
def test_a_broker_that_is_away_is_nobodys_death(seed: int, seconds: float, count: int) -> None:
    world, nodes = settled(seed, count)
    world.stop_broker(seconds)
    # Each finds its way back in its own time: up to 30 ms after a hiccup, up to half a second after an absence.
    for node in nodes:
        world.at(world.now + 0.001, lambda node=node: back(world, node, seconds))  # type: ignore[misc]
    world.run(seconds + 5)
    assert world.dead() == []
    world.check_all_run()


def back(world: World, node: SimNode, seconds: float) -> None:
    node.connected_at = world.now + seconds + world.random.uniform(0, 0.5 if seconds > 0.5 else 0.03)


@given(seed=SEEDS, seconds=st.floats(0.6, 10), count=st.integers(2, 4))
@settings(max_examples=12, deadline=None)
def test_a_node_that_is_cut_off_says_so_and_keeps_its_shards_until_it_knows(
    seed: int, seconds: float, count: int
) -> None:
    world, nodes = settled(seed, count)
    lonely = nodes[seed % count]
    world.cut(lonely, seconds)
    assert lonely.member.doubt(world.now) is None
    assert until_dead(world, lonely) < 0.35
    world.run(0.2)
    assert "no beat of this node has come back" in (lonely.member.doubt(world.now) or "")
    assert lonely.declared_at is None
    assert any(worker.runs for worker in lonely.workers.values()), "Kafka's fence decides, not a guess"
    world.run(seconds + 3)
    assert lonely.declared_at is not None
    assert world.dead() == [lonely.node]
    world.check_all_run()


def test_a_node_that_is_cut_off_from_the_ledger_alone_falls_silent_and_is_replaced() -> None:
    world, nodes = settled(12, 3)
    nodes[1].can_follow = False
    world.run(4)
    assert world.dead() == [], "for a while it does its work"
    world.run(2)
    assert world.dead() == [nodes[1].node]
    nodes[1].can_follow = True
    world.run(1)
    assert nodes[1].declared_at is not None
    world.check_all_run()


def test_who_is_heard_after_its_death_is_counted() -> None:
    world, nodes = settled(13, 3)
    world.cut(nodes[2], 0.6)
    world.run(3)
    world.kill(nodes[1])
    world.run(3)
    assert world.dead() == [nodes[2].node, nodes[1].node]
    assert nodes[0].member.revenants == 1


def test_a_new_life_of_a_dead_node_is_unharmed() -> None:
    world, nodes = settled(5, 2)
    world.kill(nodes[1])
    world.run(0.05)
    again = world.start("n1")
    world.run(3)
    assert world.dead() == [nodes[1].node]
    assert again.member.phase == "in"
    world.check_all_run()
    assert {runner.split("/")[0] for theirs in world.running().values() for runner in theirs} == {"n0-0", "n1-1"}


@pytest.mark.parametrize("count", [1, 3])
def test_after_everything_has_died_the_first_one_back_buries_the_rest(count: int) -> None:
    world, nodes = settled(6, count)
    for node in nodes:
        world.kill(node)
    world.run(60)
    world.start("again")
    world.run(2)
    assert sorted(world.dead()) == [node.node for node in nodes]
    world.check_all_run()


def test_a_drained_node_hands_over_shard_by_shard_and_leaves() -> None:
    world, nodes = settled(7, 3, workers=2)
    held = {shard for worker in nodes[1].workers.values() for shard in worker.runs}
    assert held
    nodes[1].perform(nodes[1].member.drain(world.now))
    world.run(1)
    assert nodes[1].member.has_left
    assert {record.shard for record in world.appended(ReleasedRecord) if record.node == nodes[1].node} >= held
    assert [record.node for record in world.appended(LeaveRecord)] == [nodes[1].node]
    world.check_all_run()
    world.run(3)
    assert world.dead() == [], "who has left is not missed"


def test_the_last_node_drains_too() -> None:
    world, nodes = settled(8, 1)
    nodes[0].perform(nodes[0].member.drain(world.now))
    world.run(1)
    assert nodes[0].member.has_left
    assert world.running() == {}


def test_a_dead_worker_costs_its_shards_milliseconds() -> None:
    world, nodes = settled(9, 2, workers=2)
    nodes[0].kill_worker(0, 1)
    world.run(0.03)
    world.check_all_run()
    world.run(1)
    assert any(worker.incarnation == 2 and worker.runs for worker in nodes[0].workers.values())
    world.check_all_run()


def test_a_worker_that_does_not_let_go_is_seized_from() -> None:
    world, nodes = settled(10, 1)
    nodes[0].workers[0].hangs = True
    world.start("n1")
    world.run(4)
    assert world.appended(SeizedRecord) == []
    world.run(3)
    assert world.appended(SeizedRecord) or nodes[0].workers[0].incarnation == 2
    world.check_all_run()


def test_snapshots_let_the_ledger_begin_later() -> None:
    timings = Timings(window=40, snapshot_records=20)
    world = World(11, timings=timings)
    nodes = [world.start(f"n{number}", workers=2) for number in range(3)]
    for _ in range(30):
        world.run(1)
        node = world.random.choice(nodes)
        worker = world.random.choice(sorted(node.workers) or [0])
        if worker in node.workers:
            node.kill_worker(worker, node.workers[worker].incarnation)
    world.run(2)
    snapshots = world.appended(SnapshotRecord)
    assert 3 <= len(snapshots) <= len(world.records) / 20
    assert world.log_start == snapshots[-1].through + 1
    world.start("late")
    world.run(2)
    world.check_all_run()
    assert world.dead() == []


ROUGH = Weather(beat_jitter_s=0.02, way_s=0.02, release_s=0.3, loss=0.2, beat_loss=0.02, page=7)


@given(seed=SEEDS, count=st.integers(2, 6))
@settings(max_examples=40, deadline=None)
def test_whatever_happens_they_agree_and_in_the_end_every_shard_runs_once(seed: int, count: int) -> None:
    world = World(seed, timings=Timings(window=40, snapshot_records=40), weather=ROUGH)
    for number in range(count):
        world.start(f"n{number}", workers=world.random.randint(1, 2), zone=f"z{number % 2}")
    for _ in range(12):
        world.run(world.random.uniform(0.01, 1.5))
        strike(world)
    world.start("last")
    world.run(12)
    well = [node for node in world.nodes if node.is_well and node.member.phase == "in"]
    assert well
    world.check_all_run()
    undisturbed = {node.node for node in world.nodes if node.disturbed_at is None}
    assert not undisturbed & set(world.dead()), "nobody well is found dead"
    effective = well[0].member.membership.verdicts
    assert len({verdict.node for verdict in effective}) == len(effective), "one death counts once"


def strike(world: World) -> None:
    """Something happens to somebody; those that are gone or were found dead begin a new life now and then."""
    living = [node for node in world.nodes if node.alive and node.member.phase in ("in", "joining")]
    if len(living) < 2 or world.random.random() < 0.2:
        world.start(f"n{world.random.randint(0, 9)}", workers=world.random.randint(1, 2))
        return
    node = world.random.choice(living)
    match world.random.randrange(6):
        case 0:
            world.kill(node)
        case 1:
            world.pause(node, world.random.choice([0.1, 0.6, 3.0]))
        case 2:
            world.cut(node, world.random.choice([0.1, 0.6, 3.0]))
        case 3:
            node.drain(5)
        case 4:
            for worker, it in list(node.workers.items()):
                node.kill_worker(worker, it.incarnation)
        case 5:
            for it in node.workers.values():
                it.hangs = True


@given(seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_rough_but_fair_weather_kills_nobody(seed: int) -> None:
    """Half a minute of late loops, slow answers, small pages and lost appends."""
    world = World(seed, timings=QUICK, weather=ROUGH)
    for number in range(5):
        world.start(f"n{number}")
    world.run(30)
    assert world.appended(DeadRecord) == []
    world.check_all_run()
