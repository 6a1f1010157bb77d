"""A node's decisions: every shard has one owner at a time, soon has one again, and the node knows when to give up."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.processor.actions import Action, Announce, Depart, Gone, Kill, Leaves, LetGo, Outcome, Send, Spawn
from millstream.processor.control import Assign, Done, Failed, Leaving, Progress, Ready, ShardFinished, Stop, Trouble
from millstream.processor.counts import Counts
from millstream.processor.ledger import CreatedRecord, JoinRecord, LeaveRecord, LeavingRecord, LedgerRecord
from millstream.processor.local_workers import Ended, LocalWorkers
from millstream.processor.membership import Membership, apply
from millstream.processor.node_settings import NodeSettings
from millstream.processor.restarts import RestartPolicy, delay_s
from millstream.processor.shard_host import ShardReleased
from millstream.processor.slot import Standing
from millstream.processor.stage_watch import Overdue
from millstream.processor.stalled import StageLimit, Stalled
from millstream.processor.supervision import Supervisor

RELEASE_TIMEOUT_S = 5.0


class Ledger:
    """The membership of one node, with a log that has all that is said at once."""

    def __init__(self) -> None:
        self.membership = Membership()
        self.workers = LocalWorkers("n")
        self.is_draining = False
        self.has_left = False
        self.say(JoinRecord("n", "n", "", [], 0))

    def say(self, record: LedgerRecord) -> None:
        self.membership = apply(self.membership, self.membership.next_offset, record)

    def settle(self, now: float) -> list[tuple[int, int, frozenset[int], list[Stalled]]]:
        if self.has_left:
            return []
        while claims := list(self.workers.claims(self.membership, is_draining=self.is_draining)):
            for _, record in claims:
                self.say(record)
        changes = self.workers.changes(now, self.membership)
        if self.is_draining and not self.membership.holders:
            self.say(LeaveRecord("n"))
            self.has_left = True
        return [(own.worker, own.incarnation, own.shards, list(own.stalls)) for own in changes]

    def drain(self) -> None:
        self.is_draining = True
        self.say(LeavingRecord("n"))
        for worker in self.workers:
            worker.leaving = True


@dataclass
class World:
    """Processes that do what the supervisor says, and its clock. Releases happen when a test lets them.

    What the supervisor tells the membership is in the ledger at once, unless the ledger `is_slow`.
    """

    node: Supervisor
    ledger: Ledger = field(default_factory=Ledger)
    is_slow: bool = False
    elsewhere: frozenset[int] = frozenset()
    told_elsewhere: frozenset[int] | None = None
    knows_that_it_has_left: bool = False
    now: float = 100.0
    alive: dict[int, int] = field(default_factory=dict)
    runs: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    wanted: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    stalls: dict[int, list[Stalled]] = field(default_factory=dict)
    told_to_stop: set[int] = field(default_factory=set)
    spawned: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def started(cls, workers: int, **settings: float) -> World:
        world = cls(Supervisor(NodeSettings(workers=workers, **settings)))  # type: ignore[arg-type]
        world.perform(world.node.start(world.now))
        return world

    @classmethod
    def ready(cls, workers: int, shards: int, **settings: float) -> World:
        world = cls.started(workers, **settings)
        for worker in range(workers):
            world.say_ready(worker, shards)
        return world

    def perform(self, actions: list[Action]) -> None:
        killed = []
        for action in actions:
            match action:
                case Spawn(worker, incarnation):
                    assert worker not in self.alive, "one process for each worker"
                    self.alive[worker] = incarnation
                    self.spawned.append((worker, incarnation))
                case Send(worker, Assign(shards, stalls)):
                    assert worker in self.alive, "only the living are told"
                    self.stalls[worker] = stalls
                    self.wanted[worker] = set(shards)
                    self.runs[worker] |= self.wanted[worker]
                case Send(worker, Stop()):
                    self.told_to_stop.add(worker)
                case Kill(worker):
                    killed.append(worker)
                case Announce() | Leaves() | LetGo() | Gone() | Depart():
                    self.tell(action)
        self.settle()
        self.check_one_owner()
        for worker in killed:
            self.exit(worker, "it was ended by SIGKILL")

    def tell(self, action: Announce | Leaves | LetGo | Gone | Depart) -> None:
        workers = self.ledger.workers
        match action:
            case Announce(worker, incarnation):
                workers.ready(worker, incarnation, eligible=True)
            case Leaves(worker):
                workers.leaving(worker)
            case LetGo(worker, shard):
                workers.released(self.ledger.membership, worker, shard)
            case Gone(worker, incarnation, why, stalls):
                workers.gone(worker, incarnation, Ended(why, stalls))
            case Depart():
                self.ledger.drain()

    def settle(self) -> None:
        if self.is_slow:
            return
        for own in self.ledger.settle(self.now):
            self.perform(self.node.own(*own))
        if self.ledger.membership.workers and self.told_elsewhere != self.elsewhere:
            self.told_elsewhere = self.elsewhere
            self.perform(self.node.elsewhere(self.elsewhere, self.now))
        if self.ledger.has_left and not self.knows_that_it_has_left:
            self.knows_that_it_has_left = True
            self.perform(self.node.left(self.now))

    def check_one_owner(self) -> None:
        runs = [shard for worker in self.alive for shard in self.runs[worker]]
        assert len(runs) == len(set(runs)), f"two workers run one shard: {dict(self.runs)}"

    def say_ready(self, worker: int, shards: int) -> None:
        self.ledger.say(CreatedRecord(shards))
        self.perform(self.node.received(worker, Ready("p", shards), self.now))

    def progress(self, worker: int, records_in: int) -> None:
        self.perform(self.node.received(worker, Progress(Counts(records_in=records_in), 0.0), self.now))

    def release(self, worker: int) -> None:
        """The worker lets go of all that it should."""
        for shard in sorted(self.runs[worker] - self.wanted[worker]):
            self.runs[worker].discard(shard)
            self.perform(self.node.received(worker, ShardReleased(shard), self.now))

    def finish(self, worker: int, shards: list[int]) -> None:
        """The worker's host reaches the end of these shards, and then of the run."""
        for shard in shards:
            self.runs[worker].discard(shard)
            self.perform(self.node.received(worker, ShardFinished(shard), self.now))
        self.perform(self.node.received(worker, Done(), self.now))
        self.exit(worker, "it exited with code 0", is_clean=True)

    def leave(self, worker: int) -> None:
        self.wanted[worker] = set()
        self.perform(self.node.received(worker, Leaving(), self.now))

    def hang(self, worker: int, first_offset: int = 0, next_offset: int = 100, shard: int = 0) -> None:
        found = Stalled(shard, "score", "in", shard, first_offset, next_offset)
        self.perform(self.node.stalled(worker, Overdue(StageLimit("score", 60.0), (found,))))

    def exit(self, worker: int, text: str = "it was ended by SIGSEGV", *, is_clean: bool = False) -> None:
        del self.alive[worker]
        self.runs.pop(worker, None)
        self.wanted.pop(worker, None)
        self.told_to_stop.discard(worker)
        self.perform(self.node.exited(worker, text, is_clean=is_clean, now=self.now))

    def fail(self, worker: int, failed: Failed) -> None:
        self.perform(self.node.received(worker, failed, self.now))
        self.exit(worker, "it exited with code 1")

    def tick_to_next_deadline(self) -> float:
        """Move time to when the supervisor wants to be asked; answers how long that was."""
        deadlines = [self.node.next_deadline(), self.ledger.workers.next_deadline(RELEASE_TIMEOUT_S)]
        waited = max(0.0, min(deadline for deadline in deadlines if deadline is not None) - self.now)
        self.pass_time(waited)
        return waited

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.node.tick(self.now))
        for late in self.ledger.workers.overdue(self.now, RELEASE_TIMEOUT_S):
            self.perform(self.node.overdue(late.worker, late.incarnation, late.shards))

    def drain(self) -> None:
        for worker in sorted(self.told_to_stop):
            self.exit(worker, "it exited with code 0", is_clean=True)

    def owned(self) -> dict[int, list[int]]:
        return {view.worker: list(view.shards) for view in self.node.workers() if view.shards}

    def standing(self, worker: int) -> Standing:
        return next(view.standing for view in self.node.workers() if view.worker == worker)


