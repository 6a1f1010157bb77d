"""How long shards stood still when they moved, who was found dead, and what of it a node tells the world."""

from __future__ import annotations

import re

import pytest
from ledger_histories import History, moving, released
from prometheus_client.core import HistogramMetricFamily

from millstream.processor.beats import Beat
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
from millstream.processor.measures import UNKNOWN_LAG, ShardReport
from millstream.processor.member import NodeIdentity
from millstream.processor.membership import Membership, WorkerId
from millstream.processor.membership_measures import MembershipMeasures, MemberView, is_quiet
from millstream.processor.membership_metrics import membership_families, membership_status, node_status
from millstream.processor.status_view import Standbys

ME, OTHER = "me-1", "other-1"
NOW = 1000.0


class Node:
    """What the node `me-1` measures while the ledger goes on."""

    def __init__(self, shards: int = 2) -> None:
        self.measures = MembershipMeasures()
        self.history = History()
        self.now = NOW
        self.history.add(CreatedRecord(shards))
        for node in (OTHER, ME):
            self.history.add(JoinRecord(node, node[:-2]), WorkerUpRecord(node, 0, 0))
        while moving(self.history.now):
            self.history.add(released(self.history.now, moving(self.history.now)[0]))
        self.measures.ledger(self.now, ME, Membership(), self.history.now)

    def read(self, *records: LedgerRecord) -> None:
        """All of them in one page."""
        before = self.history.now
        self.measures.ledger(self.now, ME, before, self.history.add(*records))

    def shard_of(self, node: str) -> int:
        return next(shard for shard, owner in self.history.now.holders.items() if owner.node == node)

    def samples(self, name: str) -> dict[str, float]:
        """By label, or by bucket."""
        found = {}
        for family in membership_families(self.measures, self.view()):
            for sample in family.samples:
                if sample.name == name:
                    found[",".join(sample.labels.values())] = sample.value
        return found

    def view(self, phase: str = "in", doubt: str | None = None) -> MemberView:
        return MemberView(
            identity=NodeIdentity(node=ME, name="me", zone="a"),
            phase=phase,
            doubt=doubt,
            unseen_s=0.1,
            membership=self.history.now,
            beat_ages_s={ME: 0.1, OTHER: 0.02},
            beats_sent=7,
            found_dead=1,
            heard_after_death=2,
        )


def dead(silence_ms: float = 280.0) -> DeadRecord:
    return DeadRecord(OTHER, ME, silence_ms, 250.0, 200)


