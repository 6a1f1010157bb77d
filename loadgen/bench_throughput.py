"""How fast a warm worker gets through a backlog, and what CPU time that takes it."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.loadgen.bench_process import Side
from millstream.loadgen.bench_stage import Sample, Stage, with_even_transactions
from millstream.loadgen.bench_workloads import BASELINE_WORK, Work
from millstream.processor.errors import UnavailableError

CPU_ROWS = {Work.RAW_COPY: "cpu_raw_copy", Work.TYPED_JSON_FUNCTION: "cpu_typed_json"}
_US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class Throughput:
    """From the first fetch position until everything is committed, in a fresh process that has warmed up."""

    stage: Stage
    work: Work
    runs_max: int | None = None

    @property
    def rows(self) -> tuple[str, ...]:
        """Its own, and the CPU time's where that is asked for."""
        return (self.work.value, *((CPU_ROWS[self.work],) if self.work in CPU_ROWS else ()))

    def rehearse(self) -> None:
        """Nothing: each process warms up by itself."""

    def measure(self, side: Side) -> Sample:
        """One run."""
        stage, events = self.stage, self.stage.inputs.events
        with stage.place.cleared():
            passage = with_even_transactions(stage.place.passage(self.work.value, stage.inputs.measured, events))
            with stage.process(side, self.work, passage) as process:
                process.began()
                finished = process.finished(stage.finish_s_max)
            if finished.events != events:
                raise UnavailableError(f"{side.value} wrote {finished.events} of {events} events")
            stage.place.check_written(passage.target, events)
        rate, cpu_us = events / finished.seconds, finished.cpu_s / events * _US_PER_S
        conditions: dict[str, object] = {
            "events": events,
            "timed": "first fetch position to last commit, in a process that has warmed up on another topic",
        }
        if side is Side.OURS:
            conditions["shards"] = finished.shards
        else:
            conditions["work"] = BASELINE_WORK[self.work].value
            conditions["transaction_records"] = passage.transaction_records_max
        return Sample(dict(zip(self.rows, (rate, cpu_us), strict=False)), conditions)
