"""Sends a workload on its schedule, and says how well it kept it.

The schedule is open: it never follows the system under load. The sender looks at the clock, makes whatever is due into
one request, and looks again when that is stored. So no more than one request is under way; events that become due
meanwhile wait in the schedule, their intended time stays what it was, and the wait shows as lateness in the report.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.latency import LatencyHistogram, Percentiles
from millstream.loadgen.outlet import NotStoredError, Outlet
from millstream.loadgen.schedule import Pace
from millstream.loadgen.workload import Workload
from millstream.processor.event_loop import new_event_loop

REQUEST_EVENTS_MAX = 32_768
REQUEST_BYTES_MAX = 8 << 20
# Requests cost the broker more than the events in them, and all that it does competes for the cores with what is
# measured: with one every 3 ms an event waits 1.5 on average, and all together take a tenth of a core less than with
# one every 2 ms.
_REQUEST_INTERVAL_S = 0.003
_NAP_LONGEST_S = 0.05
_PROGRESS_INTERVAL_S = 0.2
_US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReport:
    """What was sent. `lateness` is from each event's intended time to the moment its request left; None without an
    open schedule. `failed` counts what is not known to be stored, and what was not sent after that."""

    events: int
    delivered: int
    failed: int
    first_error: str | None
    seconds: float
    started_us: int
    lateness: Percentiles | None

    @property
    def events_per_s(self) -> float:
        """The rate from the schedule's start until the last event was stored, or the first failed."""
        return self.delivered / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, object]:
        """One flat object."""
        fields: dict[str, object] = {
            "events": self.events,
            "delivered": self.delivered,
            "failed": self.failed,
            "events_per_s": round(self.events_per_s, 1),
            "seconds": round(self.seconds, 3),
            "started_us": self.started_us,
        }
        if self.first_error is not None:
            fields["first_error"] = self.first_error
        if self.lateness is not None:
            fields.update(self.lateness.as_fields("lateness_ms"))
        return fields


@dataclass(frozen=True, slots=True)
class SendProgress:
    """How far a sender is."""

    sent: int


async def _send(
    kafka: KafkaSettings, topic: str, workload: Workload, pace: Pace, on_progress: Callable[[SendProgress], None]
) -> SendReport:
    outlet = Outlet(kafka, topic)
    try:
        workload.prepare()
        await outlet.connect()
        return await _Sending(outlet, workload, pace, on_progress).all()
    finally:
        outlet.close()


class _Sending:
    """One pass through a pace."""

    def __init__(
        self, outlet: Outlet, workload: Workload, pace: Pace, on_progress: Callable[[SendProgress], None]
    ) -> None:
        self._outlet, self._workload, self._pace = outlet, workload, pace
        self._on_progress = on_progress
        self._request_events = max(1, min(REQUEST_EVENTS_MAX, REQUEST_BYTES_MAX // workload.event_bytes_max))
        self._lateness = LatencyHistogram()
        self._started_us, self._started = time.time_ns() // 1000, time.perf_counter()
        self._told = self._started
        self._stored = 0

    async def all(self) -> SendReport:
        """Send until the pace ends or something fails."""
        pace = self._pace
        while (next_us := pace.next_us) is not None:
            began = time.perf_counter()
            due = min(pace.due(self._elapsed_us()), self._request_events)
            if due:
                try:
                    await self._send(due)
                except NotStoredError as error:
                    return self._report(error.events + pace.left, str(error))
                self._stored += due
            self._tell()
            # A full request is followed at once: there is more, or will be by the time that it is made.
            if due < self._request_events:
                next_s = self._started + next_us / _US_PER_S if not due else began + _REQUEST_INTERVAL_S
                await asyncio.sleep(min(max(0.0, next_s - time.perf_counter()), _NAP_LONGEST_S))
        return self._report(0, None)

    async def _send(self, due: int) -> None:
        intended_us = self._pace.take(due, self._elapsed_us())
        events = self._workload.next_events(self._started_us + intended_us)
        if self._pace.is_open:
            self._lateness.record(self._elapsed_us() - intended_us)
        await self._outlet.send(events)

    def _elapsed_us(self) -> int:
        return int((time.perf_counter() - self._started) * _US_PER_S)

    def _tell(self) -> None:
        now = time.perf_counter()
        if now - self._told >= _PROGRESS_INTERVAL_S:
            self._told = now
            self._on_progress(SendProgress(self._stored))

    def _report(self, failed: int, reason: str | None) -> SendReport:
        events = self._stored + failed
        return SendReport(
            events=events,
            delivered=self._stored,
            failed=failed,
            first_error=reason,
            seconds=time.perf_counter() - self._started,
            started_us=self._started_us,
            lateness=self._lateness.percentiles(),
        )


def send_all(
    kafka: KafkaSettings,
    topic: str,
    workload: Workload,
    pace: Pace,
    *,
    on_progress: Callable[[SendProgress], None] = lambda _progress: None,
) -> SendReport:
    """Send all events of the pace, whose time zero is now, and wait until they are stored or one of them is not.

    What a broker that is away does not take within a minute ends the sending: events behind it would break the order.
    Raises UnavailableError or RefusedError where the topic cannot be sent to at all.
    """
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_send(kafka, topic, workload, pace, on_progress))
