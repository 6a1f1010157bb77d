"""Topics and offsets as the load generator and the judge need them, through confluent-kafka's admin client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

import confluent_kafka
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from millstream.loadgen.passing import is_passing, patiently
from millstream.processor.errors import RefusedError, UnavailableError
from millstream.processor.partitions import TopicPartition

_ANSWER_S = 20.0
_REPLICATION_OF_THE_BROKER = -1


class TopicAdmin:
    """A few administrative questions and orders, each bounded to 20 s, or twice that while leaders change.

    Raises UnavailableError or RefusedError.
    """

    def __init__(self, confluent_arguments: Mapping[str, object]) -> None:
        # Its notes are about its own inner life, such as an event that nobody waits for any more.
        self._arguments = {"log_level": 3, **confluent_arguments}
        self._admin = AdminClient(self._arguments)

    def create(self, topic: str, partitions: int, settings: Mapping[str, str] | None = None) -> None:
        """Afterwards the topic exists: made with that many partitions and these settings, unless it was there."""
        new = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=_REPLICATION_OF_THE_BROKER,
            config=dict(settings or {}),
        )
        try:
            self._admin.create_topics([new], request_timeout=_ANSWER_S)[topic].result(_ANSWER_S)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise _translated(error, f"topic {topic!r} could not be created") from error
        except TimeoutError as error:
            raise UnavailableError(f"no answer to the creation of topic {topic!r} for {_ANSWER_S:.0f} s") from error

    def delete(self, topics: Sequence[str]) -> None:
        """Afterwards none of the topics exists. Those that did not are no error."""
        if not topics:
            return
        for topic, future in self._admin.delete_topics(list(topics), request_timeout=_ANSWER_S).items():
            try:
                future.result(_ANSWER_S)
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() != confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise _translated(error, f"topic {topic!r} could not be deleted") from error
            except TimeoutError as error:
                raise UnavailableError(f"no answer to the deletion of topic {topic!r} for {_ANSWER_S:.0f} s") from error

    def partition_count(self, topic: str) -> int:
        """How many partitions the topic has; 0 where it does not exist."""
        try:
            found = self._admin.list_topics(topic, timeout=_ANSWER_S).topics[topic]
        except confluent_kafka.KafkaException as error:
            raise _translated(error, "the brokers do not answer") from error
        return len(found.partitions) if found.error is None else 0

    def uncommitted_records(self, partitions: Sequence[TopicPartition]) -> int:
        """Offsets between the last stable offset and the end, over all partitions: an open transaction's."""
        stable = self._ends(partitions, IsolationLevel.READ_COMMITTED)
        written = self._ends(partitions, IsolationLevel.READ_UNCOMMITTED)
        return sum(written[where] - stable[where] for where in partitions)

    def committed_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """What the group has committed; 0 for a partition for which it has committed nothing."""
        wanted = [confluent_kafka.TopicPartition(topic, partition) for topic, partition in partitions]
        # Not by the admin client: librdkafka 2.16 crashes where the group's coordinator cannot be found in time.
        consumer = confluent_kafka.Consumer({**self._arguments, "group.id": group, "enable.auto.commit": False})

        def ask() -> list[confluent_kafka.TopicPartition]:
            found: list[confluent_kafka.TopicPartition] = consumer.committed(wanted, timeout=_ANSWER_S)
            for where in found:
                if where.error is not None:
                    raise confluent_kafka.KafkaException(where.error)
            return found

        with closing(consumer):
            try:
                answer = patiently(ask)
            except confluent_kafka.KafkaException as error:
                raise _translated(error, f"offsets of group {group!r} could not be read") from error
        return {TopicPartition(p.topic, p.partition): max(0, p.offset) for p in answer}

    def _ends(self, partitions: Sequence[TopicPartition], isolation: IsolationLevel) -> dict[TopicPartition, int]:
        wanted = {confluent_kafka.TopicPartition(topic, number): OffsetSpec.latest() for topic, number in partitions}

        def ask() -> dict[TopicPartition, int]:
            futures = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=_ANSWER_S)
            return {
                TopicPartition(where.topic, where.partition): future.result(_ANSWER_S).offset
                for where, future in futures.items()
            }

        try:
            return patiently(ask)
        except confluent_kafka.KafkaException as error:
            raise _translated(error, "the ends of topics could not be read") from error


def _translated(error: confluent_kafka.KafkaException, what: str) -> UnavailableError | RefusedError:
    reason = error.args[0]
    is_late = reason.code() == confluent_kafka.KafkaError._TIMED_OUT  # noqa: SLF001 - a public name
    kind = UnavailableError if is_late or reason.retriable() or is_passing(reason) else RefusedError
    return kind(f"{what}: {reason.str()}")
