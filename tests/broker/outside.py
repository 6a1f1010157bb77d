"""What the engine's tests need from outside of it: topics, input, and independent readers on confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import confluent_kafka
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.produce import send_all
from millstream.loadgen.schedule import FullSpeed
from millstream.loadgen.topics import TopicAdmin
from millstream.loadgen.verdict import Verdict
from millstream.loadgen.verify import VerifySettings, judge
from millstream.loadgen.workload import Workload, WorkloadSettings
from millstream.processor.partitions import TopicPartition

Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class Message:
    """A record as a reader of committed data sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int


class Outside:
    """One cluster, as seen by another client library."""

    def __init__(self, bootstrap: str, unique: Callable[[str], str]) -> None:
        self.bootstrap = bootstrap
        self.unique = unique
        # librdkafka writes to stderr when a broker goes away, which is what several tests are about.
        self.kafka: dict[str, object] = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._admin = AdminClient(dict(self.kafka))

    def topic(self, purpose: str, partitions: int = 3, **settings: str) -> str:
        """A new topic; settings are named with underscores: `max_message_bytes="2000"`."""
        name = self.unique(purpose)
        self.create(name, partitions, **settings)
        return name

    def create(self, topic: str, partitions: int, **settings: str) -> None:
        """Create a topic of that name."""
        config = {key.replace("_", "."): value for key, value in settings.items()}
        # -1: as many replicas as the cluster makes by itself.
        self._admin.create_topics([NewTopic(topic, partitions, -1, config=config)])[topic].result(20)

    def set_topic(self, topic: str, **settings: str) -> None:
        """Change settings of a topic, named as in `topic`."""
        entries = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in settings.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        for future in self._admin.incremental_alter_configs([resource]).values():
            future.result(20)

    def delete(self, topic: str) -> None:
        """The topic is gone when this returns."""
        self._admin.delete_topics([topic])[topic].result(20)

    def add_partitions(self, topic: str, total: int) -> None:
        """Widen a topic."""
        from confluent_kafka.admin import NewPartitions

        self._admin.create_partitions([NewPartitions(topic, total)])[topic].result(20)

    def delete_records(self, topic: str, before: dict[int, int]) -> None:
        """Have retention pass these offsets."""
        wanted = [confluent_kafka.TopicPartition(topic, p, offset) for p, offset in before.items()]
        for future in self._admin.delete_records(wanted).values():
            future.result(20)

    def exists(self, topic: str) -> bool:
        """Whether the topic is there."""
        return self._admin.list_topics(topic, timeout=20).topics[topic].error is None

    def send(
        self,
        topic: str,
        records: Sequence[tuple[bytes | None, bytes | None]],
        *,
        partition: int = -1,
        headers: Sequence[Header] = (),
        timestamp_ms: int = 0,
        **producer_settings: object,
    ) -> None:
        """Write (key, value) records, in order, and wait until all are stored."""
        config = {key.replace("_", "."): value for key, value in producer_settings.items()}
        producer = confluent_kafka.Producer({**self.kafka, "enable.idempotence": True, **config})
        for key, value in records:
            producer.produce(topic, value, key, partition, headers=list(headers), timestamp=timestamp_ms)
            producer.poll(0)
        assert producer.flush(30) == 0

    def load(self, topic: str, events: int, *, first_id: int = 0, keys: int = 50) -> None:
        """Write seeded events that the judge can account for; each call has keys of its own."""
        workload = Workload(WorkloadSettings(keys=keys, first_id=first_id, key_prefix=f"k{first_id}"))
        kafka = KafkaSettings(brokers=tuple(self.bootstrap.split(",")))
        # In a thread, since the caller's may have an event loop at work.
        with ThreadPoolExecutor(1) as thread:
            report = thread.submit(send_all, kafka, topic, workload, FullSpeed(events)).result()
        assert report.failed == 0, report.first_error

    def read(self, topic: str) -> list[Message]:
        """Every committed record, partition by partition.

        A commit is answered before its markers are written, so this waits until nothing is open any more.
        """
        count = len(self._admin.list_topics(topic, timeout=20).topics[topic].partitions)
        self._wait_until_settled([TopicPartition(topic, partition) for partition in range(count)])
        consumer = confluent_kafka.Consumer(
            {**self.kafka, "group.id": "outside", "isolation.level": "read_committed", "enable.partition.eof": True}
        )
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, p, confluent_kafka.OFFSET_BEGINNING) for p in range(count)]
        )
        messages: list[Message] = []
        ended: set[int] = set()
        while len(ended) < count:
            for message in consumer.consume(10_000, 0.2):
                if message.error() is not None:
                    assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                    ended.add(message.partition())
                else:
                    messages.append(_as_message(message))
        consumer.close()
        return sorted(messages, key=lambda m: (m.partition, m.offset))

    def _wait_until_settled(self, partitions: list[TopicPartition]) -> None:
        admin = TopicAdmin(self.kafka)
        deadline = time.monotonic() + 20
        while admin.uncommitted_records(partitions):
            assert time.monotonic() < deadline, "a transaction is left open"
            time.sleep(0.02)

    def judge(self, source: str, target: str, *, group: str | None = None) -> Verdict:
        """The judge's verdict on what is there now."""
        return judge(self.kafka, VerifySettings(inputs=(source,), outputs=(target,), group=group, patience_s=15))


def _as_message(message: confluent_kafka.Message) -> Message:
    return Message(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        message.timestamp()[1],
    )
