"""One node's part in the membership: what it says follows from the ledger, and is said until it is there."""

from __future__ import annotations

import pytest

from millstream.processor.beats import Beat
from millstream.processor.errors import RefusedError
from millstream.processor.ledger import (
    CreatedRecord,
    DeadRecord,
    JoinRecord,
    LeaveRecord,
    LeavingRecord,
    LedgerRecord,
    ReleasedRecord,
    SeizedRecord,
    Stalled,
    WorkerDownRecord,
    WorkerUpRecord,
    decode,
    encode,
)
from millstream.processor.ledger_reader import snapshot
from millstream.processor.member import Member, NodeIdentity
from millstream.processor.member_actions import Append, Declared, MemberAction, Overdue, Own, Snapshot
from millstream.processor.membership_log import Entry, LedgerPage
from millstream.processor.timings import Timings

ME, OTHER = "me-1", "other-1"
TIMINGS = Timings(window=40)


class Node:
    """A member, a ledger that a test appends to, and beats that come back at once."""

    def __init__(self, *records: LedgerRecord, timings: Timings = TIMINGS) -> None:
        self.member = Member(
            NodeIdentity(node=ME, name="me", zone="z", labels=("gpu",)), timings, wall_at_zero_ms=500_000
        )
        self.now = 100.0
        self.ledger = [encode(record) for record in (CreatedRecord(4), *records)]
        self.log_start = 0
        self.read = 0
        self.said: list[LedgerRecord] = []
        self.untils: list[float] = []
        self.others: list[MemberAction] = []
        self.seq = 0
        self.beating = {OTHER}
        self.stores = True
        self.hears = True

    def take(self, actions: list[MemberAction]) -> None:
        for action in actions:
            if isinstance(action, Append):
                self.said += action.records
                self.untils.append(action.until - self.now)
                if self.stores:
                    self.ledger += [encode(record) for record in action.records]
            else:
                self.others.append(action)
        if self.read < len(self.ledger):
            self.follow()

    def follow(self) -> None:
        start, self.read = self.read, len(self.ledger)
        entries = [Entry(offset, self.ledger[offset]) for offset in range(start, self.read)]
        self.take(self.member.ledger(self.now, LedgerPage(entries, self.read, self.log_start, self.read)))

    def see(self, *records: LedgerRecord) -> None:
        self.ledger += [encode(record) for record in records]
        self.follow()

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += 0.01
            self.member.beat_sent(self.now, self.seq)
            beats = [Beat(1, node, self.seq) for node in sorted(self.beating)]
            if self.hears:
                self.take(self.member.beats(self.now, [*beats, Beat(1, ME, self.seq)], is_behind=False))
            self.seq += 1
            due = self.member.next_deadline()
            if due is None or self.now >= due:
                self.take(self.member.tick(self.now))

    def taken(self) -> list[LedgerRecord]:
        said, self.said = self.said, []
        return said

    def owned(self) -> dict[int, set[int]]:
        """The last that each worker was told."""
        return {own.worker: set(own.shards) for own in self.others if isinstance(own, Own)}


def joined(*records: LedgerRecord, workers: int = 1, timings: Timings = TIMINGS) -> Node:
    node = Node(*records, timings=timings)
    node.follow()
    node.run(0.1)
    for worker in range(workers):
        node.take(node.member.worker_ready(node.now, worker, 1))
    node.taken()
    return node


def other() -> list[LedgerRecord]:
    """Another node with one worker."""
    return [JoinRecord(OTHER, "other"), WorkerUpRecord(OTHER, 0, 1)]


def test_it_joins_when_it_has_read_the_ledger_and_can_be_heard() -> None:
    node = Node()
    node.hears = False
    node.run(0.3)
    node.follow()
    node.run(0.3)
    assert node.said == [], "who cannot be heard would be found dead at once"
    assert node.member.phase == "joining"
    node.hears = True
    node.run(0.02)
    (join,) = node.taken()
    assert join == JoinRecord(ME, "me", "z", ["gpu"], at_ms=round(500_000 + 1000 * (node.now - 0.01)))
    assert node.member.phase == "in"


