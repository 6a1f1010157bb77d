"""Membership: one holder for a shard, the dead hold nothing, and nothing that is said twice or too late counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_histories import NODES, STRANGER, History, histories, join, moving, released, seized

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
    StartedRecord,
    WorkerDownRecord,
    WorkerUpRecord,
)
from millstream.processor.membership import GONE_KEPT, VERDICTS_KEPT, Membership, WorkerId, apply, standby, standbys

A, B, C = WorkerId("a-0", 0, 0), WorkerId("b-0", 0, 0), WorkerId("c-0", 0, 0)


def up(worker: WorkerId) -> list[LedgerRecord]:
    """The worker's node joins and the worker is ready."""
    return [join(worker.node), WorkerUpRecord(worker.node, worker.worker, worker.incarnation)]


def down(worker: WorkerId, *stalls: Stalled) -> WorkerDownRecord:
    return WorkerDownRecord(worker.node, worker.worker, worker.incarnation, "exit 1", list(stalls))


def dead(worker: WorkerId, by: WorkerId) -> DeadRecord:
    return DeadRecord(worker.node, by.node, 281.5, 250.0, 200, 1_700_000_000_000)


def started(shards: int, *workers: WorkerId) -> History:
    """A pipeline at rest: all of these are in, and have what is planned for them."""
    history = History()
    history.add(CreatedRecord(shards))
    for worker in workers:
        history.add(*up(worker))
        while moving(history.now):
            history.add(released(history.now, moving(history.now)[0]))
    return history


def unchanged(membership: Membership, record: LedgerRecord) -> bool:
    """Whether the record changes nothing but the offset of the next one."""
    offset = membership.next_offset
    return apply(membership, offset, record) == replace(membership, next_offset=offset + 1)


@settings(max_examples=300, deadline=None)
@given(histories())
def test_whatever_is_said_every_shard_has_one_live_holder_wherever_there_is_somebody_to_hold_it(
    history: History,
) -> None:
    for now in history.states:
        shards = set(range(now.facts.shards or 0))
        owners = {worker for worker, info in now.workers.items() if info.can_own}
        assert {worker.node for worker in now.workers} <= now.nodes.keys()
        assert set(now.holders.values()) <= now.workers.keys()
        assert set(now.planned.values()) <= owners
        assert now.planned.keys() == (shards if owners else set())
        assert now.holders.keys() <= shards
        assert now.holders.keys() == shards or not owners
        assert now.since.keys() == now.holders.keys()
        assert now.gone == tuple(dict.fromkeys(now.gone))
        assert not now.nodes.keys() & set(now.gone)
        loads = [list(now.planned.values()).count(worker) for worker in owners]
        assert not loads or max(loads) - min(loads) <= 1


@settings(max_examples=300, deadline=None)
@given(histories())
def test_a_shard_is_taken_from_a_live_holder_only_by_its_own_word_or_by_an_overdue_release(history: History) -> None:
    for offset, record in enumerate(history.records):
        before, after = history.states[offset], history.states[offset + 1]
        for shard, holder in before.holders.items():
            is_same = after.holders.get(shard) == holder and after.since.get(shard) == before.since[shard]
            assert is_same or after.since.get(shard, offset) == offset
            match record:
                case ReleasedRecord():
                    assert is_same or (record.shard == shard and record.since == before.since[shard])
                case SeizedRecord():
                    assert is_same or (record.shard == shard and after.holders[shard] == before.planned[shard])
                case _:
                    assert is_same or holder not in after.workers


@settings(max_examples=200, deadline=None)
@given(histories(), st.data())
def test_a_second_copy_of_anything_at_any_later_time_changes_nothing(history: History, data: st.DataObject) -> None:
    for said, record in enumerate(history.records):
        later = data.draw(st.integers(said + 1, len(history.records)))
        assert unchanged(history.states[later], record), (said, later, record)


@settings(max_examples=100, deadline=None)
@given(histories(), st.integers(0, 11))
def test_what_is_read_again_changes_nothing(history: History, back: int) -> None:
    for offset in range(max(0, len(history.records) - back), len(history.records)):
        assert apply(history.now, offset, history.records[offset]) is history.now