# -- starting ---------------------------------------------------------------------------------------------------------


def test_shards_are_given_out_once_when_all_workers_are_ready() -> None:
    world = World.started(2)
    world.say_ready(0, 4)
    assert world.owned() == {}
    world.say_ready(1, 4)
    assert world.owned() == {0: [0, 1], 1: [2, 3]}


def test_a_slow_starter_holds_the_others_up_for_a_moment_only() -> None:
    world = World.started(2, gather_s=1.0)
    world.say_ready(0, 4)
    assert world.tick_to_next_deadline() == 1.0
    assert world.owned() == {0: [0, 1, 2, 3]}
    world.say_ready(1, 4)
    world.release(0)
    assert world.owned() == {0: [0, 1], 1: [2, 3]}


def test_more_workers_than_shards_leave_some_idle() -> None:
    world = World.ready(5, 2)
    assert world.owned() == {0: [0], 1: [1]}
    assert {world.standing(worker) for worker in range(5)} == {Standing.READY}


def test_a_worker_that_does_not_start_in_time_is_killed_and_started_again() -> None:
    world = World.started(1, start_timeout_s=30)
    assert world.tick_to_next_deadline() == 30
    world.tick_to_next_deadline()
    assert world.spawned == [(0, 1), (0, 2)]


def test_a_worker_that_waits_for_topics_and_says_that_it_lives_may_wait_for_long() -> None:
    world = World.started(1)
    for _ in range(10):
        world.now += 100
        world.progress(0, records_in=0)
        world.perform(world.node.tick(world.now))
    assert world.spawned == [(0, 1)]
    world.tick_to_next_deadline()
    assert world.standing(0) is Standing.WAITING


