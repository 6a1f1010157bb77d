"""Sends a workload on its schedule, and says how well it kept it.

The sender is an open loop: it looks at the clock, hands over whatever is due, and never waits for an answer before
the next event. The client's queue is bounded; where it is full, events wait here, their intended time stays what it
was, and the lateness shows in the report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import confluent_kafka

from millstream.loadgen.latency import LatencyHistogram, Percentiles
from millstream.loadgen.schedule import Pace
from millstream.loadgen.workload import Workload
from millstream.processor.errors import UnavailableError

BATCH_EVENTS_MAX = 4096
BATCH_BYTES_MAX = 8 << 20
QUEUE_EVENTS_MAX = 500_000
# A sleep shorter than this costs more CPU than the punctuality is worth; the events wait at most as long.
_NAP_S = 0.001
_NAP_LONGEST_S = 0.05
_FLUSH_S = 60.0
_METADATA_S = 15.0
_PRODUCER_ID_S = 0.3
_PROGRESS_INTERVAL_S = 0.2
_US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReport:
    """What was sent. `lateness` is from each event's intended time to the moment it was handed to the client;
    None without an open schedule."""

    events: int
    delivered: int
    failed: int
    first_error: str | None
    seconds: float
    started_us: int
    lateness: Percentiles | None

    @property
    def events_per_s(self) -> float:
        """The rate from the schedule's start until the last event was handed over."""
        return self.events / self.seconds if self.seconds > 0 else 0.0

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
    failed: int


class Sender:
    """One idempotent producer for one topic; records with the same key keep their order.

    A context manager: leaving it closes the client, and waits for nothing that `flush` did not wait for.
    """

    def __init__(self, confluent_arguments: Mapping[str, object], topic: str) -> None:
        self._topic = topic
        self._failed = 0
        self._first_error: str | None = None
        self._producer = confluent_kafka.Producer(
            {
                **confluent_arguments,
                # Its warnings are about what it mends by itself, such as a coordinator that is still loading.
                "log_level": 3,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "batch.size": 1 << 20,
                "batch.num.messages": 100_000,
                "compression.type": "none",
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": QUEUE_EVENTS_MAX,
                "queue.buffering.max.kbytes": 1 << 19,
                "message.timeout.ms": int(_FLUSH_S * 1000),
                # A callback for each of hundreds of thousands of events a second would cost more than sending them.
                "delivery.report.only.error": True,
                "on_delivery": self._note_failure,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.purge()
        self._producer.close()

    @property
    def failed(self) -> int:
        """How many records the broker did not take."""
        return self._failed

    @property
    def first_error(self) -> str | None:
        """Why the first failed record failed."""
        return self._first_error

    def connect(self) -> None:
        """Afterwards the client knows the topic's leaders, so that the first events do not pay for finding them.

        Raises UnavailableError where no broker answers.
        """
        try:
            self._producer.list_topics(self._topic, timeout=_METADATA_S)
        except confluent_kafka.KafkaException as error:
            raise UnavailableError(f"the brokers do not answer: {error.args[0].str()}") from error
        # The producer id comes by itself, but there is no way to ask whether it has come.
        self._producer.poll(_PRODUCER_ID_S)

    def room(self) -> int:
        """How many records can be handed over now without one of them being turned away."""
        self._producer.poll(0)
        return QUEUE_EVENTS_MAX - len(self._producer)

    def send(self, keys: list[bytes], values: list[bytes]) -> None:
        """Hand over records, at most `room()` of them.

        Raises UnavailableError where the client turned one away: to send it again later would put it behind its
        successors, so the order is given up rather than broken.
        """
        messages = [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]
        taken = self._producer.produce_batch(self._topic, messages)
        if taken != len(messages):
            raise UnavailableError(f"the client took {taken} of {len(messages)} records for topic {self._topic}")

    def flush(self) -> int:
        """Wait until everything is delivered or failed, at most a minute; answers how many are still neither."""
        return int(self._producer.flush(_FLUSH_S))

    def _note_failure(self, error: confluent_kafka.KafkaError | None, _message: object) -> None:
        if error is None:
            return
        self._failed += 1
        if self._first_error is None:
            self._first_error = str(error)


def send_all(
    sender: Sender,
    workload: Workload,
    pace: Pace,
    *,
    on_progress: Callable[[SendProgress], None] = lambda _progress: None,
) -> SendReport:
    """Send all events of the pace, whose time zero is now, and wait until they are delivered or failed.

    Raises UnavailableError where the client's queue stayed full for a minute: the broker takes nothing any more.
    """
    workload.prepare()
    sender.connect()
    lateness = LatencyHistogram()
    batch_events = max(1, min(BATCH_EVENTS_MAX, BATCH_BYTES_MAX // workload.event_bytes_max))
    started_us, started = time.time_ns() // 1000, time.perf_counter()
    sent, had_room, told = 0, started, started
    while (next_us := pace.next_us) is not None:
        now = time.perf_counter()
        elapsed_us = int((now - started) * _US_PER_S)
        if now - told >= _PROGRESS_INTERVAL_S:
            told = now
            on_progress(SendProgress(sent, sender.failed))
        room = sender.room()
        batch = min(pace.due(elapsed_us), batch_events, room)
        if room > 0:
            had_room = now
        elif now - had_room > _FLUSH_S:
            raise UnavailableError(f"the broker took nothing for {_FLUSH_S:.0f} s; {sent} events were handed over")
        if batch <= 0:
            time.sleep(min(max(_NAP_S, (next_us - elapsed_us) / _US_PER_S), _NAP_LONGEST_S))
            continue
        intended_us = pace.take(batch, elapsed_us)
        events = workload.next_events(started_us + intended_us)
        sender.send(events.keys, events.values)
        if pace.is_open:
            lateness.record(int((time.perf_counter() - started) * _US_PER_S) - intended_us)
        sent += batch
    return _report(sender, sent, time.perf_counter() - started, started_us, lateness)


def _report(sender: Sender, sent: int, seconds: float, started_us: int, lateness: LatencyHistogram) -> SendReport:
    unanswered = sender.flush()
    failed = sender.failed + unanswered
    error = sender.first_error or ("no answer from the broker within the bound" if unanswered else None)
    return SendReport(
        events=sent,
        delivered=sent - failed,
        failed=failed,
        first_error=error,
        seconds=seconds,
        started_us=started_us,
        lateness=lateness.percentiles(),
    )
