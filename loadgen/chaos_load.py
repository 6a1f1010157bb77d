"""A steady load that goes on until it is told to stop, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.companion import Companion
from millstream.loadgen.produce import SendProgress, SendReport, send_all
from millstream.loadgen.schedule import Arrivals, Schedule, arrivals_at
from millstream.loadgen.workload import Workload, WorkloadSettings
from millstream.processor.columns import Int64s
from millstream.processor.errors import UnavailableError

_EVENTS_MAX = 1_000_000_000
_STOP_S = 90.0
_START_S = 60.0


class UntilFile:
    """A schedule that ends when a file appears."""

    is_open = True

    def __init__(self, schedule: Schedule, file: Path) -> None:
        self._schedule, self._file = schedule, file
        self._is_over = False

    @property
    def next_us(self) -> int | None:
        """The intended time of the next event; None after the end."""
        return None if self._is_over else self._schedule.next_us

    @property
    def left(self) -> int:
        """Nothing, since its end is not known before."""
        return 0

    def due(self, elapsed_us: int) -> int:
        """How many events should have left by now; none after the end."""
        self._is_over = self._is_over or self._file.exists()
        return 0 if self._is_over else self._schedule.due(elapsed_us)

    def take(self, events: int, elapsed_us: int) -> Int64s:
        """The intended times of the next events."""
        return self._schedule.take(events, elapsed_us)


class SteadyLoad:
    """Events at a rate, on an open schedule. A context manager; `stop` answers what was sent."""

    def __init__(self, kafka: KafkaSettings, topic: str, rate: float, seed: int, stop_file: Path) -> None:
        self._file = stop_file
        self._companion: Companion[SendProgress, SendReport] = Companion(
            "generator", partial(_send, kafka, topic, rate, seed, stop_file)
        )
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._companion)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def await_start(self) -> None:
        """Until the first events are stored. Raises UnavailableError where that takes a minute."""
        for _ in range(int(_START_S)):
            self.check()
            if self._companion.progress is not None and self._companion.progress.sent:
                return
        raise UnavailableError(f"the generator sent nothing in {_START_S:g} s")

    def check(self) -> None:
        """Take in what the generator said. Raises UnavailableError where it failed or ended by itself."""
        wait_s = 1.0 if self._companion.progress is None else 0.0
        if (report := self._companion.listen(wait_s)) is not None:
            raise UnavailableError(f"the generator ended by itself: {report.first_error}")

    def stop(self) -> SendReport:
        """What was sent. Raises UnavailableError where the generator does not come to its end."""
        self._file.touch()
        for _ in range(int(_STOP_S)):
            if (report := self._companion.listen(1.0)) is not None:
                return report
        raise UnavailableError(f"the generator did not end within {_STOP_S:g} s")


def _send(
    kafka: KafkaSettings, topic: str, rate: float, seed: int, stop_file: Path, tell: Callable[[SendProgress], None]
) -> SendReport:
    schedule = Schedule(arrivals_at(Arrivals.CONSTANT, rate, seed), _EVENTS_MAX)
    return send_all(
        kafka, topic, Workload(WorkloadSettings(seed=seed)), UntilFile(schedule, stop_file), on_progress=tell
    )