def test_workers_that_disagree_about_the_pipeline_stop_the_node() -> None:
    world = World.started(2)
    world.say_ready(0, 4)
    world.say_ready(1, 5)
    world.drain()
    for worker in list(world.alive):
        world.exit(worker, is_clean=True)
    assert world.node.outcome is not None
    assert world.node.outcome.exit_code == 1
    assert "4" in str(world.node.outcome.message)
    assert "5 shards" in str(world.node.outcome.message)


# -- dying ------------------------------------------------------------------------------------------------------------


def test_a_dead_workers_shards_go_to_the_living_in_the_same_step() -> None:
    world = World.ready(3, 6)
    world.exit(1)
    assert sorted(shard for shards in world.owned().values() for shard in shards) == [0, 1, 2, 3, 4, 5]
    assert world.standing(1) is Standing.WAITING


def test_a_worker_that_comes_back_is_a_new_incarnation_and_gets_its_share() -> None:
    world = World.ready(2, 4)
    world.exit(1)
    world.tick_to_next_deadline()
    assert world.spawned[-1] == (1, 2)
    world.say_ready(1, 4)
    assert world.owned() == {0: [0, 1]}, "the old owner is asked first"
    world.release(0)
    assert world.owned() == {0: [0, 1], 1: [2, 3]}


def test_the_last_workers_shards_wait_for_its_next_life() -> None:
    world = World.ready(1, 3)
    world.exit(0)
    assert world.owned() == {}
    world.tick_to_next_deadline()
    world.say_ready(0, 3)
    assert world.owned() == {0: [0, 1, 2]}


def test_an_exit_with_code_0_that_nobody_asked_for_is_a_death() -> None:
    world = World.ready(1, 1)
    world.exit(0, "it exited with code 0", is_clean=True)
    assert world.standing(0) is Standing.WAITING


