"""What has happened, as the ledger tells it: in words, with the numbers that are in it, and nothing twice."""

from __future__ import annotations

from ledger_histories import History, moving, released, seized

from millstream.processor.ledger import (
    CreatedRecord,
    DeadRecord,
    JoinRecord,
    LeaveRecord,
    LeavingRecord,
    LedgerRecord,
    WorkerDownRecord,
    WorkerUpRecord,
)
from millstream.processor.ledger_reader import snapshot
from millstream.processor.ledger_story import EVENTS_KEPT, LedgerStory


class Told:
    """A history with its story."""

    def __init__(self) -> None:
        self.history = History()
        self.story = LedgerStory()
        self.wall_ms: float | None = 1000.0

    def add(self, *records: LedgerRecord) -> list[tuple[str, str]]:
        """What the records bring to be told."""
        self.story.events.clear()
        for record in records:
            before = self.history.now
            self.story.read(before, self.history.add(record), len(self.history.records) - 1, record, self.wall_ms)
        return [(event.what, event.text) for event in self.story.events]

    def up(self, node: str) -> list[tuple[str, str]]:
        return self.add(JoinRecord(node, node, "z"), WorkerUpRecord(node, 0, 0))


def test_a_start_is_told() -> None:
    told = Told()
    told.add(CreatedRecord(2))
    assert told.up("a") == [("joined", "a in zone z"), ("worker up", "a/0.0"), ("given", "shards 0, 1 to a/0.0")]


def test_a_planned_move_is_told_with_its_length() -> None:
    told = Told()
    told.add(CreatedRecord(2))
    told.up("a")
    assert told.up("b") == [("joined", "b in zone z"), ("worker up", "b/0.0")]
    (shard,) = moving(told.history.now)
    told.wall_ms = 1042.0
    moved = told.add(released(told.history.now, shard))
    assert moved == [("moved", f"shard {shard} from a/0.0 to b/0.0 in 42 ms")]


def test_a_move_that_began_before_anyone_looked_has_no_length() -> None:
    told = Told()
    told.wall_ms = None
    told.add(CreatedRecord(2))
    told.up("a")
    told.up("b")
    (shard,) = moving(told.history.now)
    told.wall_ms = 1042.0
    assert told.add(released(told.history.now, shard)) == [("moved", f"shard {shard} from a/0.0 to b/0.0")]


def test_a_death_is_told_with_the_silence_that_led_to_it_and_a_second_verdict_is_not() -> None:
    told = Told()
    told.add(CreatedRecord(1))
    told.up("a")
    told.up("b")
    dead = DeadRecord("a", "b", 287.4, 250.0, 200, 5)
    assert told.add(dead) == [
        ("found dead", "a by b: silent for 287 ms, allowed were 250 ms"),
        ("taken over", "shard 0 by b/0.0 from a/0.0, 287 ms after its last beat"),
    ]
    assert [event.at_ms for event in told.story.events] == [5, 5]
    assert told.add(dead) == []


def test_a_worker_that_dies_and_a_shard_that_is_seized_are_told() -> None:
    told = Told()
    told.add(CreatedRecord(1))
    told.up("a")
    told.up("b")
    assert told.add(WorkerDownRecord("a", 0, 0, "killed by SIGKILL")) == [
        ("worker down", "a/0.0: killed by SIGKILL"),
        ("taken over", "shard 0 by b/0.0 from a/0.0"),
    ]
    told.add(WorkerUpRecord("a", 0, 1), LeavingRecord("b"))
    assert told.add(seized(told.history.now, 0)) == [
        ("seized", "shard 0 by a/0.1 from b/0.0, which did not let go"),
    ]


def test_leaving_is_told_once_and_shards_that_nobody_can_run_are_told_as_that() -> None:
    told = Told()
    told.add(CreatedRecord(12))
    told.up("a")
    assert told.add(LeavingRecord("a"), LeavingRecord("a")) == [("leaving", "a")]
    assert told.add(LeaveRecord("a")) == [
        ("left", "a"),
        ("unowned", "shards 0, 1, 2, 3, 4, 5, 6, 7 and 4 more of a/0.0: nobody can run them"),
    ]


def test_a_snapshot_tells_nothing_and_only_the_last_events_are_kept() -> None:
    told = Told()
    told.add(CreatedRecord(1))
    told.up("a")
    assert told.add(snapshot(told.history.now)) == []
    told.add(*(JoinRecord(f"n-{number}", "n") for number in range(EVENTS_KEPT + 10)))
    assert len(told.story.events) == EVENTS_KEPT