def test_a_ready_worker_is_announced_and_told_its_shards() -> None:
    node = joined(workers=0)
    node.take(node.member.worker_ready(node.now, 0, 1))
    assert node.taken() == [WorkerUpRecord(ME, 0, 1)]
    assert node.owned() == {0: {0, 1, 2, 3}}
    (own,) = [action for action in node.others if isinstance(action, Own)]
    assert set(own.tokens.values()) == {len(node.ledger) - 1}, "where the holding began"
    node.take(node.member.worker_ready(node.now, 1, 1, eligible=False))
    assert node.taken() == [WorkerUpRecord(ME, 1, 1, eligible=False)]
    assert node.owned() == {0: {0, 1, 2, 3}}


@pytest.mark.parametrize("again", [1, 2])
def test_what_does_not_show_up_is_said_again_after_a_second(again: int) -> None:
    node = joined(workers=0)
    node.stores = False
    node.take(node.member.worker_ready(node.now, 0, 1))
    node.run(again + 0.02)
    assert node.taken() == [WorkerUpRecord(ME, 0, 1)] * (again + 1)
    assert node.untils[-1] == pytest.approx(1.0), "by then the agent has given up"
    node.stores = True
    node.run(1)
    node.run(3)
    assert node.taken() == [WorkerUpRecord(ME, 0, 1)]


def test_a_dead_worker_is_told_at_once_with_the_batch_that_it_hung_at() -> None:
    node = joined(workers=2)
    shard = min(node.owned()[0])
    stalled = Stalled(shard, "slow", "t", shard, 5, 9)
    node.take(node.member.worker_gone(node.now, 0, 1, "it hung", [stalled]))
    assert node.taken() == [WorkerDownRecord(ME, 0, 1, "it hung", [stalled])]
    assert node.owned()[1] == {0, 1, 2, 3}
    last = [action for action in node.others if isinstance(action, Own)][-1]
    assert last.stalls == [stalled]
    node.take(node.member.worker_gone(node.now, 0, 1, "twice"))
    assert node.taken() == []


def test_a_worker_that_dies_before_its_announcement_is_stored_does_not_haunt() -> None:
    node = joined(workers=0)
    node.stores = False
    node.take(node.member.worker_ready(node.now, 0, 1))
    node.take(node.member.worker_gone(node.now, 0, 1, "it died"))
    up, down = node.taken()
    assert (up, down) == (WorkerUpRecord(ME, 0, 1), WorkerDownRecord(ME, 0, 1, "it died"))
    node.stores = True
    node.see(down, up)
    assert node.member.membership.workers == {}
    node.run(3)
    assert node.taken() == []


def test_a_worker_that_nobody_here_knows_is_said_to_be_down() -> None:
    node = joined()
    node.see(WorkerUpRecord(ME, 7, 3))
    assert node.taken() == [WorkerDownRecord(ME, 7, 3, "its node knows nothing of it")]


def test_the_next_incarnation_takes_over_and_an_old_one_is_ignored() -> None:
    node = joined()
    node.take(node.member.worker_ready(node.now, 0, 2))
    assert WorkerUpRecord(ME, 0, 2) in node.taken()
    node.take(node.member.worker_ready(node.now, 0, 1))
    node.take(node.member.worker_gone(node.now, 0, 1, "late news"))
    assert node.taken() == []
    assert {worker.incarnation for worker in node.member.membership.workers} == {2}
    assert node.owned() == {0: {0, 1, 2, 3}}


# -- moves --------------------------------------------------------------------------------------------------------


def moving() -> tuple[Node, list[int]]:
    """A node that has to give half of its shards to another one."""
    node = joined()
    node.see(*other())
    kept = node.owned()[0]
    assert len(kept) == 2
    assert node.taken() == [], "first the worker lets go"
    return node, sorted({0, 1, 2, 3} - kept)


