"""What a node tells the world about itself: metrics for Prometheus and a status for people.

Counters are the node's, not a worker's: when a worker dies, what it had counted stays in the sum, so that no
counter ever goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from millstream.processor.control import Progress
from millstream.processor.counts import Counts
from millstream.processor.slot import Standing, WorkerView
from millstream.processor.supervision import Supervisor

METRICS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_COUNTERS: Final = {
    "records_in": "Input records whose effects are committed.",
    "records_out": "Output records that are committed.",
    "bytes_in": "Bytes of input records.",
    "bytes_out": "Bytes of output records.",
    "dead_letters": "Records that went to a dead-letter topic.",
    "skipped": "Records that a stage's policy skipped after an error.",
    "retries": "Attempts of a stage beyond the first.",
}


class Totals:
    """The node's counts: those of workers that are gone, and the last ones of each that lives."""

    def __init__(self) -> None:
        self._gone = Counts()
        self._living: dict[int, Progress] = {}

    def progress(self, worker: int, progress: Progress) -> None:
        """The worker's current incarnation has come this far."""
        self._living[worker] = progress

    def gone(self, worker: int) -> None:
        """The worker's current incarnation has ended; the next one counts from nothing."""
        last = self._living.pop(worker, None)
        if last is not None:
            self._gone.add(last.counts)

    def sum(self) -> Counts:
        """All that the node did since it started."""
        total = Counts()
        total.add(self._gone)
        for progress in self._living.values():
            total.add(progress.counts)
        return total

    def loop_lag_ms(self, worker: int) -> float | None:
        """How late the worker's event loop was at worst lately; None while it has not said."""
        progress = self._living.get(worker)
        return progress.loop_lag_ms if progress else None


class Telemetry(Collector):
    """Answers from the supervisor and the totals as they are at that moment; keeps nothing of its own."""

    def __init__(self, supervisor: Supervisor, totals: Totals) -> None:
        self._supervisor = supervisor
        self._totals = totals
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def metrics(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def status(self) -> dict[str, Any]:
        """All that an operator asks first, as JSON-serialisable values."""
        totals = self._totals.sum()
        return {
            "phase": self._supervisor.phase,
            "pipeline": self._supervisor.pipeline,
            "shards": self._supervisor.shards,
            "workers": [self._worker_status(view) for view in self._supervisor.workers()],
            "counts": {name: getattr(totals, name) for name in _COUNTERS},
        }

    def _worker_status(self, view: WorkerView) -> dict[str, Any]:
        return {
            "worker": view.worker,
            "incarnation": view.incarnation,
            "standing": view.standing.value,
            "shards": list(view.shards),
            "restarts": view.restarts,
            "loop_lag_ms": self._totals.loop_lag_ms(view.worker),
        }

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The metric families; called by the registry."""
        totals = self._totals.sum()
        for name, help_text in _COUNTERS.items():
            yield CounterMetricFamily(f"millstream_{name}", help_text, value=getattr(totals, name))
        yield CounterMetricFamily(
            "millstream_shard_restarts",
            "Shards that began again from the fence in a living worker.",
            value=self._supervisor.shard_restarts,
        )
        yield from self._worker_families(list(self._supervisor.workers()))

    def _worker_families(self, workers: list[WorkerView]) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        ready = sum(view.standing is Standing.READY for view in workers)
        yield GaugeMetricFamily("millstream_workers", "Workers that are ready to run shards.", value=ready)
        yield GaugeMetricFamily("millstream_shards", "Shards of the pipeline.", value=self._supervisor.shards)
        restarts = CounterMetricFamily(
            "millstream_worker_restarts", "Times a worker was started again.", labels=["worker"]
        )
        owned = GaugeMetricFamily("millstream_shards_owned", "Shards that a worker runs.", labels=["worker"])
        lag = GaugeMetricFamily(
            "millstream_worker_loop_lag_seconds",
            "How late a worker's event loop was at worst lately.",
            labels=["worker"],
        )
        for view in workers:
            label = [str(view.worker)]
            restarts.add_metric(label, view.restarts)
            owned.add_metric(label, len(view.shards))
            lag_ms = self._totals.loop_lag_ms(view.worker)
            if lag_ms is not None:
                lag.add_metric(label, lag_ms / 1000)
        yield from (restarts, owned, lag)

    def describe(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        """Nothing: the names are fixed, and there is no other collector to clash with."""
        return ()
