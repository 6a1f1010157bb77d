"""What an operator sees of a membership: rows that follow from the ledger and the beats, and how they are shown."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_histories import History, histories, moving, released
from rich.console import Console

from millstream.connectors.kafka.lag import PartitionLag
from millstream.connectors.kafka.onlooker import Flow, Sight, flows_of
from millstream.connectors.kafka.status_command import as_json
from millstream.connectors.kafka.status_tables import LIVE_ROWS_MAX, headline, span, status_screen
from millstream.processor.ledger import (
    CreatedRecord,
    DeadRecord,
    JoinRecord,
    LeaveRecord,
    LeavingRecord,
    ReadingRecord,
    Stalled,
    StartedRecord,
    WorkerDownRecord,
    WorkerUpRecord,
)
from millstream.processor.ledger_reader import restore, snapshot
from millstream.processor.ledger_story import LedgerStory
from millstream.processor.membership import Membership, standbys
from millstream.processor.status_view import Standbys, StatusView, status_view

WALL_MS = 1_700_000_060_000.0
JOINED_MS = 1_700_000_000_000


def two_nodes(shards: int = 4) -> History:
    history = History()
    history.add(CreatedRecord(shards), ReadingRecord("in", 6))
    for node, zone in (("left-1", "a"), ("right-1", "b")):
        history.add(JoinRecord(node, node[:-2], zone, ["gpu"], JOINED_MS), WorkerUpRecord(node, 0, 0))
    while moving(history.now):
        history.add(released(history.now, moving(history.now)[0]))
    return history


def view_of(membership: Membership, **ages_s: float) -> StatusView:
    ages = {name.replace("_", "-"): age_s for name, age_s in ages_s.items()}
    return status_view(membership, ages, standbys(membership), wall_ms=WALL_MS)


def test_nodes_workers_and_shards_with_their_partitions_and_standbys() -> None:
    view = view_of(two_nodes().now, left_1=0.02, right_1=0.05)
    left, right = view.nodes
    assert (left.node, left.name, left.zone, left.labels, left.state) == ("left-1", "left", "a", ("gpu",), "in")
    assert (left.since_s, left.beat_age_ms, right.beat_age_ms) == (60.0, 20.0, 50.0)
    assert [(row.workers, row.shards) for row in view.nodes] == [(1, 2), (1, 2)]
    assert sorted(shard for row in view.workers for shard in row.shards) == [0, 1, 2, 3]
    by_shard = {row.shard: row for row in view.shards}
    assert by_shard[0].partitions == ("in-0", "in-4")
    assert by_shard[3].partitions == ("in-3",)
    assert {row.state for row in view.shards} == {"owned"}
    other = {"left-1/0.0": "right-1/0.0", "right-1/0.0": "left-1/0.0"}
    assert all(row.owner and row.standby == other[row.owner] and row.planned == row.owner for row in view.shards)


@pytest.mark.parametrize(("age_s", "state"), [(0.39, "in"), (0.41, "silent"), (None, "silent")])
def test_a_node_is_silent_when_it_was_not_heard_for_as_long_as_a_verdict_takes(age_s: float | None, state: str) -> None:
    ages = {} if age_s is None else {"left_1": age_s}
    assert view_of(two_nodes().now, right_1=0.01, **ages).nodes[0].state == state


def test_a_node_that_leaves_says_so_and_its_shards_move() -> None:
    history = two_nodes()
    now = history.add(LeavingRecord("left-1"))
    view = view_of(now, left_1=0.01, right_1=0.01)
    assert [row.state for row in view.nodes] == ["leaving", "in"]
    assert [row.state for row in view.workers] == ["leaving", "ready"]
    moved = [row for row in view.shards if row.state == "moving"]
    assert {(row.owner, row.planned) for row in moved} == {("left-1/0.0", "right-1/0.0")}
    assert len(moved) == 2


def test_who_is_heard_and_not_in_the_ledger_is_joining_or_was_found_dead_or_has_just_left() -> None:
    history = two_nodes()
    now = history.add(DeadRecord("left-1", "right-1", 287.5, 281.25, 200, JOINED_MS + 50_000), LeaveRecord("right-1"))
    view = view_of(now, left_1=0.01, right_1=0.1, new_1=0.02, gone_1=5.0)
    assert [(row.node, row.state) for row in view.nodes] == [("left-1", "found dead"), ("new-1", "joining")]
    (verdict,) = view.verdicts
    assert (verdict.node, verdict.by, verdict.silence_ms, verdict.threshold_ms) == ("left-1", "right-1", 287.5, 281.25)
    assert verdict.ago_s == 10.0
    assert [row.state for row in view.shards] == ["unowned"] * 4


def test_records_at_which_workers_hung_are_shown() -> None:
    history = two_nodes()
    owner = history.now.holders[1]
    stalled = Stalled(1, "parse", "in", 1, 100, 164)
    now = history.add(WorkerDownRecord(owner.node, owner.worker, owner.incarnation, "hung", [stalled]))
    (stall,) = view_of(now).stalls
    assert (stall.shard, stall.stage, stall.records, stall.attempts) == (1, "parse", "in-1@100..163", 1)


def test_partitions_that_were_added_are_known_once_they_have_an_offset() -> None:
    now = two_nodes().add(StartedRecord("in", 9))
    assert view_of(now).shards[1].partitions == ("in-1", "in-5", "in-9")


def test_when_a_node_joined_survives_a_snapshot() -> None:
    now = two_nodes().now
    assert view_of(restore(snapshot(now))).nodes[0].since_s == 60.0


def test_standbys_are_worked_out_once_for_each_state_of_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Membership] = []

    def counted(membership: Membership) -> dict[int, object]:
        asked.append(membership)
        return {}

    monkeypatch.setattr("millstream.processor.status_view.standbys", counted)
    cache, now = Standbys(), two_nodes().now
    for _ in range(3):
        cache.of(now)
    assert asked == [now]
    cache.of(replace(now, next_offset=now.next_offset + 1))
    assert len(asked) == 2


@settings(max_examples=60, deadline=None)
@given(histories())
def test_standbys_that_are_worked_out_in_pieces_are_the_same(history: History) -> None:
    async def found() -> None:
        cache = Standbys()
        assert cache.known(history.now) == {}
        await cache.find(history.now)
        assert cache.known(history.now) == cache.of(history.now) == standbys(history.now)

    asyncio.run(found())


@settings(max_examples=60, deadline=None)
@given(histories(), st.sampled_from([{}, {"a-0": 0.01, "stranger": 0.02}]))
def test_every_membership_can_be_shown_and_told(history: History, ages_s: dict[str, float]) -> None:
    story = LedgerStory()
    for offset, record in enumerate(history.records):
        story.read(history.states[offset], history.states[offset + 1], offset, record, WALL_MS + offset)
    view = status_view(history.now, ages_s, standbys(history.now), wall_ms=WALL_MS)
    sight = Sight(view, {}, story, None)
    console = Console(file=io.StringIO(), width=200)
    for is_live in (False, True):
        console.print(status_screen("p", sight, is_live=is_live))
    assert msgspec.json.decode(json.dumps(as_json("p", sight)))["pipeline"] == "p"


def printed(sight: Sight, *, is_live: bool) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(status_screen("orders", sight, is_live=is_live))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_is_printed_holds_the_numbers() -> None:
    history = two_nodes()
    story = LedgerStory()
    dead = DeadRecord("left-1", "right-1", 287.5, 281.25, 200, JOINED_MS + 50_000)
    before = history.now
    story.read(before, history.add(dead), before.next_offset, dead, WALL_MS)
    flows = {shard: Flow(1200 + shard, 250.0) for shard in range(4)}
    sight = Sight(view_of(history.now, right_1=0.034), flows, story, None)
    assert headline("orders", sight) == (
        "orders: 1 of 1 nodes heard, 4 of 4 shards owned, 4,806 behind, 1,000 offsets/s"
    )
    once, live = printed(sight, is_live=False), printed(sight, is_live=True)
    for text in (once, live):
        assert "34 ms" in text
        assert "288 ms" in text
        assert "1,203" in text
    assert "found dead" in live
    assert "left-1 by right-1: silent for 288 ms, allowed were 281 ms" in live
    assert "by right-1/0.0 from left-1/0.0, 288 ms after its last beat" in live
    assert "does not answer" in printed(replace(sight, trouble="no connection to 127.0.0.1:1"), is_live=True)


def test_a_live_view_of_many_nodes_shows_what_is_unusual_first_and_how_many_there_are() -> None:
    history = History()
    history.add(CreatedRecord(40), *(JoinRecord(f"node-{n:03}", "node") for n in range(100)))
    ages_s = {node: 0.01 for node in history.now.nodes if node != "node-077"}
    sight = Sight(status_view(history.now, ages_s, {}, wall_ms=WALL_MS), {}, LedgerStory(), None)
    live = printed(sight, is_live=True)
    assert "node-077" in live
    assert live.count("node-0") == LIVE_ROWS_MAX
    assert f"and {100 - LIVE_ROWS_MAX} more nodes" in live
    assert f"and {40 - LIVE_ROWS_MAX} more shards" in live
    assert printed(sight, is_live=False).count("node-0") == 100


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "not known"),
        (3.21, "3.2 s"),
        (61, "1 min 1 s"),
        (7322, "2 h 2 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_lengths_of_time_are_for_people(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


def row(partition: int, committed: int | None, end: int) -> PartitionLag:
    lag = None if committed is None else end - committed
    return PartitionLag("in", partition, committed, end, lag, None, "ok" if committed is not None else "not committed")


def test_lag_and_throughput_of_a_shard_are_those_of_its_partitions() -> None:
    before = [row(0, 10, 100), row(1, 0, 5), row(2, 50, 100)]
    now = [row(0, 30, 100), row(1, 5, 5), row(2, 60, 100)]
    assert flows_of(now, before, 2.0, 2) == {0: Flow(70 + 40, 15.0), 1: Flow(0, 2.5)}
    assert flows_of(now, (), None, 2)[0] == Flow(110, None)


def test_a_partition_without_a_committed_offset_leaves_the_lag_open() -> None:
    assert flows_of([row(0, 10, 20), row(2, None, 9)], (), None, 2) == {0: Flow(None, None), 1: Flow(None, None)}
