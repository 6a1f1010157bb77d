"""Committed offsets as an outsider sees them over time: they never go back."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import confluent_kafka

from millstream.processor.partitions import TopicPartition

_LOOK_S = 0.5
_ANSWER_S = 5.0
_JOIN_S = 10.0


class OffsetsWatch:
    """Looks twice a second. A context manager; `steps_back` names what went back, as `topic-partition from to`."""

    def __init__(self, confluent_arguments: Mapping[str, object], group: str, topic: str, partitions: int) -> None:
        self._arguments = confluent_arguments
        self._group = group
        self._partitions: Sequence[TopicPartition] = [TopicPartition(topic, number) for number in range(partitions)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offsets watch", daemon=True)
        self._last: dict[TopicPartition, int] = {}
        self.looks = 0
        self.steps_back: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Look no more: what happens to the offsets from now on is meant."""
        self._over.set()
        self._thread.join(_JOIN_S)

    def note(self, committed: Mapping[TopicPartition, int]) -> None:
        """What is committed now."""
        for partition, offset in committed.items():
            # While a transaction is being decided there is no answer for its partitions, which reads as 0.
            if 0 < offset < (before := self._last.get(partition, 0)):
                self.steps_back.append(f"{partition} from {before} to {offset}")
            self._last[partition] = offset or self._last.get(partition, 0)
        self.looks += 1

    def _run(self) -> None:
        # Not by the admin client: librdkafka 2.16 crashes where the group's coordinator cannot be found in time.
        consumer = confluent_kafka.Consumer(
            {**self._arguments, "group.id": self._group, "enable.auto.commit": False, "log_level": 2}
        )
        wanted = [confluent_kafka.TopicPartition(topic, number) for topic, number in self._partitions]
        try:
            while not self._over.wait(_LOOK_S):
                try:
                    found = consumer.committed(wanted, timeout=_ANSWER_S)
                except confluent_kafka.KafkaException:
                    # A broker that is away, or offsets of a transaction that is not decided: the next look will tell.
                    continue
                self.note({TopicPartition(where.topic, where.partition): max(0, where.offset) for where in found})
        finally:
            consumer.close()
