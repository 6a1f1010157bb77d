"""What a shard gathers for one transaction: record batches for each output partition, written as records come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millstream.connectors.kafka.placement import place, rows_by_partition
from millstream.connectors.kafka.record_batch import BatchBuilder, Compression, SealedBatch
from millstream.processor.columns import OutputRecords
from millstream.processor.partitions import TopicPartition


@dataclass(frozen=True, slots=True)
class SealedOutputs:
    """Finished batches for each output partition, complete but for the producer's identity."""

    batches: Mapping[TopicPartition, list[SealedBatch]]
    byte_count: int


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """How batches for output topics are made. `batch_bytes_max` is each topic's `max.message.bytes`."""

    batch_bytes_max: Mapping[str, int]
    compression: Compression


class KafkaOutbox:
    """An outbox for one transaction."""

    def __init__(self, settings: OutputSettings, partitions_of: Callable[[str], int]) -> None:
        self._settings = settings
        self._partitions_of = partitions_of
        self._builders: dict[TopicPartition, BatchBuilder] = {}
        self._partitions: dict[str, int] = {}
        self._byte_count = 0

    @property
    def byte_count(self) -> int:
        """The bytes gathered so far."""
        return self._byte_count

    def add(self, outputs: OutputRecords) -> None:
        """Place records by their keys and write them behind those added before.

        Raises UnavailableError when the topic is not known any more.
        """
        if not len(outputs):
            return
        topic = outputs.topic
        # Partitions added in the middle of a transaction must not move a key within it.
        partitions = self._partitions.setdefault(topic, self._partitions_of(topic))
        placed = place(outputs.key, outputs.unkeyed_partition, partitions)
        for partition, rows in rows_by_partition(placed, partitions):
            builder = self._builder(TopicPartition(topic, partition))
            before = builder.byte_count
            builder.append(outputs, rows)
            self._byte_count += builder.byte_count - before

    def _builder(self, partition: TopicPartition) -> BatchBuilder:
        builder = self._builders.get(partition)
        if builder is None:
            builder = BatchBuilder(
                batch_bytes_max=self._settings.batch_bytes_max[partition.topic], compression=self._settings.compression
            )
            self._builders[partition] = builder
        return builder

    def seal(self) -> SealedOutputs:
        """Everything gathered, fixed; the outbox is empty afterwards."""
        sealed = SealedOutputs(
            {partition: builder.seal() for partition, builder in self._builders.items()}, self._byte_count
        )
        self._builders.clear()
        self._partitions.clear()
        self._byte_count = 0
        return sealed
