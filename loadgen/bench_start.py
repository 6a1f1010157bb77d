"""How long a start takes: from the command until an independent reader has the first committed output."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from millstream.loadgen.bench_orders import Order, Passage
from millstream.loadgen.bench_process import MeasuredProcess, Side
from millstream.loadgen.bench_stage import Sample, Stage
from millstream.loadgen.bench_workloads import (
    APP,
    BASELINE_WORK,
    NAME_VARIABLE,
    SOURCE_VARIABLE,
    TARGET_VARIABLE,
    WORK_VARIABLE,
    Work,
)
from millstream.loadgen.node_process import NodeProcess
from millstream.loadgen.reading import KeyNumbers, TopicReader
from millstream.processor.errors import UnavailableError

_WORK = Work.TYPED_JSON_FUNCTION
_LOOP_COMMIT_INTERVAL_MS = 20
_LOOK_S = 0.05
# Without warm caches every kernel is compiled first.
_START_S_MAX = 300.0
# A node whose benchmark was itself killed ends by its own clock.
_NODE_S_MAX = 600


@dataclass(frozen=True, slots=True)
class FirstOutput:
    """Starts with a backlog of typed JSON and warm caches: `millstream run --workers 1`, and the loop's process."""

    stage: Stage
    rows: tuple[str, ...] = ("start_to_first_output",)
    runs_max: int | None = None

    def rehearse(self) -> None:
        """One start that is not counted, so that kernels are compiled and files are in memory."""
        self.measure(Side.OURS)

    def measure(self, side: Side) -> Sample:
        """One run."""
        place, inputs = self.stage.place, self.stage.inputs
        with place.cleared():
            passage = place.passage("start", inputs.warm_up, inputs.warm_up_events)
            passage = passage.committing_every(_LOOP_COMMIT_INTERVAL_MS)
            with ExitStack() as stack:
                reader = stack.enter_context(TopicReader(place.confluent_arguments, [passage.target], KeyNumbers()))
                while not reader.is_at_end:
                    reader.read(_LOOK_S)
                started = time.perf_counter()
                check = self._start(side, passage, stack)
                while not len(reader.read(_LOOK_S)):
                    check()
                    if time.perf_counter() - started > _START_S_MAX:
                        raise UnavailableError(f"no output in {_START_S_MAX:.0f} s after the start")
                seconds = time.perf_counter() - started
        conditions = {
            "events": inputs.warm_up_events,
            "work": _WORK.value if side is Side.OURS else BASELINE_WORK[_WORK].value,
            "timed": "start of the command to the first output at a read_committed reader; caches are warm",
        }
        return Sample({"start_to_first_output": seconds}, conditions)

    def _start(self, side: Side, passage: Passage, stack: ExitStack) -> Callable[[], None]:
        """Start the side; answers what raises UnavailableError once it has died."""
        place = self.stage.place
        log_file = place.directory / f"{passage.name}.log"
        if side is Side.BASELINE:
            order = Order(kafka=place.kafka.to_json(), work=_WORK, warm_up=None, measured=passage)
            stack.enter_context(MeasuredProcess(side, order, log_file))
            # It ends by itself once it is through, which may be before its first output is read.
            return lambda: None
        names = {
            WORK_VARIABLE: _WORK.value,
            NAME_VARIABLE: passage.name,
            SOURCE_VARIABLE: passage.source,
            TARGET_VARIABLE: passage.target,
        }
        arguments = [APP, "--workers", "1", "--max-seconds", str(_NODE_S_MAX)]
        return stack.enter_context(NodeProcess(arguments, {**self.stage.environ, **names}, log_file)).check
