"""What a node has measured of the membership: beats, verdicts, and how long its shards stood still when they moved.

It is told what happened and when, and answers nothing; times are seconds of one clock. Everything is since the agent
started, through all lives of the node.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from millstream.processor.beats import Beat
from millstream.processor.event_log import EventLog
from millstream.processor.ledger import DeadRecord, LedgerRecord
from millstream.processor.measures import UNKNOWN_LAG, Histogram, ShardReport
from millstream.processor.member import NodeIdentity
from millstream.processor.membership import Membership, WorkerId

_log: Final = EventLog(logging.getLogger("millstream.member"))

TAKEOVER_BOUNDS_S: Final = (
    *(0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.275, 0.3, 0.325, 0.35, 0.4, 0.45, 0.5, 0.6, 0.8),
    *(1.0, 1.5, 2.5, 5.0, 10.0),
)
MOVE_BOUNDS_S: Final = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
GAP_BOUNDS_S: Final = (
    *(0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4),
    *(0.6, 1.0, 2.5),
)
_WORKERS_KEPT: Final = 64

Cause: TypeAlias = Literal["node", "worker", "move"]
CAUSES: Final[tuple[Cause, ...]] = ("node", "worker")


class _Coming(NamedTuple):
    """A shard that has come here and has not committed yet; `began` is when it fell silent elsewhere."""

    began: float
    cause: Cause
    source: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A node's part in the membership at one moment.

    `doubt` is why it cannot know whether it was found dead, or None; `unseen_s` is how long ago the newest own beat
    that came back was sent, None before the first. `beat_ages_s` are by node. Counts are since the agent started:
    `found_dead` is how often others found this node dead, `heard_after_death` how many others were heard after that.
    """

    identity: NodeIdentity
    phase: str
    doubt: str | None
    unseen_s: float | None
    membership: Membership
    beat_ages_s: Mapping[str, float]
    beats_sent: int
    found_dead: int
    heard_after_death: int


class MembershipMeasures:
    """One node's. `heard_after_death` is that of its earlier lives."""

    def __init__(self) -> None:
        self.beats_heard = 0
        self.beat_gaps = Histogram()
        self.verdicts_written = 0
        self.verdicts_read = 0
        self.heard_after_death = 0
        self.fences = 0
        self.taken_over: Counter[Cause] = Counter()
        self.takeovers: dict[Cause, Histogram] = {cause: Histogram() for cause in CAUSES}
        self.moves = Histogram()
        self._last_beats: dict[str, float] = {}
        self._gone_at: dict[WorkerId, float] = {}
        self._coming: dict[int, _Coming] = {}

    # -- what happened ------------------------------------------------------------------------------------------

    def beats(self, now: float, own_node: str, beats: Iterable[Beat]) -> None:
        """Beats were read, those of the own node among them."""
        for beat in beats:
            if beat.node != own_node:
                self.beats_heard += 1
                before = self._last_beats.get(beat.node)
                self._last_beats[beat.node] = now
                if before is not None:
                    self.beat_gaps.observe(GAP_BOUNDS_S, now - before)

    def appended(self, records: Iterable[LedgerRecord]) -> None:
        """The node has something to say in the ledger."""
        self.verdicts_written += sum(isinstance(record, DeadRecord) for record in records)

    def worker_gone(self, now: float, worker: WorkerId) -> None:
        """A worker's process on this node is gone."""
        self._gone_at[worker] = now
        if len(self._gone_at) > _WORKERS_KEPT:
            del self._gone_at[next(iter(self._gone_at))]

    def ledger(self, now: float, own_node: str, before: Membership, after: Membership) -> None:
        """The ledger was read on. The first time, where `before` is empty, what it says is history."""
        if before.next_offset == 0 or after is before:
            return
        self._read_verdicts(own_node, before, after)
        self._last_beats = {node: at for node, at in self._last_beats.items() if node in after.nodes}
        self._coming = {
            shard: coming
            for shard, coming in self._coming.items()
            if (owner := after.holders.get(shard)) is not None and owner.node == own_node
        }
        for shard, owner in after.holders.items():
            if owner.node == own_node and after.since[shard] >= before.next_offset:
                self._expect(now, shard, before.holders.get(shard), owner, after)

    def _read_verdicts(self, own_node: str, before: Membership, after: Membership) -> None:
        for verdict in after.verdicts:
            if verdict.offset >= before.next_offset:
                self.verdicts_read += 1
                if verdict.by != own_node:
                    _log.warning(
                        "node.verdict",
                        node=verdict.node,
                        by=verdict.by,
                        silence_ms=verdict.silence_ms,
                        threshold_ms=verdict.threshold_ms,
                        beats_seen=verdict.beats_seen,
                    )

    def _expect(self, now: float, shard: int, source: WorkerId | None, owner: WorkerId, after: Membership) -> None:
        self._coming.pop(shard, None)
        if source is None or source == owner:
            # It begins, or begins again, where nobody had it: nothing stood still for our sake.
            return
        verdict = next((it for it in after.verdicts if it.offset == after.since[shard]), None)
        if verdict is not None:
            self._coming[shard] = _Coming(now - verdict.silence_ms / 1000, "node", source)
        elif source.node in after.nodes and source not in after.workers:
            self._coming[shard] = _Coming(self._gone_at.get(source, now), "worker", source)
        else:
            self._coming[shard] = _Coming(now, "move", source)

    def first_commit(self, now: float, worker: int, shard: int) -> None:
        """A worker of this node has made its first commit of a shard that it was given."""
        coming = self._coming.pop(shard, None)
        if coming is None:
            return
        took_s = max(0.0, now - coming.began)
        event = "shard.moved" if coming.cause == "move" else "shard.taken_over"
        if coming.cause == "move":
            self.moves.observe(MOVE_BOUNDS_S, took_s)
        else:
            self.taken_over[coming.cause] += 1
            self.takeovers[coming.cause].observe(TAKEOVER_BOUNDS_S, took_s)
        _log.info(event, shard=shard, worker=worker, source=coming.source, took_ms=took_s * 1000)

    def reported(self, reports: Collection[ShardReport]) -> None:
        """A worker has reported. A shard that runs and has nothing to commit has not stood still: it is quiet."""
        if not self._coming:
            return
        for report in reports:
            if report.shard in self._coming and is_quiet(report):
                coming = self._coming.pop(report.shard)
                if coming.cause != "move":
                    self.taken_over[coming.cause] += 1
                    _log.info("shard.taken_over_quiet", shard=report.shard, source=coming.source)

    def restarted(self, reason: str) -> None:
        """A shard of this node began again from the fence."""
        self.fences += reason.startswith("FencedError")


def is_quiet(report: ShardReport) -> bool:
    """Whether the shard runs and is at the end of its partitions without having committed anything."""
    is_caught_up = bool(report.lag) and UNKNOWN_LAG not in report.lag and not any(report.lag)
    return report.state == "running" and report.commit_age_s is None and is_caught_up