def test_a_release_that_does_not_come_costs_the_worker_its_life_and_frees_the_shard() -> None:
    world = World.ready(2, 4)
    world.exit(1)
    world.tick_to_next_deadline()
    world.say_ready(1, 4)
    assert world.tick_to_next_deadline() == 5
    assert world.owned() == {1: [0, 1, 2, 3]}
    assert world.standing(0) is Standing.WAITING


def test_a_worker_that_hangs_is_replaced_and_the_next_owner_of_the_shard_knows_at_what() -> None:
    world = World.ready(2, 2)
    world.hang(0)
    assert world.wanted[1] == {0, 1}
    assert world.stalls[1] == [Stalled(0, "score", "in", 0, 0, 100, attempts=1)]
    world.hang(1, 40, 42)
    world.tick_to_next_deadline()
    world.say_ready(0, 2)
    assert world.stalls[0] == [Stalled(0, "score", "in", 0, 40, 42, attempts=2)]
    assert world.node.stalled_stages == {"score": 2}


def test_the_owner_of_other_shards_is_told_nothing_of_it() -> None:
    world = World.ready(3, 3)
    world.hang(0)
    told = {worker: stalls for worker, stalls in world.stalls.items() if stalls}
    assert [0 in world.wanted[worker] for worker in told] == [True]


def test_workers_that_hang_are_no_crash_loop_however_many_records_do_that() -> None:
    world = World.ready(1, 1)
    for offset in range(30):
        world.hang(0, offset, offset + 1)
        world.tick_to_next_deadline()
        world.say_ready(0, 1)
    assert world.node.outcome is None
    assert world.node.stalled_stages == {"score": 30}


def test_a_worker_that_dies_already_is_not_blamed_once_more() -> None:
    world = World.ready(1, 1)
    world.node.stop(world.now, 15)
    world.node.stop(world.now, 15)
    assert world.node.stalled(0, Overdue(StageLimit("score", 60.0), ())) == []
    assert world.node.stalled_stages == {}


def test_a_worker_that_hangs_while_it_drains_makes_the_end_a_failure_that_names_the_stage() -> None:
    world = World.ready(1, 1)
    world.perform(world.node.stop(world.now, 15))
    world.hang(0, 17, 18)
    assert world.node.outcome == Outcome(
        1,
        "worker 0 was killed while it drained: stage 'score' did not come back within 60 s from in-0@17 (attempt 1)",
    )


def test_a_shard_under_way_to_a_worker_that_dies_finds_another_owner() -> None:
    world = World.ready(2, 2)
    world.exit(1)
    world.tick_to_next_deadline()
    world.say_ready(1, 2)
    world.exit(1)
    assert world.owned() == {0: [0]}, "what it was asked to release it must first release"
    world.release(0)
    assert world.owned() == {0: [0, 1]}


def test_delays_double_up_to_a_cap_and_start_over_after_a_good_life() -> None:
    policy = RestartPolicy()
    assert [delay_s(n, policy) for n in (1, 2, 3, 7, 8, 10_000)] == pytest.approx([0.1, 0.2, 0.4, 6.4, 10, 10])
    world = World.ready(2, 2)
    waits = []
    for _ in range(4):
        world.progress(1, 5)
        world.exit(1)
        waits.append(world.tick_to_next_deadline())
        world.say_ready(1, 2)
        world.release(0)
    world.now += policy.good_life_s
    world.exit(1)
    waits.append(world.tick_to_next_deadline())
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 0.1])


# -- giving up --------------------------------------------------------------------------------------------------------


def crash_until_outcome(world: World, *, records_in: int, rounds: int) -> None:
    for _ in range(rounds):
        if world.node.outcome is not None:
            return
        world.say_ready(0, 1)
        world.progress(0, records_in)
        world.exit(0)
        if world.node.outcome is None:
            world.tick_to_next_deadline()


