"""Events to a topic, as columns: one idempotent producer that has one request under way at a time.

It shares the record batches and requests with the processor, since a client with an object for each record costs a
core what 200K events a second take. That they are right is not taken on trust: the judge reads them with another
client library.

The order of a partition cannot break, since its next batch is not made before the last one is stored. A request that
is repeated, after a broker's restart say, has the same bytes; the broker knows their producer id and sequence numbers,
and stores them once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import numpy as np

from millstream.connectors.kafka.cluster import Cluster, retry_pause_s
from millstream.connectors.kafka.placement import place, rows_by_partition
from millstream.connectors.kafka.record_batch import BatchBuilder, SealedBatch
from millstream.connectors.kafka.sender import Deadline, Sender
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.connectors.kafka.transaction_requests import NO_PRODUCER, InitProducerIdRequest
from millstream.loadgen.workload import Events
from millstream.processor.columns import OutputRecords, Slices
from millstream.processor.errors import MillstreamError, UnavailableError
from millstream.processor.partitions import TopicPartition

BATCH_BYTES_MAX = 1_000_000
_ROLE = "load"
_STORE_S_MAX = 60.0
_CONNECT_S_MAX = 15.0
_US_PER_MS = 1000
_SEQUENCES = 1 << 31
_NO_HEADERS = b"\x00"


class NotStoredError(MillstreamError):
    """The broker did not say of `events` events that they are stored; some of them may be."""

    def __init__(self, events: int, reason: str) -> None:
        self.events = events
        super().__init__(reason)


class Outlet:
    """Sends to one topic. `connect` first, `close` in the end."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self._topic = topic
        self._cluster = Cluster(kafka)
        self._sender = Sender(self._cluster, _ROLE)
        self._identity = NO_PRODUCER
        self._builders: list[BatchBuilder] = []
        self._sequences: list[int] = []

    def close(self) -> None:
        """Close every connection."""
        self._cluster.close()

    async def connect(self) -> None:
        """Afterwards the first events pay for nothing: the topic's leaders and a producer id are known.

        Raises UnavailableError where no broker answers or the topic has no leaders in time, RefusedError where it is
        refused.
        """
        self._cluster.track([self._topic])
        await self._cluster.connect()
        deadline = Deadline(_CONNECT_S_MAX)
        partitions = await self._partitions(deadline)
        self._builders = [BatchBuilder(batch_bytes_max=BATCH_BYTES_MAX) for _ in range(partitions)]
        self._sequences = [0] * partitions

        async def ask() -> tuple[int, None]:
            answer = await self._cluster.call_any(InitProducerIdRequest(None, int(_STORE_S_MAX * 1000)))
            self._identity = answer.identity
            return answer.error, None

        await self._sender.retried("asking for a producer id", deadline, ask)

    async def send(self, events: Events) -> None:
        """The events are stored by all in-sync replicas when this returns.

        Raises NotStoredError where that is not known after a minute, or the broker refuses; nothing may be sent after
        that, since it would stand before what is missing.
        """
        left = len(events)
        try:
            for layer in self._layers(events):
                await self._store(layer)
                left -= sum(batch.record_count for batch in layer.values())
        except MillstreamError as error:
            raise NotStoredError(left, str(error)) from error

    async def _partitions(self, deadline: Deadline) -> int:
        tries = 0
        while True:
            topic = self._cluster.topic(self._topic)
            partitions = len(topic.partitions) if topic is not None else 0
            wanted = [TopicPartition(self._topic, number) for number in range(partitions)]
            if wanted and all(self._cluster.leader(partition) is not None for partition in wanted):
                return partitions
            if deadline.left_s == 0:
                raise UnavailableError(f"topic {self._topic} has no leaders; last seen with {partitions} partitions")
            await deadline.pause(retry_pause_s(tries))
            await self._cluster.refresh()
            tries += 1

    def _layers(self, events: Events) -> Iterator[dict[TopicPartition, SealedBatch]]:
        """The events as batches, in layers: a request holds one batch for each partition."""
        count = len(events)
        unkeyed = np.zeros(count, np.int32)
        records = OutputRecords(
            self._topic,
            events.key,
            events.value,
            Slices.repeated(_NO_HEADERS, count),
            events.sent_us // _US_PER_MS,
            unkeyed,
            unkeyed,
        )
        groups = rows_by_partition(place(events.key, unkeyed, len(self._builders)), len(self._builders))
        for number, rows in groups:
            self._builders[number].append(records, rows)
        sealed = [self._builders[number].seal() for number, _ in groups]
        for layer in zip_longest(*sealed):
            yield {
                TopicPartition(self._topic, number): batch
                for (number, _), batch in zip(groups, layer, strict=True)
                if batch is not None
            }

    async def _store(self, layer: dict[TopicPartition, SealedBatch]) -> None:
        stamped = {
            partition: batch.stamped(
                producer_id=self._identity.producer_id,
                producer_epoch=self._identity.epoch,
                base_sequence=self._sequences[partition.partition],
                transactional=False,
            )
            for partition, batch in layer.items()
        }
        await self._sender.produce(None, stamped, Deadline(_STORE_S_MAX))
        for (_, number), batch in layer.items():
            self._sequences[number] = (self._sequences[number] + batch.record_count) % _SEQUENCES