def test_a_shard_is_released_in_the_ledger_when_the_worker_has_let_go() -> None:
    node, leaving = moving()
    node.take(node.member.shard_released(node.now, 0, leaving[0]))
    (released,) = node.taken()
    assert isinstance(released, ReleasedRecord)
    assert (released.shard, released.node, released.worker) == (leaving[0], ME, 0)
    assert node.member.membership.holders[leaving[0]].node == OTHER
    assert node.member.membership.holders[leaving[1]].node == ME


def test_a_release_is_said_once_and_for_its_holding_only() -> None:
    node, leaving = moving()
    node.stores = False
    node.take(node.member.shard_released(node.now, 0, leaving[0]))
    node.take(node.member.shard_released(node.now, 0, leaving[0]))
    assert len(node.taken()) == 1
    node.see(DeadRecord(OTHER, ME, 300, 250, 7))
    assert leaving[0] not in node.owned()[0], "somebody may have read that it is free"
    node.stores = True
    node.run(1.1)
    (released,) = node.taken()
    assert isinstance(released, ReleasedRecord)
    assert leaving[0] in node.owned()[0]
    assert leaving[1] not in node.owned()[0], "it was asked for and has still to be let go of"


def test_what_was_asked_for_and_is_planned_here_again_runs_again_once_the_worker_has_let_go() -> None:
    node, leaving = moving()
    node.see(LeaveRecord(OTHER))
    assert not node.owned()[0] & set(leaving)
    node.take(node.member.shard_released(node.now, 0, leaving[0]))
    assert leaving[0] in node.owned()[0]
    assert node.taken() == [], "nobody else was to have it"


def test_a_shard_that_came_and_went_in_one_page_is_released_at_once() -> None:
    node = joined(workers=0)
    node.stores = False
    node.take(node.member.worker_ready(node.now, 0, 1))
    node.stores = True
    node.see(WorkerUpRecord(ME, 0, 1), *other())
    kept = node.owned()[0]
    assert {record.shard for record in node.taken() if isinstance(record, ReleasedRecord)} == {0, 1, 2, 3} - kept


def test_a_shard_that_is_let_go_of_without_being_asked_for_is_free_and_comes_back() -> None:
    node = joined()
    since = dict(node.member.membership.since)
    node.take(node.member.shard_released(node.now, 0, 2))
    (released,) = node.taken()
    assert isinstance(released, ReleasedRecord)
    assert node.owned() == {0: {0, 1, 2, 3}}
    last = [action for action in node.others if isinstance(action, Own)][-1]
    assert last.tokens[2] > since[2]


def test_who_does_not_let_go_is_to_be_killed_once() -> None:
    node, leaving = moving()
    node.run(4.9)
    assert not [action for action in node.others if isinstance(action, Overdue)]
    node.run(3)
    assert [action for action in node.others if isinstance(action, Overdue)] == [Overdue(0, 1, frozenset(leaving))]


def test_an_overdue_shard_is_seized_and_a_prompt_one_is_not() -> None:
    node = Node(*other())
    node.follow()
    node.run(0.1)
    node.take(node.member.worker_ready(node.now, 0, 1))
    node.taken()
    prompt, slow = sorted(shard for shard, worker in node.member.membership.planned.items() if worker.node == ME)
    node.run(1)
    since = node.member.membership.since
    node.see(ReleasedRecord(prompt, OTHER, 0, 1, since[prompt]))
    assert node.owned() == {0: {prompt}}
    node.run(3.9)
    assert node.taken() == []
    node.run(0.2)
    assert node.taken() == [SeizedRecord(slow, ME, 0, 1, since[slow])]
    assert node.owned() == {0: {prompt, slow}}


# -- the end ------------------------------------------------------------------------------------------------------