@settings(max_examples=100, deadline=None)
@given(histories(), st.integers(0, 11))
def test_those_who_never_joined_and_those_who_are_gone_have_no_say(history: History, shard: int) -> None:
    now = history.now
    live = next(iter(sorted(now.nodes)), "a-0")
    for node in ["stranger-0", *now.gone]:
        assert unchanged(now, WorkerUpRecord(node, 0, 7))
        assert unchanged(now, WorkerDownRecord(node, 0, 7, "exit 1", [Stalled(shard, "parse", "t", 0, 0, 1)]))
        assert unchanged(now, LeavingRecord(node))
        assert unchanged(now, LeaveRecord(node))
        assert unchanged(now, DeadRecord(live, node, 300.0, 250.0, 10))
        assert unchanged(now, DeadRecord(node, live, 300.0, 250.0, 10))
        assert unchanged(now, ReleasedRecord(shard, node, 0, 7, now.since.get(shard, 0)))
        assert unchanged(now, SeizedRecord(shard, node, 0, 7, now.since.get(shard, 0)))
    for node in now.gone:
        assert unchanged(now, join(node))


@settings(max_examples=200, deadline=None)
@given(histories(), st.booleans())
def test_the_standby_is_who_gets_the_shard_when_the_node_of_its_holder_goes(history: History, dies: bool) -> None:
    now = history.now
    for shard, holder in now.holders.items():
        others = sorted(now.nodes.keys() - {holder.node})
        end = DeadRecord(holder.node, others[0], 300.0, 250.0, 10) if dies and others else LeaveRecord(holder.node)
        after = apply(now, now.next_offset, end)
        assert standby(now, shard) == after.holders.get(shard)
        assert standbys(now).get(shard) == after.holders.get(shard)
        assert standby(now, shard) is None or standby(now, shard).node != holder.node  # type: ignore[union-attr]
    assert standbys(now).keys() <= now.holders.keys()


@settings(max_examples=200, deadline=None)
@given(histories())
def test_a_worker_runs_releases_and_awaits_what_holders_and_plan_say(history: History) -> None:
    now = history.now
    workers = [*now.workers, STRANGER]
    assert {s: w for w in workers for s in now.runs(w) | now.releases(w)} == now.holders
    assert {s: w for w in workers for s in now.runs(w) | now.awaits(w)} == now.planned
    assert all(not now.runs(w) & (now.releases(w) | now.awaits(w)) for w in workers)
    assert sorted(w for node in NODES for w in now.workers_of(node)) == sorted(now.workers)


@settings(max_examples=100, deadline=None)
@given(histories())
def test_once_all_that_is_due_is_released_everybody_has_what_is_planned(history: History) -> None:
    for _ in range(len(moving(history.now))):
        history.add(released(history.now, moving(history.now)[0]))
    assert moving(history.now) == []
    assert history.now.holders == history.now.planned


def test_a_newcomer_gets_its_part_shard_by_shard_as_the_others_let_go() -> None:
    history = started(4, A)
    now = history.add(*up(B))
    assert dict(now.holders) == dict.fromkeys(range(4), A)
    assert now.runs(A) == {0, 1}
    assert now.releases(A) == now.awaits(B) == {2, 3}
    now = history.add(released(now, 3))
    assert now.runs(B) == {3}
    assert now.since[3] == now.next_offset - 1
    assert now.awaits(B) == {2}


def test_a_shard_whose_move_is_called_off_stays_where_it_is() -> None:
    history = started(4, A)
    before = history.now
    now = history.add(*up(B), dead(B, A))
    assert now.holders == now.planned == before.holders
    assert now.since == before.since


def test_whoever_lets_go_of_what_it_was_to_keep_gets_it_back_as_a_new_holding() -> None:
    history = started(1, A)
    first = released(history.now, 0)
    now = history.add(first)
    assert now.holders[0] == A
    assert now.since[0] == now.next_offset - 1
    assert unchanged(now, first)


