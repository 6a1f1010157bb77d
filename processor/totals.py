"""What a node's workers have counted, added up so that nothing ever goes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.processor.control import Progress
from millstream.processor.counts import Counts
from millstream.processor.measures import Tally
from millstream.processor.offload_report import OffloadCounts, OffloadReport
from millstream.processor.readiness import Heard


@dataclass(frozen=True, slots=True)
class Sums:
    """Counts and tally of the node, from its start until now."""

    counts: Counts
    tally: Tally


class Totals:
    """The node's counts: those of workers that are gone, and the last ones of each that lives."""

    def __init__(self) -> None:
        self._gone = Sums(Counts(), Tally())
        self._gone_cpu_s: dict[int, float] = {}
        self._living: dict[int, Heard] = {}
        self._gone_offload: dict[str, OffloadCounts] = {}
        self._offload: dict[int, dict[str, OffloadReport]] = {}

    def progress(self, worker: int, progress: Progress, now: float) -> None:
        """The worker's current incarnation has come this far."""
        self._living[worker] = Heard(progress, now)

    def offloaded(self, worker: int, report: OffloadReport) -> None:
        """How a stage fares in the worker's current incarnation."""
        self._offload.setdefault(worker, {})[report.stage] = report

    @property
    def offload(self) -> Mapping[int, Mapping[str, OffloadReport]]:
        """The last report of each offload stage, by worker that lives."""
        return self._offload

    def offload_counts(self) -> dict[str, OffloadCounts]:
        """All that the node did for its offload stages since it started."""
        sums: dict[str, OffloadCounts] = {}
        for stage, counts in self._gone_offload.items():
            sums.setdefault(stage, OffloadCounts()).add(counts)
        for reports in self._offload.values():
            for stage, report in reports.items():
                sums.setdefault(stage, OffloadCounts()).add(report.counts)
        return sums

    def gone(self, worker: int) -> None:
        """The worker's current incarnation has ended; the next one counts from nothing."""
        for stage, report in self._offload.pop(worker, {}).items():
            self._gone_offload.setdefault(stage, OffloadCounts()).add(report.counts)
        last = self._living.pop(worker, None)
        if last is not None:
            _add(self._gone, last.progress)
            self._gone_cpu_s[worker] = self._gone_cpu_s.get(worker, 0.0) + last.progress.use.cpu_s

    @property
    def heard(self) -> Mapping[int, Heard]:
        """The last words of each worker that lives and has said some."""
        return self._living

    def sums(self) -> Sums:
        """All that the node did since it started."""
        sums = Sums(Counts(), Tally())
        sums.counts.add(self._gone.counts)
        sums.tally.add(self._gone.tally)
        for heard in self._living.values():
            _add(sums, heard.progress)
        return sums

    def cpu_s(self, worker: int) -> float:
        """The CPU seconds of all incarnations of a worker."""
        living = self._living.get(worker)
        return self._gone_cpu_s.get(worker, 0.0) + (living.progress.use.cpu_s if living else 0.0)


def _add(sums: Sums, progress: Progress) -> None:
    sums.counts.add(progress.counts)
    sums.tally.add(progress.measures.tally)