def test_its_own_death_is_the_last_thing_it_speaks_of() -> None:
    node = joined(*other(), workers=1)
    node.others.clear()
    node.see(DeadRecord(ME, OTHER, 312.0, 250.0, 99))
    (declared,) = node.others
    assert isinstance(declared, Declared)
    assert declared.verdict is not None
    assert (declared.verdict.by, declared.verdict.silence_ms) == (OTHER, 312.0)
    assert node.member.phase == "declared"
    assert node.member.next_deadline() is None
    for actions in (
        node.member.tick(node.now + 1),
        node.member.worker_gone(node.now, 0, 1, "killed"),
        node.member.worker_ready(node.now, 0, 2),
        node.member.shard_released(node.now, 0, 0),
        node.member.drain(node.now),
        node.member.beats(node.now, [], is_behind=False),
        node.member.ledger(node.now, LedgerPage([], node.read, 0, node.read)),
    ):
        assert actions == []


def test_a_verdict_that_the_ledger_has_forgotten_is_one_all_the_same() -> None:
    node = joined(*other())
    ghosts = [
        record
        for number in range(25)
        for record in (JoinRecord(f"g{number}", "g"), DeadRecord(f"g{number}", OTHER, 1.0, 1.0, 0))
    ]
    node.others.clear()
    node.see(DeadRecord(ME, OTHER, 1.0, 1.0, 0), *ghosts)
    assert node.others == [Declared(None)]


def test_a_drain_gives_up_shard_by_shard_and_then_leaves() -> None:
    node = joined()
    mine = node.owned()[0]
    node.see(*other())
    node.take(node.member.drain(node.now))
    assert node.taken() == [LeavingRecord(ME)]
    assert node.member.phase == "leaving"
    assert node.owned()[0] == set()
    for shard in sorted(mine):
        node.run(1)
        assert not node.member.has_left
        node.take(node.member.shard_released(node.now, 0, shard))
    released = [record.shard for record in node.said if isinstance(record, ReleasedRecord)]
    assert set(mine) <= set(released)
    assert node.said[-1] == LeaveRecord(ME)
    assert node.member.has_left
    assert node.member.phase == "left"
    assert not [action for action in node.others if isinstance(action, Declared)]


def test_a_worker_that_is_told_to_end_by_somebody_else_leaves_alone() -> None:
    node = joined(workers=2)
    node.take(node.member.worker_leaving(node.now, 0))
    assert node.taken() == [LeavingRecord(ME, 0, 1)]
    assert node.owned()[0] == set()
    node.run(6)
    assert not [action for action in node.others if isinstance(action, Overdue)], "it has its own time to drain"


def test_a_leaving_worker_does_not_get_back_what_it_lets_go_of() -> None:
    node, leaving = moving()
    node.see(LeaveRecord(OTHER))
    node.stores = False
    node.take(node.member.worker_leaving(node.now, 0))
    node.take(node.member.shard_released(node.now, 0, leaving[0]))
    assert [record.shard for record in node.taken() if isinstance(record, ReleasedRecord)] == [leaving[0]]
    assert leaving[0] not in node.owned()[0]


def test_who_never_joined_has_left_at_once() -> None:
    node = Node()
    node.take(node.member.drain(node.now))
    assert node.member.has_left
    assert node.said == []


def test_a_join_that_is_under_way_when_the_drain_begins_is_taken_back() -> None:
    node = Node()
    node.stores = False
    node.follow()
    node.run(0.1)
    (join,) = node.taken()
    node.take(node.member.drain(node.now))
    assert not node.member.has_left
    node.stores = True
    node.see(join)
    node.run(0.1)
    assert node.taken() == [LeavingRecord(ME), LeaveRecord(ME)]
    assert node.member.has_left


# -- deaths of others ---------------------------------------------------------------------------------------------