def test_an_overdue_release_is_cut_short_by_the_planned_owner_alone() -> None:
    history = started(2, A)
    now = history.add(*up(B))
    assert unchanged(now, SeizedRecord(1, A.node, 0, 0, now.since[1]))
    assert unchanged(now, SeizedRecord(1, B.node, 0, 0, now.since[1] + 1))
    assert unchanged(now, SeizedRecord(0, B.node, 0, 0, now.since[0]))
    late = released(now, 1)
    now = history.add(seized(now, 1))
    assert now.holders[1] == B
    assert unchanged(now, late)


def test_a_death_gives_the_shards_to_others_in_the_same_step() -> None:
    history = started(3, A, B, C)
    now = history.add(dead(B, C))
    assert B not in now.workers
    assert now.runs(A) | now.runs(C) == {0, 1, 2}
    verdict = now.verdicts[-1]
    assert (verdict.node, verdict.name, verdict.by, verdict.silence_ms) == ("b-0", "b", "c-0", 281.5)
    assert (verdict.offset, verdict.beats_seen, verdict.at_ms) == (now.next_offset - 1, 200, 1_700_000_000_000)


def test_what_a_dead_node_had_is_spread_over_the_nodes_of_other_zones() -> None:
    """The names' zones: a and d share one, b and c have their own."""
    history = started(8, *(WorkerId(f"{name}-0", number, 0) for name in "abcd" for number in range(2)))
    lost = [shard for shard, holder in history.now.holders.items() if holder.node == "d-0"]
    now = history.add(DeadRecord("d-0", "a-0", 281.5, 250.0, 200))
    assert sorted(now.holders[shard].node for shard in lost) == ["b-0", "c-0"]


def test_shards_that_lose_their_next_owner_stay_with_their_holders() -> None:
    history = started(7, A, B)
    before = history.now
    now = history.add(*up(C))
    assert {before.holders[shard] for shard in now.awaits(C)} == {A, B}
    now = history.add(down(C))
    assert now.holders == now.planned == before.holders


def test_of_two_that_find_each_other_dead_the_first_in_the_log_lives() -> None:
    history = started(2, A, B)
    now = history.add(dead(A, B))
    assert unchanged(now, dead(B, A))
    assert now.nodes.keys() == {"b-0"}


def test_a_node_that_was_found_dead_comes_back_under_another_id_unharmed_by_late_verdicts() -> None:
    history = started(2, A, B)
    now = history.add(*up(WorkerId("a-1", 0, 0)), dead(A, B))
    assert unchanged(now, dead(A, B))
    assert unchanged(now, join("a-0"))
    assert now.nodes.keys() == {"b-0", "a-1"}
    assert len(now.runs(WorkerId("a-1", 0, 0))) == 1


def test_the_next_life_of_a_worker_ends_the_one_before_and_a_late_word_does_not_touch_it() -> None:
    history = started(2, A)
    again = WorkerId("a-0", 0, 1)
    now = history.add(WorkerUpRecord("a-0", 0, 1))
    assert now.workers.keys() == {again}
    assert now.runs(again) == {0, 1}
    for late in (down(A), WorkerUpRecord("a-0", 0, 0), LeavingRecord("a-0", 0, 0), LeavingRecord("a-0", 0)):
        assert unchanged(now, late)


def test_a_worker_that_is_said_to_be_gone_before_it_was_up_does_not_come_up() -> None:
    history = started(2, A)
    history.add(WorkerDownRecord("a-0", 1, 0, "exit 1"))
    assert unchanged(history.now, WorkerUpRecord("a-0", 1, 0))
    assert not unchanged(history.now, WorkerUpRecord("a-0", 1, 1))


def test_who_leaves_is_planned_for_no_more_and_what_it_has_goes_as_it_lets_go() -> None:
    history = started(2, A, B)
    now = history.add(LeavingRecord("b-0"))
    assert now.planned == {0: A, 1: A}
    assert now.releases(B) == now.awaits(A) == {1}
    assert unchanged(now, LeavingRecord("b-0"))
    now = history.add(WorkerUpRecord("b-0", 1, 0))
    assert now.runs(WorkerId("b-0", 1, 0)) == now.awaits(WorkerId("b-0", 1, 0)) == frozenset()
    now = history.add(released(now, 1))
    assert now.runs(A) == {0, 1}


