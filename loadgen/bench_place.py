"""Where a benchmark takes place: a cluster, topics that are gone afterwards, and a directory for logs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.bench_orders import Passage
from millstream.loadgen.produce import send_all
from millstream.loadgen.reading import KeyNumbers, TopicReader
from millstream.loadgen.schedule import FullSpeed, Pace, Schedule, constant_arrivals
from millstream.loadgen.topics import TopicAdmin
from millstream.loadgen.workload import Workload, WorkloadSettings
from millstream.processor.errors import UnavailableError, WorldError
from millstream.processor.names import Names

WARM_UP_EVENTS = 60_000
_SAMPLE_EVENTS = 10_000
_TOPIC_S_MAX = 15.0
_VISIBLE_S = 10.0
_LOOK_S = 0.01
# The broker keeps a deleted topic's files for a minute otherwise, and the next runs' outputs beside them.
_GONE_AT_ONCE = {"file.delete.delay.ms": "1000"}


@dataclass(frozen=True, slots=True)
class Inputs:
    """Topics that every run reads from their beginning: one to be measured, a smaller one to warm up with."""

    measured: str
    warm_up: str
    events: int
    warm_up_events: int
    event_bytes: float


class Place:
    """Makes topics with names of their own."""

    def __init__(self, kafka: KafkaSettings, partitions: int, directory: Path, seed: int) -> None:
        self.kafka = kafka
        self.confluent_arguments = kafka.confluent_arguments()
        self.partitions = partitions
        self.directory = directory
        self.seed = seed
        # It may outlive the broker by a moment, and would complain of that on stderr.
        self._admin = TopicAdmin({**self.confluent_arguments, "log_level": 0})
        self._prefix = f"millstream-bench-{uuid.uuid4().hex[:8]}"
        self._count = 0
        self._topics: list[str] = []

    def name(self, purpose: str) -> str:
        """A name that nothing else has, for a pipeline or a group. What a pipeline of that name makes is
        deleted with the topics that are made beside it."""
        self._count += 1
        name = f"{self._prefix}-{self._count}-{purpose}"
        self._topics += [Names.of(name).ledger, Names.of(name).beats]
        return name

    def topic(self, purpose: str, settings: Mapping[str, str] | None = None) -> str:
        """A new topic, with leaders. Raises UnavailableError where it gets none in time."""
        self._count += 1
        topic = f"{self._prefix}-{self._count}-{purpose}"
        self._topics.append(topic)
        self._admin.create(topic, self.partitions, {**_GONE_AT_ONCE, **(settings or {})})
        # A broker answers the creation before it has heard of it from the controller.
        deadline = time.monotonic() + _TOPIC_S_MAX
        while self._admin.partition_count(topic) < self.partitions:
            if time.monotonic() > deadline:
                raise UnavailableError(f"topic {topic} was created, but not to be seen for {_TOPIC_S_MAX:.0f} s")
            time.sleep(_LOOK_S)
        return topic

    def passage(
        self, purpose: str, source: str, events: int | None, settings: Mapping[str, str] | None = None
    ) -> Passage:
        """From a topic to a new one, with these settings, under a new name."""
        target = self.topic(f"{purpose}-out", settings)
        return Passage(name=self.name(purpose), source=source, target=target, events=events)

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """What is made inside is deleted at the end."""
        before = len(self._topics)
        try:
            yield
        except BaseException:
            try:
                self._drop_since(before)
            except WorldError:
                # What went wrong first is what has to be told; a cluster that is gone takes its topics along.
                pass
            raise
        self._drop_since(before)

    def _drop_since(self, before: int) -> None:
        made, self._topics = self._topics[before:], self._topics[:before]
        self._admin.delete(made)

    def preload(self, events: int) -> Inputs:
        """Fill the inputs."""
        warm_up_events = min(events, WARM_UP_EVENTS)
        now_us = time.time_ns() // 1000
        sample = Workload(WorkloadSettings(seed=self.seed)).next_events(np.full(_SAMPLE_EVENTS, now_us))
        warm_up = self.topic("warm-up-in")
        self.fill(warm_up, warm_up_events)
        measured = self.topic("in")
        self.fill(measured, events)
        event_bytes = sample.value.byte_count / _SAMPLE_EVENTS
        return Inputs(measured, warm_up, events, warm_up_events, event_bytes)

    def fill(self, topic: str, events: int, *, rate: float | None = None, key_prefix: str = "k") -> None:
        """Send events, as fast as the broker takes them unless there is a rate.

        Raises UnavailableError where it does not take all.
        """
        workload = Workload(WorkloadSettings(seed=self.seed, key_prefix=key_prefix))
        pace: Pace = FullSpeed(events)
        if rate is not None:
            pace = Schedule(constant_arrivals(rate), events)
        report = send_all(self.kafka, topic, workload, pace)
        if report.failed:
            raise UnavailableError(f"{report.failed} of {events} events could not be sent: {report.first_error}")

    def check_written(self, topic: str, events: int) -> None:
        """Raises UnavailableError where an independent client sees fewer committed records than there should be."""
        deadline = time.monotonic() + _VISIBLE_S
        with TopicReader(self.confluent_arguments, [topic], KeyNumbers()) as reader:
            # A commit is answered before its markers are written, so the last of it may be seen a moment later.
            # Markers take offsets, too: more is right and fewer is not.
            while (ends := sum(reader.ends().values())) < events and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
        if ends < events:
            raise UnavailableError(f"topic {topic} ends at {ends}, but {events} events were to be written to it")
