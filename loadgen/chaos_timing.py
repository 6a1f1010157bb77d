"""When committed output arrives, as a reader of another client library sees it, and what follows from that.

A thread polls for one record, notes the time, and takes along whatever else is there: so an arrival is noted within a
millisecond, and neither a batch that is not full nor the client's own pauses are measured.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import confluent_kafka
import numpy as np

from millstream.loadgen.event_fields import event_fields
from millstream.processor.columns import Int64s

_KEPT_S = 120.0
_POLL_S = 0.2
_RECORDS_MAX = 2000
_JOIN_S = 5.0
_SHARP = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 10,
    # The defaults wait for a second or half of one where a queue is full or a broker is away.
    "fetch.queue.backoff.ms": 2,
    "fetch.error.backoff.ms": 10,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 20,
    # What a broker that goes has to say is measured, not printed.
    "log_level": 2,
}


def sharp_consumer(confluent_arguments: Mapping[str, object]) -> confluent_kafka.Consumer:
    """A consumer that tells at once, in no group."""
    # An own copy of the settings: the client takes them to pieces.
    return confluent_kafka.Consumer(
        {**confluent_arguments, **_SHARP, "group.id": f"millstream-watch-{uuid.uuid4().hex}"}
    )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records that arrived together: the time (monotonic, seconds), and of each its partition and when it was to be
    sent (wall clock, microseconds)."""

    at: float
    partition: Int64s
    sent_us: Int64s


class OutputWatch:
    """Watches one topic from its beginning. A context manager; keeps the last two minutes."""

    def __init__(self, confluent_arguments: Mapping[str, object], topic: str, partitions: int) -> None:
        self._arguments, self._topic, self._partitions = confluent_arguments, topic, partitions
        self._chunks: deque[Chunk] = deque()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="output watch", daemon=True)
        self.seen = 0

    def __enter__(self) -> Self:
        event_fields([])
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_JOIN_S)

    def since(self, at: float) -> list[Chunk]:
        """What arrived from this time (monotonic) on."""
        while True:
            try:
                return [chunk for chunk in reversed(self._chunks) if chunk.at >= at][::-1]
            except RuntimeError:
                # It grew meanwhile.
                continue

    def await_first(self, partitions: Iterable[int], since: float, sent_us: float, wait_s: float) -> dict[int, float]:
        """For each partition, when its first event arrived that was to be sent after `sent_us`.

        Those of which none came within `wait_s` from `since` on are left out.
        """
        wanted = set(partitions)
        while True:
            found = first_arrivals(self.since(since), wanted, sent_us)
            if wanted <= found.keys() or time.monotonic() > since + wait_s:
                return found
            # Seldom: looking must not delay what is looked at.
            time.sleep(0.25)

    def _run(self) -> None:
        consumer = sharp_consumer(self._arguments)
        where = [confluent_kafka.TopicPartition(self._topic, number, 0) for number in range(self._partitions)]
        consumer.assign(where)
        try:
            while not self._over.is_set():
                first = consumer.poll(_POLL_S)
                if first is None:
                    continue
                at = time.monotonic()
                self._take(at, [first, *consumer.consume(_RECORDS_MAX, 0)])
        finally:
            consumer.close()

    def _take(self, at: float, messages: list[confluent_kafka.Message]) -> None:
        records = [message for message in messages if message.error() is None]
        if not records:
            return
        sent_us = event_fields([message.value() for message in records]).sent_us
        partition = np.fromiter((message.partition() or 0 for message in records), np.int64, len(records))
        self._chunks.append(Chunk(at, partition, sent_us))
        self.seen += len(records)
        while self._chunks[0].at < at - _KEPT_S:
            self._chunks.popleft()


def first_arrivals(chunks: Sequence[Chunk], partitions: Iterable[int], sent_us: float) -> dict[int, float]:
    """For each partition, when its first event arrived that was to be sent after `sent_us`.

    What was sent after a fault cannot have been processed by whom the fault has ended.
    """
    left, found = set(partitions), dict[int, float]()
    for chunk in chunks:
        for partition in np.unique(chunk.partition[chunk.sent_us > sent_us]).tolist():
            if partition in left:
                left.discard(partition)
                found[partition] = chunk.at
        if not left:
            break
    return found


def longest_gaps(chunks: Sequence[Chunk], partitions: Iterable[int], since: float, until: float) -> dict[int, float]:
    """For each partition the longest time, in seconds, between two arrivals of which one falls in between."""
    gaps = dict.fromkeys(partitions, 0.0)
    last: dict[int, float] = {}
    for chunk in chunks:
        for partition in np.unique(chunk.partition).tolist():
            before = last.get(partition)
            if partition in gaps and before is not None and chunk.at >= since and before <= until:
                gaps[partition] = max(gaps[partition], chunk.at - before)
            last[partition] = chunk.at
    return gaps


def curve(
    chunks: Sequence[Chunk], struck: Iterable[int], start: float, end: float, step_s: float
) -> tuple[list[int], list[int]]:
    """Events that arrived in each step of the time from `start` to `end`: in the struck partitions, and in others."""
    steps = round((end - start) / step_s)
    of_struck, of_others = [0] * steps, [0] * steps
    numbers = np.array(sorted(struck), np.int64)
    for chunk in chunks:
        step = int((chunk.at - start) / step_s)
        if chunk.at >= start and step < steps:
            count = int(np.isin(chunk.partition, numbers).sum())
            of_struck[step] += count
            of_others[step] += len(chunk.partition) - count
    return of_struck, of_others


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of some measurements, in milliseconds. With few of them the higher ones are the longest."""

    count: int
    p50: float
    p90: float
    p99: float
    longest: float

    @staticmethod
    def of(values: Sequence[float]) -> Quantiles | None:
        """None without any."""
        if not values:
            return None
        p50, p90, p99 = (float(np.percentile(values, q, method="higher")) for q in (50, 90, 99))
        return Quantiles(len(values), p50, p90, p99, max(values))

    def as_json(self) -> dict[str, float]:
        """One flat object."""
        shown = {"p50_ms": self.p50, "p90_ms": self.p90, "p99_ms": self.p99, "max_ms": self.longest}
        return {"count": self.count, **{name: round(value, 1) for name, value in shown.items()}}
