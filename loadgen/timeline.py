"""Throughput and latency over time, second by second of arrival, in a few numbers each."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.loadgen.latency import LatencyHistogram, Percentiles
from millstream.processor.columns import Int64s

_US_PER_S = 1_000_000
# A clock that is set back and forth, or a pause of a day, must not fill the memory with empty seconds.
_GAP_SECONDS_MAX = 86_400


@dataclass(frozen=True, slots=True)
class Moment:
    """One second, counted from the first arrival: events that arrived in it, and their latencies (None without any)."""

    second: int
    events: int
    latency: Percentiles | None

    def as_json(self) -> dict[str, object]:
        """One flat object."""
        latency = {} if self.latency is None else self.latency.as_fields("latency_ms")
        return {"second": self.second, "events": self.events, **latency}


class Timeline:
    """Fed with arrivals as they come; keeps one histogram, whatever the length of the run."""

    def __init__(self) -> None:
        self._past: list[Moment] = []
        self._began_us: int | None = None
        self._current = LatencyHistogram()

    def record(self, arrived_us: int, latency_us: Int64s) -> None:
        """Events arrived together at this time (microseconds since the epoch), with these latencies."""
        if not len(latency_us):
            return
        if self._began_us is None:
            self._began_us = arrived_us
        self._advance((arrived_us - self._began_us) // _US_PER_S)
        self._current.record(latency_us)

    def moments(self) -> tuple[Moment, ...]:
        """Every second so far, without a gap, the last one as far as it has got."""
        if self._began_us is None:
            return ()
        return (*self._past, self._closed())

    def _advance(self, second: int) -> None:
        for _ in range(min(second - len(self._past), _GAP_SECONDS_MAX)):
            self._past.append(self._closed())
            self._current = LatencyHistogram()

    def _closed(self) -> Moment:
        return Moment(len(self._past), self._current.count, self._current.percentiles())
