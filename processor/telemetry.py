"""What a node tells the world about itself: metrics for Prometheus, and a status and a readiness for people.

Counters are the node's, not a worker's: when a worker dies, what it had counted stays in the sum, so that no
counter ever goes back. Gauges are about what lives, and are gone with it. The values of labels are bounded: workers,
shards, stages and input topics of the pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from millstream.processor.measures import (
    COMMIT_BOUNDS_S,
    LATENCY_BOUNDS_S,
    OUTCOMES,
    UNKNOWN_LAG,
    Tally,
)
from millstream.processor.membership_measures import MembershipMeasures, MemberView
from millstream.processor.membership_metrics import (
    Family,
    histogram_family,
    membership_families,
    membership_status,
    node_status,
)
from millstream.processor.offload_metrics import offload_families, offload_status
from millstream.processor.process_use import process_use
from millstream.processor.readiness import Part, Readiness, ShardView, readiness, shard_views
from millstream.processor.slot import ALIVE, Standing, WorkerView
from millstream.processor.status_view import Standbys
from millstream.processor.supervision import Supervisor
from millstream.processor.totals import Totals

METRICS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_FINDS_MAX: Final = 3

_COUNTERS: Final = {
    "records_in": "Input records whose effects are committed.",
    "records_out": "Output records that are committed.",
    "bytes_in": "Bytes of input records.",
    "bytes_out": "Bytes of output records.",
    "dead_letters": "Records that went to a dead-letter topic.",
    "skipped": "Records that a stage's policy skipped after an error.",
    "retries": "Attempts of a stage beyond the first.",
}


@dataclass(frozen=True, slots=True)
class NodeView:
    """The node at one moment."""

    workers: Sequence[WorkerView]
    shards: Sequence[ShardView]
    readiness: Readiness
    member: MemberView | None


class Telemetry(Collector):
    """Answers from the supervisor, the totals and the membership as they are at that moment.

    `member` answers this node's part, None while it takes none.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        totals: Totals,
        clock: Callable[[], float],
        measures: MembershipMeasures,
        member: Callable[[], MemberView | None],
    ) -> None:
        self._supervisor = supervisor
        self._totals = totals
        self._clock = clock
        self._measures = measures
        self._member = member
        self._standbys = Standbys()
        self.lacks: str | None = None
        """What the node lacks that the pipeline requires, where it is so."""
        self._version = version("millstream")
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def metrics(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def readiness(self) -> Readiness:
        """Whether work may be expected of the node, and why not."""
        return self._view().readiness

    def _view(self) -> NodeView:
        workers, now, heard = list(self._supervisor.workers()), self._clock(), self._totals.heard
        member = self._member()
        part = None if member is None else Part(member.phase, member.doubt, member.unseen_s)
        ready = readiness(self._supervisor.phase, workers, heard, now, part=part)
        if self.lacks is not None:
            ready = Readiness("no-device", self.lacks)
        return NodeView(workers, list(shard_views(workers, heard, now)), ready, member)

    # -- status -------------------------------------------------------------------------------------------------

    async def find_standbys(self) -> None:
        """Do what `status` needs time for, in small pieces; where the ledger does not stand still, so far."""
        for _ in range(_FINDS_MAX):
            member = self._member()
            if member is None:
                return
            await self._standbys.find(member.membership)

    def status(self) -> dict[str, Any]:
        """All that an operator asks first, as JSON-serialisable values. Standbys are in it after `find_standbys`."""
        view, sums = self._view(), self._totals.sums()
        return {
            "version": self._version,
            "pipeline": self._supervisor.pipeline,
            "phase": self._supervisor.phase,
            "ready": view.readiness.is_ready,
            "reason": view.readiness.reason,
            "detail": view.readiness.detail,
            "workers": [self._worker_status(worker, view.shards) for worker in view.workers],
            "shards": self._shard_statuses(view.shards),
            "counts": {name: getattr(sums.counts, name) for name in _COUNTERS},
            "transactions": {outcome: sums.tally.transactions.get(outcome, 0) for outcome in OUTCOMES},
            "offload": offload_status(self._totals.offload_counts(), self._totals.offload),
            "shard_restarts": self._supervisor.shard_restarts,
            "node": node_status(self._measures, view.member),
            "membership": membership_status(view.member, self._standbys, wall_ms=time.time() * 1000),
        }

    def _worker_status(self, worker: WorkerView, shards: Sequence[ShardView]) -> dict[str, Any]:
        heard = self._totals.heard.get(worker.worker)
        lags = [lag for shard in shards if shard.worker == worker.worker and (lag := _lag_of(shard)) is not None]
        return {
            "worker": worker.worker,
            "incarnation": worker.incarnation,
            "standing": worker.standing.value,
            "shards": list(worker.shards),
            "lag": sum(lags) if lags else None,
            "restarts": worker.restarts,
            "loop_lag_ms": heard.progress.loop_lag_ms if heard else None,
            "resident_bytes": heard.progress.use.resident_bytes if heard else None,
        }

    def _shard_statuses(self, shards: Sequence[ShardView]) -> list[dict[str, Any]]:
        owned = {shard.shard: shard for shard in shards}
        return [_shard_status(number, owned.get(number)) for number in range(self._supervisor.shards)]

    # -- metrics ------------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Family]:
        """The metric families; called by the registry."""
        view, sums = self._view(), self._totals.sums()
        for name, help_text in _COUNTERS.items():
            yield CounterMetricFamily(f"millstream_{name}", help_text, value=getattr(sums.counts, name))
        yield from _tally_families(sums.tally)
        yield CounterMetricFamily(
            "millstream_shard_restarts",
            "Shards that began again from the fence in a living worker.",
            value=self._supervisor.shard_restarts,
        )
        yield self._stalls_family()
        yield from self._node_families(view)
        yield from self._worker_families(view.workers)
        yield self._lag_family(view.shards)
        yield from membership_families(self._measures, view.member)
        yield from offload_families(self._totals.offload_counts(), self._totals.offload)

    def _stalls_family(self) -> Family:
        family = CounterMetricFamily(
            "millstream_stalled_stages",
            "Times a worker was replaced since it hung in a stage.",
            labels=["stage"],
        )
        for stage, count in self._supervisor.stalled_stages.items():
            family.add_metric([stage], count)
        return family

    def _node_families(self, view: NodeView) -> Iterator[Family]:
        ready = sum(worker.standing is Standing.READY for worker in view.workers)
        yield GaugeMetricFamily("millstream_ready", "1 where /readyz says so.", value=int(view.readiness.is_ready))
        yield GaugeMetricFamily("millstream_workers", "Workers that are ready to run shards.", value=ready)
        yield GaugeMetricFamily("millstream_shards", "Shards of the pipeline.", value=self._supervisor.shards)
        build = GaugeMetricFamily("millstream_build_info", "The version that runs; always 1.", labels=["version"])
        build.add_metric([self._version], 1)
        yield build
        use = process_use()
        yield CounterMetricFamily("millstream_agent_cpu_seconds", "CPU time of the agent.", value=use.cpu_s)
        yield GaugeMetricFamily("millstream_agent_resident_bytes", "Memory of the agent.", value=use.resident_bytes)

    def _worker_families(self, workers: Sequence[WorkerView]) -> Iterator[Family]:
        label = ["worker"]
        restarts = CounterMetricFamily("millstream_worker_restarts", "Times a worker was started again.", labels=label)
        cpu = CounterMetricFamily("millstream_worker_cpu_seconds", "CPU time of a worker's processes.", labels=label)
        owned = GaugeMetricFamily("millstream_shards_owned", "Shards that a worker runs.", labels=label)
        lag = GaugeMetricFamily(
            "millstream_worker_loop_lag_seconds", "How late a worker's event loop was at worst lately.", labels=label
        )
        resident = GaugeMetricFamily("millstream_worker_resident_bytes", "Memory of a worker's process.", labels=label)
        for view in workers:
            name = [str(view.worker)]
            restarts.add_metric(name, view.restarts)
            cpu.add_metric(name, self._totals.cpu_s(view.worker))
            if view.standing in ALIVE:
                owned.add_metric(name, len(view.shards))
            heard = self._totals.heard.get(view.worker)
            if heard is not None:
                lag.add_metric(name, heard.progress.loop_lag_ms / 1000)
                resident.add_metric(name, heard.progress.use.resident_bytes)
        yield from (restarts, cpu, owned, lag, resident)

    def _lag_family(self, shards: Sequence[ShardView]) -> Family:
        family = GaugeMetricFamily(
            "millstream_lag_records",
            "Offsets between what a shard has committed and the end of the committed records of its partitions.",
            labels=["topic", "shard"],
        )
        for shard in shards:
            topics = self._totals.heard[shard.worker].progress.measures.topics if shard.report else []
            for topic, lag in zip(topics, shard.report.lag if shard.report else [], strict=False):
                if lag != UNKNOWN_LAG:
                    family.add_metric([topic, str(shard.shard)], lag)
        return family

    def describe(self) -> Iterable[Family]:
        """Nothing: the names are fixed, and there is no other collector to clash with."""
        return ()


def _tally_families(tally: Tally) -> Iterator[Family]:
    yield CounterMetricFamily(
        "millstream_batches", "Pieces of input that went through the stages.", value=tally.batches
    )
    transactions = CounterMetricFamily(
        "millstream_transactions",
        "Commits by how they ended; what became of an unknown one, the next fence settles.",
        labels=["outcome"],
    )
    for outcome in OUTCOMES:
        transactions.add_metric([outcome], tally.transactions.get(outcome, 0))
    yield transactions
    yield histogram_family(
        "millstream_commit_seconds", "How long commits took, failed ones included.", COMMIT_BOUNDS_S, tally.commit_s
    )
    yield histogram_family(
        "millstream_event_latency_seconds",
        "From a record's timestamp to the commit of its effects; of up to 32 records a batch, weighted.",
        LATENCY_BOUNDS_S,
        tally.latency_s,
    )


def _shard_status(number: int, view: ShardView | None) -> dict[str, Any]:
    report = view.report if view else None
    return {
        "shard": number,
        "owner": view.worker if view else None,
        "state": (report.state if report else "starting") if view else "unowned",
        "lag": _lag_of(view) if view else None,
        "silent_s": round(view.silent_s, 3) if view else None,
        "commit_age_s": report.commit_age_s if report else None,
        "restarts": report.restarts if report else 0,
        "last_reason": report.reason if report else None,
    }


def _lag_of(view: ShardView) -> int | None:
    lags = view.report.lag if view.report else []
    return sum(lags) if lags and UNKNOWN_LAG not in lags else None