def test_a_silent_node_is_found_dead_with_the_numbers() -> None:
    node = joined(*other())
    node.run(3)
    node.beating = set()
    node.run(0.3)
    (dead,) = node.taken()
    assert isinstance(dead, DeadRecord)
    assert (dead.node, dead.by) == (OTHER, ME)
    assert 250 <= dead.silence_ms <= 270
    assert dead.threshold_ms == pytest.approx(250, abs=15)
    assert dead.beats_seen > 300
    assert dead.at_ms == pytest.approx(500_000 + node.now * 1000, abs=100)
    assert 0.3 in [round(until, 3) for until in node.untils], "a verdict is given up sooner than a fact"
    node.run(2)
    assert node.taken() == []
    assert node.member.membership.nodes.keys() == {ME}


def test_a_verdict_that_does_not_show_up_is_judged_anew() -> None:
    node = joined(JoinRecord(OTHER, "other"))
    node.run(3)
    node.stores = False
    node.beating = set()
    node.run(0.3)
    assert len(node.taken()) == 1
    node.run(0.31)
    assert len(node.taken()) == 1
    node.beating = {OTHER}
    node.run(2)
    assert node.taken() == [], "it was alive after all"


def test_the_first_in_order_speaks_and_the_next_ones_wait_for_it() -> None:
    """`a` and `b` come before this node; `a` says nothing, `b` is silent itself."""
    node = joined(JoinRecord("a", "a"), JoinRecord("b", "b"), *other(), JoinRecord("p", "p"), JoinRecord("q", "q"))
    node.beating = {"a", "b", OTHER, "p", "q"}
    node.run(3)
    node.beating = {"a", OTHER, "p", "q"}
    node.run(0.25)
    assert node.taken() == []
    node.run(0.03)
    assert [record.node for record in node.taken() if isinstance(record, DeadRecord)] == ["b"]


def test_who_is_new_is_not_waited_for() -> None:
    """`a` comes first, but has not heard the others for long enough to judge them."""
    node = joined(JoinRecord("b", "b"))
    node.beating = {"b"}
    node.run(3)
    node.see(JoinRecord("a", "a"))
    node.beating = {"a", "b"}
    node.run(0.1)
    node.beating = {"a"}
    node.run(0.255)
    assert [record.node for record in node.taken() if isinstance(record, DeadRecord)] == ["b"]


def test_a_verdict_by_another_in_the_meantime_is_enough() -> None:
    node = joined(JoinRecord("a", "a"), *other())
    node.beating = {"a", OTHER}
    node.run(3)
    node.beating = {"a"}
    node.run(0.25)
    node.see(DeadRecord(OTHER, "a", 250.0, 250.0, 1))
    node.run(2)
    assert node.taken() == []


def test_a_clock_that_jumps_is_no_silence() -> None:
    node = joined(*other())
    node.run(3)
    node.now += 3600
    node.run(1.5)
    assert node.taken() == []
    assert node.member.phase == "in"
    node.run(5)
    assert {type(record) for record in node.taken()} == {SeizedRecord}, "nor is it the time that others had"


def test_it_says_so_when_it_cannot_be_heard_and_keeps_its_shards() -> None:
    node = joined(JoinRecord(OTHER, "other"))
    node.run(3)
    before = node.owned()
    node.hears = False
    node.run(0.35)
    assert node.member.doubt(node.now) is None
    node.run(5)
    assert "no beat of this node has come back for 5." in (node.member.doubt(node.now) or "")
    assert node.owned() == before
    assert node.taken() == []
    node.hears = True
    node.run(0.1)
    assert node.member.doubt(node.now) is None


def test_doubts_that_come_and_go_are_one_trouble_told_once(caplog: pytest.LogCaptureFixture) -> None:
    node = joined(JoinRecord(OTHER, "other"))
    node.run(3)
    with caplog.at_level("INFO", logger="millstream.member"):
        for _ in range(5):
            node.hears = False
            node.run(0.6)
            node.hears = True
            node.run(0.2)
        assert caplog.text.count("node.in_doubt") == 1
        assert caplog.text.count("node.heard_again") == 0
        node.run(1.2)
    assert caplog.text.count("node.heard_again") == 1


# -- the ledger itself --------------------------------------------------------------------------------------------


