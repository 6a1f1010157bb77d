"""A process that is the baseline's loop, as the benchmark measures it."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable

from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.baseline import BaselineSettings, BaselineWork, run_baseline
from millstream.loadgen.bench_orders import (
    Began,
    Finished,
    Order,
    Passage,
    Stopwatch,
    answer,
    on_stdin_end,
    receive_order,
)
from millstream.loadgen.bench_workloads import BASELINE_WORK


class _Progress:
    """Times a passage by what the loop tells: nothing committed yet at its start, then the sum after each commit."""

    def __init__(self, passage: Passage, began: Callable[[], None], stop: threading.Event) -> None:
        self._passage = passage
        self._began = began
        self._stop = stop
        self._committed = 0
        self.stopwatch = Stopwatch()

    def should_stop(self, committed: int) -> bool:
        """Whether the passage is over, after so many committed records."""
        if not self.stopwatch.is_running:
            self.stopwatch.start()
            self._began()
        if committed > self._committed:
            self._committed = committed
            self.stopwatch.lap()
        if self._passage.events is None:
            return self._stop.is_set()
        return committed >= self._passage.events


def _pass(
    kafka: KafkaSettings, work: BaselineWork, passage: Passage, began: Callable[[], None], stop: threading.Event
) -> Finished:
    progress = _Progress(passage, began, stop)
    settings = BaselineSettings(
        name=passage.name,
        source=passage.source,
        target=passage.target,
        work=work,
        transaction_records_max=passage.transaction_records_max,
        commit_interval_ms=passage.commit_interval_ms,
    )
    committed = run_baseline(kafka.confluent_arguments(), settings, should_stop=progress.should_stop)
    return Finished(events=committed, seconds=progress.stopwatch.seconds, cpu_s=progress.stopwatch.cpu_s)


def run(order: Order) -> Finished:
    """Obey one order."""
    stop = threading.Event()

    def end() -> None:
        if order.measured.events is not None:
            os._exit(1)
        stop.set()

    on_stdin_end(end)
    kafka, work = KafkaSettings.from_json(order.kafka), BASELINE_WORK[order.work]
    if order.warm_up is not None:
        _pass(kafka, work, order.warm_up, lambda: None, stop)
    return _pass(kafka, work, order.measured, lambda: answer(Began()), stop)


def main() -> int:
    """Obey one order; answers the exit code."""
    # The loop makes no cycles, and looking for them among its messages takes a tenth of its time.
    gc.disable()
    answer(run(receive_order()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