def test_a_takeover_lasts_from_the_last_beat_to_the_first_commit(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    shard = node.shard_of(OTHER)
    node.read(dead(silence_ms=280.0))
    with caplog.at_level("INFO"):
        node.measures.first_commit(NOW + 0.04, 0, shard)
    assert node.samples("millstream_takeover_seconds_sum")["node"] == pytest.approx(0.32)
    assert node.samples("millstream_takeover_seconds_count") == {"node": 1, "worker": 0}
    assert node.samples("millstream_shards_taken_over_total") == {"node": 1, "worker": 0}
    assert re.search(rf"shard.taken_over shard={shard} worker=0 source=other-1/0.0 took_ms=320", caplog.text)
    node.measures.first_commit(NOW + 9, 0, shard)
    assert node.samples("millstream_takeover_seconds_count")["node"] == 1


def test_what_the_ledger_said_before_the_node_came_is_no_takeover() -> None:
    node = Node()
    node.read(dead())
    late = MembershipMeasures()
    late.ledger(NOW, ME, Membership(), node.history.now)
    late.first_commit(NOW + 1, 0, 0)
    assert late.verdicts_read == 0
    assert late.takeovers["node"].counts == []


def test_a_quiet_shard_that_is_taken_over_has_no_pause_that_could_be_measured() -> None:
    node = Node()
    shard = node.shard_of(OTHER)
    node.read(dead())
    node.measures.reported([ShardReport(shard, "starting", lag=[UNKNOWN_LAG])])
    node.measures.reported([ShardReport(shard, "running", lag=[0, 0])])
    node.measures.first_commit(NOW + 60, 0, shard)
    assert node.samples("millstream_shards_taken_over_total")["node"] == 1
    assert node.samples("millstream_takeover_seconds_count")["node"] == 0


@pytest.mark.parametrize(
    ("report", "quiet"),
    [
        (ShardReport(0, "running", lag=[0, 0]), True),
        (ShardReport(0, "running", lag=[0, 3]), False),
        (ShardReport(0, "running", lag=[0, UNKNOWN_LAG]), False),
        (ShardReport(0, "running"), False),
        (ShardReport(0, "running", commit_age_s=0.1, lag=[0]), False),
        (ShardReport(0, "restarting", lag=[0]), False),
    ],
)
def test_a_shard_is_quiet_when_it_is_known_that_nothing_waits(report: ShardReport, quiet: bool) -> None:
    assert is_quiet(report) is quiet


def test_a_dead_worker_of_this_node_counts_from_its_end() -> None:
    node = Node(shards=1)
    node.read(LeaveRecord(OTHER), WorkerUpRecord(ME, 1, 0))
    (owner,) = set(node.history.now.holders.values())
    node.measures.worker_gone(NOW - 0.03, owner)
    node.read(WorkerDownRecord(owner.node, owner.worker, owner.incarnation, "exit 1"))
    node.measures.first_commit(NOW + 0.02, node.history.now.holders[0].worker, 0)
    assert node.samples("millstream_takeover_seconds_sum")["worker"] == pytest.approx(0.05)


def test_a_planned_move_lasts_from_the_release_to_the_first_commit_here() -> None:
    node = Node()
    shard = node.shard_of(OTHER)
    node.read(LeavingRecord(OTHER))
    node.now = NOW + 5
    node.read(released(node.history.now, shard))
    node.measures.first_commit(NOW + 5.03, 0, shard)
    assert node.samples("millstream_move_seconds_sum")[""] == pytest.approx(0.03)
    assert node.samples("millstream_shards_taken_over_total") == {"node": 0, "worker": 0}


def test_a_shard_that_has_gone_elsewhere_meanwhile_is_not_waited_for() -> None:
    node = Node()
    shard = node.shard_of(OTHER)
    node.read(dead())
    node.read(WorkerDownRecord(ME, 0, 0, "exit 1"))
    node.measures.first_commit(NOW + 60, 0, shard)
    assert node.samples("millstream_takeover_seconds_count")["node"] == 0


def test_verdicts_are_counted_by_who_wrote_and_who_read_them() -> None:
    node = Node()
    node.measures.appended([dead(), LeavingRecord(ME)])
    node.read(dead())
    assert node.samples("millstream_verdicts_written_total")[""] == 1
    assert node.samples("millstream_verdicts_read_total")[""] == 1


def test_gaps_are_those_of_others_and_of_each_node_alone() -> None:
    measures = MembershipMeasures()
    for step in range(5):
        at = NOW + step * 0.05
        measures.beats(at, ME, [Beat(1, ME, step), Beat(1, OTHER, step), Beat(1, "third-1", step)])
    assert measures.beats_heard == 10
    assert sum(measures.beat_gaps.counts) == 8
    assert measures.beat_gaps.total == pytest.approx(0.4)


def test_only_fencing_is_a_fence() -> None:
    measures = MembershipMeasures()
    measures.restarted("FencedError: another owner has fenced this shard")
    measures.restarted("UnavailableError: no connection")
    assert measures.fences == 1


def test_every_name_is_there_before_the_node_takes_part_and_says_zero() -> None:
    families = list(membership_families(MembershipMeasures(), None))
    assert len({family.name for family in families}) == len(families)
    values = {sample.value for family in families for sample in family.samples}
    assert values == {0}
    assert any(isinstance(family, HistogramMetricFamily) for family in families)


def test_standing_is_told_as_numbers() -> None:
    node = Node()
    assert node.samples("millstream_member") == {"": 1}
    assert node.samples("millstream_nodes") == {"": 2}
    assert node.samples("millstream_shards_unowned") == {"": 0}
    assert node.samples("millstream_node_info") == {"me,a": 1}
    assert (node.samples("millstream_found_dead_total"), node.samples("millstream_heard_after_death_total")) == (
        {"": 1},
        {"": 2},
    )
    doubtful = {
        family.name: family.samples[0].value
        for family in membership_families(node.measures, node.view("joining", "no beat comes back"))
        if family.samples
    }
    assert (doubtful["millstream_member"], doubtful["millstream_node_in_doubt"]) == (0, 1)


def test_status_says_who_the_node_is_and_what_it_sees() -> None:
    node = Node()
    assert node_status(node.measures, None)["phase"] == "outside"
    assert membership_status(None, Standbys(), wall_ms=0.0) is None
    own = node_status(node.measures, node.view())
    assert (own["id"], own["name"], own["zone"], own["phase"], own["beats_sent"]) == (ME, "me", "a", "in", 7)
    standbys = Standbys()
    standbys.of(node.history.now)
    seen = membership_status(node.view(), standbys, wall_ms=0.0)
    assert seen is not None
    assert [row["node"] for row in seen["nodes"]] == [ME, OTHER]
    assert {row["standby"] for row in seen["shards"]} == {str(WorkerId(ME, 0, 0)), str(WorkerId(OTHER, 0, 0))}
