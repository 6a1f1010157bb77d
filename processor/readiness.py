"""Whether a node is ready, and why not: pure, with the time as an argument.

Ready means that the node is in the membership and that at least one of its shards gets answers from the broker, or
that it owns none and could run some. A node whose own beats do not come back may have been found dead; it counts as
ready for as long as an outage of the broker would, lest a hiccup of that takes all nodes out at once.
A quiet topic is ready: the broker answers that there is nothing new. A busy shard is ready: it asks for nothing while
it has enough. Liveness is another matter, and depends on nothing but the agent's event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from millstream.processor.control import Progress
from millstream.processor.measures import ShardReport
from millstream.processor.slot import Standing, WorkerView

SILENCE_S_MAX: Final = 5.0

Reason: TypeAlias = Literal[
    "ready", "starting", "draining", "no-worker", "joining", "in-doubt", "worker-silent", "broker-away", "no-device"
]


@dataclass(frozen=True, slots=True)
class Heard:
    """The last progress of a worker's current incarnation, and when it came."""

    progress: Progress
    at: float


@dataclass(frozen=True, slots=True)
class Part:
    """The node's part in the membership: `Member.phase` and `Member.doubt`, and how old its newest beat is that came
    back, in seconds; None before the first one was sent."""

    phase: str
    doubt: str | None
    unseen_s: float | None


@dataclass(frozen=True, slots=True)
class Readiness:
    """A word for machines, and a sentence for people."""

    reason: Reason
    detail: str

    @property
    def is_ready(self) -> bool:
        """Whether work may be expected of the node."""
        return self.reason == "ready"


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard with its owner; `report` is None until the owner has spoken of it. `silent_s` counts up to now."""

    shard: int
    worker: int
    report: ShardReport | None
    silent_s: float

    def is_well(self, silence_s_max: float) -> bool:
        """Whether it has begun, and gets answers."""
        return self.report is not None and self.report.state != "starting" and self.silent_s <= silence_s_max


def readiness(
    phase: str,
    workers: Sequence[WorkerView],
    heard: Mapping[int, Heard],
    now: float,
    silence_s_max: float = SILENCE_S_MAX,
    *,
    part: Part | None = None,
) -> Readiness:
    """What the node answers now. `phase` is the supervisor's word; `part` is None where there is no membership."""
    if phase in ("draining", "ended"):
        return Readiness("draining", "the node was told to end, or ends by itself; it takes nothing more")
    if phase == "starting":
        return Readiness("starting", f"no shards are given out yet: {_standings(workers, heard)}")
    if not any(view.standing is Standing.READY for view in workers):
        return Readiness("no-worker", f"no worker can run shards now: {_standings(workers, heard)}")
    if part is not None and part.phase in ("joining", "declared"):
        return Readiness("joining", "the node is not in the membership yet, so that nothing can be given to it")
    shards = list(shard_views(workers, heard, now))
    well = sum(shard.is_well(silence_s_max) for shard in shards)
    is_unseen = part is not None and part.unseen_s is not None and part.unseen_s > silence_s_max
    if is_unseen and part is not None and (well or not shards):
        return Readiness("in-doubt", part.doubt or "no beat of this node comes back")
    if not shards:
        return Readiness("ready", "this node owns no shards at the moment, and can run some")
    if well:
        return Readiness("ready", f"{well} of the node's {len(shards)} shards get answers from the broker")
    return _why_not(shards, heard, now, silence_s_max)


def _standings(workers: Sequence[WorkerView], heard: Mapping[int, Heard]) -> str:
    waits = {worker: last.progress.measures.waits_for for worker, last in heard.items()}
    return ", ".join(
        f"worker {view.worker} {view.standing.value}"
        + (f" (waits for {waits[view.worker]})" if waits.get(view.worker) else "")
        for view in workers
    )


def _why_not(shards: Sequence[ShardView], heard: Mapping[int, Heard], now: float, silence_s_max: float) -> Readiness:
    mute = {s.worker: now - heard[s.worker].at for s in shards if s.worker in heard}
    for worker, silent_s in mute.items():
        if silent_s > silence_s_max:
            return Readiness("worker-silent", f"worker {worker} has not reported for {silent_s:.1f} s")
    away = [shard for shard in shards if shard.silent_s > silence_s_max]
    if not away:
        return Readiness("starting", f"none of the node's {len(shards)} shards has begun yet")
    failures = [heard[shard.worker].progress.measures.last_failure for shard in away if shard.worker in heard]
    reasons = [failure for failure in failures if failure is not None]
    reasons += [shard.report.reason for shard in away if shard.report is not None and shard.report.reason is not None]
    last = f"; the last trouble was {reasons[0]}" if reasons else ""
    silent_s = min(shard.silent_s for shard in away)
    return Readiness("broker-away", f"no shard has got an answer from the broker for {silent_s:.1f} s{last}")


def shard_views(workers: Sequence[WorkerView], heard: Mapping[int, Heard], now: float) -> Iterator[ShardView]:
    """Every shard that a worker owns."""
    for view in workers:
        last = heard.get(view.worker)
        reports = {report.shard: report for report in last.progress.measures.shards} if last else {}
        for shard in view.shards:
            report = reports.get(shard)
            late_s = now - last.at if last else 0.0
            yield ShardView(shard, view.worker, report, late_s + (report.silent_s if report else 0.0))