def test_after_so_many_records_the_first_one_writes_a_snapshot() -> None:
    node = joined(timings=Timings(snapshot_records=10))
    node.see(*[record for number in range(4) for record in (JoinRecord(f"x{number}", "x"), LeaveRecord(f"x{number}"))])
    (made,) = [action for action in node.others if isinstance(action, Snapshot)]
    assert made.record.through == len(node.ledger) - 1
    node.run(0.9)
    assert len([action for action in node.others if isinstance(action, Snapshot)]) == 1
    node.run(0.3)
    assert len([action for action in node.others if isinstance(action, Snapshot)]) == 2, "it did not show up"
    node.see(made.record)
    node.run(5)
    assert len([action for action in node.others if isinstance(action, Snapshot)]) == 2


def test_the_second_one_writes_it_when_the_first_one_does_not() -> None:
    node = joined(JoinRecord("a", "a"), timings=Timings(snapshot_records=5))
    node.beating = {"a"}
    node.see(*[record for number in range(4) for record in (JoinRecord(f"x{number}", "x"), LeaveRecord(f"x{number}"))])
    assert not [action for action in node.others if isinstance(action, Snapshot)]
    node.run(1.1)
    assert len([action for action in node.others if isinstance(action, Snapshot)]) == 1


def test_it_begins_with_a_snapshot_where_the_beginning_is_gone() -> None:
    before = joined(*other())
    record = snapshot(before.member.membership)
    node = Node()
    node.ledger = [*before.ledger, encode(record)]
    node.log_start = node.read = len(before.ledger)
    node.follow()
    node.run(0.1)
    assert node.member.phase == "in" or isinstance(node.said[0], JoinRecord)
    assert OTHER in node.member.membership.nodes


def test_a_ledger_without_its_beginning_is_refused() -> None:
    node = Node()
    node.log_start = node.read = len(node.ledger)
    with pytest.raises(RefusedError, match=r"begins at offset 1 and has no snapshot.*retention\.ms=-1"):
        node.follow()


def test_nothing_is_decided_before_all_of_the_ledger_was_read() -> None:
    node = Node(*other(), DeadRecord(OTHER, "nobody", 1, 1, 1))
    node.read = len(node.ledger)
    node.run(0.1)
    entries = [Entry(offset, value) for offset, value in enumerate(node.ledger)]
    assert node.member.ledger(node.now, LedgerPage(entries[:2], 2, 0, len(entries))) == []
    assert node.member.membership.nodes == {}
    actions = node.member.ledger(node.now, LedgerPage(entries[2:], len(entries), 0, len(entries)))
    assert [type(record) for action in actions if isinstance(action, Append) for record in action.records] == [
        JoinRecord
    ]


def test_a_ledger_that_was_made_anew_is_joined_again() -> None:
    node = joined()
    node.member.reread()
    node.ledger, node.read = [encode(CreatedRecord(4))], 1
    node.run(1.5)
    assert node.taken() == [], "old news are no news"
    node.read = 0
    node.follow()
    node.run(0.1)
    assert node.taken()[:2] == [JoinRecord(ME, "me", "z", ["gpu"], at_ms=decode_join(node)), WorkerUpRecord(ME, 0, 1)]


def decode_join(node: Node) -> int:
    (join,) = [record for record in map(decode, node.ledger) if isinstance(record, JoinRecord)]
    return join.at_ms


def test_it_is_asked_at_least_once_a_beat_and_never_without_end() -> None:
    node, _ = moving()
    node.stores = False
    node.take(node.member.worker_ready(node.now, 1, 1))
    node.beating = set()
    ticks = 0
    for _ in range(200):
        due = node.member.next_deadline()
        assert due is not None
        assert due > node.now - 1e-9
        assert due <= node.now + TIMINGS.beat_interval_s + 1e-9
        node.now = due
        node.take(node.member.tick(node.now))
        ticks += 1
    assert node.now > 101, f"{ticks} ticks took {node.now - 100:.2f} s only"