def test_workers_that_die_again_and_again_without_progress_stop_the_node() -> None:
    world = World.started(1)
    crash_until_outcome(world, records_in=0, rounds=50)
    assert world.spawned[-1] == (0, RestartPolicy().crashes_max + 1)
    assert world.node.outcome is not None
    assert world.node.outcome.exit_code == 1
    assert "SIGSEGV" in str(world.node.outcome.message)


def test_workers_that_die_but_get_on_are_always_started_again() -> None:
    world = World.started(1)
    crash_until_outcome(world, records_in=7, rounds=50)
    assert world.node.outcome is None


def test_a_broker_that_is_away_for_long_does_not_stop_a_node_that_has_worked() -> None:
    world = World.ready(1, 1)
    for _ in range(50):
        world.fail(0, Failed(Trouble.WORLD, "no broker answers"))
        world.tick_to_next_deadline()
    assert world.node.outcome is None


def test_a_broker_that_is_away_at_the_start_is_reported_and_ends_the_node() -> None:
    world = World.started(1)
    world.fail(0, Failed(Trouble.WORLD, "no broker answers"))
    assert world.node.outcome == Outcome(1, "no broker answers")


@pytest.mark.parametrize("exit_code", [1, 2])
def test_a_final_error_drains_the_others_and_is_the_outcome_once(exit_code: int) -> None:
    world = World.ready(3, 3)
    world.fail(1, Failed(Trouble.FINAL, "stage 'score' failed", exit_code))
    assert world.told_to_stop == {0, 2}
    world.fail(2, Failed(Trouble.FINAL, "stage 'score' failed elsewhere", 1))
    world.drain()
    assert world.node.outcome == Outcome(exit_code, "stage 'score' failed")
    assert len(world.spawned) == 3, "nothing is started again"


# -- ending -----------------------------------------------------------------------------------------------------------


def test_a_stop_drains_every_worker_and_ends_well() -> None:
    world = World.ready(2, 4)
    world.perform(world.node.stop(world.now, 15))
    assert world.told_to_stop == {0, 1}
    world.drain()
    assert world.node.outcome == Outcome(0)


def test_a_stop_while_starting_ends_at_once() -> None:
    world = World.started(3)
    world.say_ready(0, 4)
    world.perform(world.node.stop(world.now, 15))
    assert list(world.alive) == [0]
    world.drain()
    assert world.node.outcome == Outcome(0)


def test_only_deaths_that_nobody_intended_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    world = World.started(1)
    world.perform(world.node.stop(world.now, 15))
    assert world.node.outcome == Outcome(0)
    assert "worker.died" not in caplog.text, "it was still starting, and had nothing"
    world = World.ready(1, 1)
    world.exit(0)
    assert caplog.text.count("worker.died") == 1


def test_a_stop_while_a_worker_waits_for_its_restart_does_not_wait_for_it() -> None:
    world = World.ready(1, 1)
    world.exit(0)
    world.perform(world.node.stop(world.now, 15))
    assert world.node.outcome == Outcome(0)


@pytest.mark.parametrize(("signal_number", "exit_code"), [(15, 143), (2, 130)])
def test_a_second_signal_kills_at_once(signal_number: int, exit_code: int) -> None:
    world = World.ready(2, 4)
    world.perform(world.node.stop(world.now, 15))
    world.perform(world.node.stop(world.now, signal_number))
    assert world.alive == {}
    assert world.node.outcome is not None
    assert world.node.outcome.exit_code == exit_code


def test_a_drain_that_takes_too_long_ends_with_kills_and_a_message() -> None:
    world = World.ready(2, 4, drain_timeout_s=20)
    world.perform(world.node.stop(world.now, 15))
    world.exit(0, "it exited with code 0", is_clean=True)
    assert world.tick_to_next_deadline() == 20
    assert world.node.outcome is not None
    assert world.node.outcome.exit_code == 1
    assert "[1] did not drain within 20 s" in str(world.node.outcome.message)


def test_a_worker_that_dies_while_it_drains_makes_the_end_a_failure() -> None:
    world = World.ready(2, 4)
    world.perform(world.node.stop(world.now, 15))
    world.exit(1)
    world.drain()
    assert world.node.outcome is not None
    assert world.node.outcome.exit_code == 1
    assert "SIGSEGV" in str(world.node.outcome.message)


