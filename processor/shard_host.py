"""The contract between a worker process and the engine in it.

A worker process brings a channel to its agent, signals and a heartbeat; the host brings shards to life. Neither
knows how the other does it, so that the agent and its workers are tested without Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import msgspec

from millstream.processor.counts import Counts
from millstream.processor.measures import Measures
from millstream.processor.offload_report import (
    DeviceLeased,
    DeviceRefused,
    DeviceReturned,
    DeviceWanted,
    OffloadReport,
)
from millstream.processor.stage_page import StagePage
from millstream.processor.stalled import Stalled, WatchPlan


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is known once the host has met the broker. `shards` is at least 1 and the same in every worker.

    `watch_plan` says how to read the page that `serve` is given. `requires_device`: the pipeline's shards are to run
    on nodes that have a device alone.
    """

    pipeline: str
    shards: int
    watch_plan: WatchPlan = field(default_factory=WatchPlan)
    requires_device: bool = False


class ShardStarted(msgspec.Struct, frozen=True, tag="shard-started"):
    """The host has begun to run the shard."""

    shard: int


class ShardCommitted(msgspec.Struct, frozen=True, tag="shard-committed"):
    """The host has made its first commit of the shard since it began to run it: its output goes on."""

    shard: int


class ShardReleased(msgspec.Struct, frozen=True, tag="shard-released"):
    """The host has committed what it had of the shard, or dropped it, and will not touch it again.

    Where the shard is still named by the last `assign` and no `stop` was asked for, this says that the shard has
    reached the end of the run.
    """

    shard: int


class ShardRestarted(msgspec.Struct, frozen=True, tag="shard-restarted"):
    """The host still owns the shard and began it again from the fence. `reason` holds no payload of a record."""

    shard: int
    reason: str


HostEvent: TypeAlias = (
    ShardStarted | ShardCommitted | ShardReleased | ShardRestarted | DeviceWanted | DeviceReturned | OffloadReport
)
DeviceNews: TypeAlias = DeviceLeased | DeviceRefused


class ShardHost(Protocol):
    """Runs the shards that it is told to run, in the worker's event loop.

    The calls come in this order: `prepare`, `serve`, and while that runs any number of `assign`, then `stop` at most
    once. A final error (`UserError`, `RefusedError`) says that a restart cannot help.
    """

    async def prepare(self) -> Prepared:
        """Connect, check broker and topics, fix the number of shards.

        Waiting for a broker is bounded inside. Raises UserError or RefusedError, which are final, or
        UnavailableError. May be cancelled, and leaves nothing behind then.
        """

    async def serve(self, report: Callable[[HostEvent], None], page: StagePage | None = None) -> None:
        """Run what `assign` names until `stop`, or until the run is complete where one with an end was asked for.

        Where there is a `page`, each batch and stage is put on it, since that is all that an agent sees of a stage that
        hangs.

        Raises the first final error, alone or in an exception group. A host that has no shards waits for some; it is
        not complete.
        """

    def assign(
        self, shards: frozenset[int], stalls: Sequence[Stalled] = (), tokens: Mapping[int, int] | None = None
    ) -> None:
        """The shards to own from now on: starts the new ones and releases the others.

        `tokens` are those of their ownership, by shard; 0 where there is none.

        `stalls` are batches of theirs at which workers hung: they are tried in smaller pieces, and after the last
        attempt their records go to the policy of the stage.
        A release lets the commit in flight end, then reports `ShardReleased`. A shard that was released is named
        again only after that report.
        """

    def device_news(self, news: DeviceNews) -> None:
        """The node's answer to a `DeviceWanted`, or the end of a lease."""

    async def stop(self, timeout_s: float) -> None:
        """Commit what is in hand within the bound and release everything; `serve` then returns."""

    def counts(self) -> Counts:
        """What was done since the host was made."""

    def measures(self) -> Measures:
        """What was measured since the host was made, and how each shard that it runs is now."""