def test_a_worker_that_leaves_hands_over_to_its_neighbour() -> None:
    history = started(2, A)
    neighbour = WorkerId("a-0", 1, 0)
    now = history.add(WorkerUpRecord("a-0", 1, 0), LeavingRecord("a-0", 0, 0))
    assert now.awaits(neighbour) == now.releases(A) == {0, 1}


def test_the_last_one_that_leaves_keeps_its_shards_until_it_lets_go_and_a_newcomer_finds_them_free() -> None:
    history = started(1, A)
    now = history.add(LeavingRecord("a-0"))
    assert now.planned == {}
    assert now.releases(A) == {0}
    now = history.add(released(now, 0))
    assert now.holders == {}
    assert history.add(LeaveRecord("a-0"), *up(B)).runs(B) == {0}


def test_a_worker_without_what_the_pipeline_requires_gets_nothing() -> None:
    history = started(2)
    now = history.add(join("a-0"), WorkerUpRecord("a-0", 0, 0, eligible=False))
    assert now.planned == {}
    assert A in now.workers
    assert history.add(*up(B)).runs(B) == {0, 1}


def test_workers_wait_for_the_number_of_shards() -> None:
    history = History()
    assert history.add(*up(A)).planned == {}
    assert history.add(CreatedRecord(3)).runs(A) == {0, 1, 2}
    assert history.add(CreatedRecord(5)).runs(A) == {0, 1, 2}


def test_facts_are_learned_along_the_way() -> None:
    now = started(2, A).add(StartedRecord("t", 1), StartedRecord("t", 1))
    assert [str(partition) for partition in now.facts.started] == ["t-1"]


def stalled(first: int, following: int, shard: int = 0) -> Stalled:
    return Stalled(shard, "parse", "t", 0, first, following)


def test_workers_that_hang_at_the_same_batch_one_after_the_other_are_counted() -> None:
    history = started(1, A, B, C)
    now = history.add(down(A, stalled(10, 20)))
    assert now.stalls[0] == stalled(10, 20)
    now = history.add(down(now.holders[0], stalled(5, 15)))
    assert (now.stalls[0].first_offset, now.stalls[0].attempts) == (5, 2)
    now = history.add(down(now.holders[0], stalled(15, 30)))
    assert [(it.first_offset, it.attempts) for it in now.stalls] == [(5, 2), (15, 1)], "what is next to it is another"


def test_neither_a_death_without_a_batch_nor_a_release_forgets_it() -> None:
    history = started(1, A, B, C)
    now = history.add(down(A, stalled(10, 20)))
    now = history.add(down(now.holders[0]))
    assert now.stalls[0].attempts == 1
    assert history.add(released(now, 0)).stalls == now.stalls


def test_who_starts_the_pipeline_anew_may_have_mended_what_hung() -> None:
    history = started(1, A)
    assert history.add(down(A, stalled(10, 20))).stalls
    now = history.add(LeaveRecord(A.node), JoinRecord("other-1", "other"))
    assert now.stalls == ()


def test_a_stall_of_a_shard_that_there_is_not_is_not_kept() -> None:
    assert started(1, A, B).add(down(A, stalled(10, 20, shard=1))).stalls == ()


@pytest.mark.parametrize(
    "other", [Stalled(0, "s", "u", 0, 1, 9), Stalled(0, "s", "t", 1, 1, 9), stalled(1, 9, shard=1)]
)
def test_only_the_same_partition_of_the_same_shard_can_be_the_same_batch(other: Stalled) -> None:
    assert not other.overlaps(stalled(1, 9))
    assert stalled(1, 9).overlaps(stalled(8, 10))


def test_what_is_remembered_of_the_gone_is_bounded() -> None:
    history = started(1, A)
    for life in range(GONE_KEPT + 5):
        node = WorkerId(f"b-{life}", 0, 0)
        history.add(join(node.node), dead(node, A))
    assert len(history.now.verdicts) == VERDICTS_KEPT
    assert len(history.now.gone) == GONE_KEPT
    assert history.now.gone[-1] == history.now.verdicts[-1].node == f"b-{GONE_KEPT + 4}"


def test_a_worker_is_named_as_one_reads_it() -> None:
    assert str(WorkerId("host-1f", 0, 3)) == "host-1f/0.3"