def test_a_worker_that_leaves_by_itself_hands_over_shard_by_shard_and_is_replaced() -> None:
    world = World.ready(2, 4)
    world.leave(1)
    assert world.owned() == {0: [0, 1]}
    world.release(1)
    assert world.owned() == {0: [0, 1, 2, 3]}
    world.exit(1, "it exited with code 0", is_clean=True)
    world.tick_to_next_deadline()
    assert world.spawned[-1] == (1, 2)


def test_a_run_with_an_end_ends_when_every_shard_has_reached_it() -> None:
    world = World.ready(3, 2)
    world.finish(0, [0])
    assert world.node.outcome is None
    world.finish(1, [1])
    assert world.told_to_stop == {2}, "the idle one is sent home"
    world.drain()
    assert world.node.outcome == Outcome(0)
    assert len(world.spawned) == 3


def test_shards_that_came_too_late_to_a_worker_that_is_done_are_still_run() -> None:
    world = World.ready(2, 2)
    world.exit(1)
    assert world.owned() == {0: [0, 1]}
    world.finish(0, [0])
    assert world.node.outcome is None
    assert world.tick_to_next_deadline() == 0
    assert world.spawned[-1] == (0, 2)
    world.say_ready(0, 2)
    world.finish(0, [0, 1])
    assert world.node.outcome == Outcome(0)


def test_a_shard_that_comes_to_a_worker_on_its_way_out_is_run_by_its_next_life() -> None:
    world = World.ready(2, 2)
    world.perform(world.node.received(0, ShardFinished(0), world.now))
    world.perform(world.node.received(0, Done(), world.now))
    world.exit(1)
    assert world.owned() == {0: [1]}
    world.exit(0, "it exited with code 0", is_clean=True)
    assert world.node.outcome is None
    world.tick_to_next_deadline()
    assert world.spawned[-1] == (0, 2)


def test_a_node_does_not_end_before_shards_of_the_dead_have_been_run() -> None:
    world = World.ready(2, 2)
    world.is_slow = True
    world.exit(1)
    world.tick_to_next_deadline()
    world.perform(world.node.received(0, ShardFinished(0), world.now))
    assert world.node.phase == "running", "the ledger has not said yet whose shard 1 is"
    world.is_slow = False
    world.settle()
    world.finish(0, [1])
    for worker in list(world.alive):
        world.exit(worker, is_clean=True)
    assert world.node.outcome == Outcome(0)


def test_shards_of_other_nodes_are_not_waited_for() -> None:
    world = World.ready(1, 3)
    world.elsewhere = frozenset({1, 2})
    world.settle()
    assert world.node.phase == "running", "a node that has run nothing yet will be needed"
    world.finish(0, [0])
    assert world.node.outcome == Outcome(0)


def test_shards_that_others_take_over_are_not_waited_for_any_more() -> None:
    world = World.ready(1, 2)
    world.perform(world.node.received(0, ShardFinished(0), world.now))
    assert world.told_to_stop == set()
    world.elsewhere = frozenset({1})
    world.settle()
    assert world.told_to_stop == {0}


def test_what_has_come_to_its_end_is_let_go_of_when_it_is_asked_for() -> None:
    world = World.started(1)
    world.node.received(0, Ready("p", 3), world.now)
    world.node.tick(world.now + 1)
    world.node.own(0, 1, frozenset({0, 1, 2}), ())
    world.node.received(0, ShardFinished(0), world.now)
    assert world.node.own(0, 1, frozenset({1, 2}), ()) == [LetGo(0, 0), Send(0, Assign([1, 2]))]
    assert world.node.own(0, 1, frozenset({1}), ()) == [Send(0, Assign([1]))], "the worker lets go of it"
    assert world.node.received(0, ShardFinished(2), world.now) == [LetGo(0, 2)], "it did not know yet"
    assert world.node.received(0, ShardReleased(1), world.now) == [LetGo(0, 1)]


def test_a_shard_that_finishes_makes_no_other_move_and_is_never_given_out_again() -> None:
    world = World.ready(2, 4)
    for shard in (0, 1):
        world.runs[0].discard(shard)
        world.perform(world.node.received(0, ShardFinished(shard), world.now))
    assert world.owned() == {1: [2, 3]}
    world.exit(1)
    assert world.owned() == {0: [2, 3]}


def test_a_node_says_goodbye_before_it_ends_but_not_for_ever() -> None:
    world = World.ready(1, 1)
    world.is_slow = True
    world.perform(world.node.stop(world.now, 15))
    world.drain()
    assert world.node.outcome is None
    assert 0 < world.tick_to_next_deadline() < 5
    assert world.node.outcome == Outcome(0)


def test_a_node_that_may_not_take_part_drains_and_says_why() -> None:
    world = World.ready(2, 2)
    world.is_slow = True
    world.perform(world.node.refused("the broker refuses user 'bob'", world.now))
    assert world.told_to_stop == {0, 1}
    world.drain()
    assert world.node.outcome == Outcome(1, "the broker refuses user 'bob'")


def test_what_is_meant_for_an_earlier_incarnation_is_not_done() -> None:
    world = World.ready(1, 1)
    world.exit(0)
    world.tick_to_next_deadline()
    world.say_ready(0, 1)
    assert world.node.own(0, 1, frozenset(), ()) == []
    assert world.node.overdue(0, 1, {0}) == []
    assert world.owned() == {0: [0]}


# -- anything at all --------------------------------------------------------------------------------------------------


def misfortune(world: World, dice: random.Random, shards: int) -> None:
    """One event that can happen to a node: processes start, die, leave, let go or do not, and time passes."""
    worker = dice.choice(sorted(world.alive)) if world.alive else None
    match dice.choice(["ready", "ready", "release", "release", "crash", "leave", "exit", "time", "time", "tick"]):
        case "ready" if worker is not None:
            world.say_ready(worker, shards)
        case "release" if worker is not None:
            world.release(worker)
        case "crash" if worker is not None:
            world.progress(worker, 1)
            world.exit(worker)
        case "leave" if worker is not None and world.standing(worker) is Standing.READY:
            world.leave(worker)
        case "exit" if worker is not None and world.standing(worker) is Standing.LEAVING:
            world.release(worker)
            world.exit(worker, is_clean=True)
        case "time":
            world.pass_time(dice.choice([0.01, 0.5, 6.0]))
        case "tick" if world.node.next_deadline() is not None:
            world.tick_to_next_deadline()


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 5), st.integers(1, 9), st.randoms(use_true_random=False), st.integers(0, 60))
def test_whatever_happens_a_shard_has_one_owner_and_after_it_all_are_served(
    workers: int, shards: int, dice: random.Random, misfortunes: int
) -> None:
    world = World.started(workers)
    for _ in range(misfortunes):
        misfortune(world, dice, shards)
    assert world.node.outcome is None

    # From here on everything works; the node must find its way back within a bounded number of steps.
    for _ in range(8 * workers):
        for worker in sorted(world.alive):
            match world.standing(worker):
                case Standing.STARTING:
                    world.say_ready(worker, shards)
                case Standing.LEAVING:
                    world.release(worker)
                    world.exit(worker, is_clean=True)
                case _:
                    world.release(worker)
        if world.node.next_deadline() is not None:
            world.tick_to_next_deadline()
    loads = [len(world.runs[worker]) for worker in range(workers)]
    assert sum(loads) == shards
    assert max(loads) - min(loads) <= 1
    assert world.runs == {worker: set(owned) for worker, owned in world.owned().items()} | {
        worker: set() for worker in world.runs if worker not in world.owned()
    }

    world.perform(world.node.stop(world.now, 15))
    world.drain()
    assert world.node.outcome == Outcome(0)
