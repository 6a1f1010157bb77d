"""How far a pipeline is, by partition, seen from outside: nothing is fenced, and nothing is written."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from millstream.connectors.kafka.cluster import Cluster
from millstream.connectors.kafka.error_codes import Code
from millstream.connectors.kafka.kafka_log import KafkaLog, LogSettings
from millstream.connectors.kafka.offset_note import is_stale
from millstream.connectors.kafka.offsets import Offsets
from millstream.connectors.kafka.read_requests import CommittedOffset, FetchPartition, FetchRequest
from millstream.connectors.kafka.record_batch import decode_batches
from millstream.connectors.kafka.sender import Deadline, Sender
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.processor.errors import CorruptBatchError, UnavailableError
from millstream.processor.ledger import LedgerState
from millstream.processor.log import Bounds
from millstream.processor.partitions import TopicPartition
from millstream.processor.reset import known_pipeline

_TIMEOUT_S: Final = 10.0

State = Literal["ok", "not committed", "lost"]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition. `end` is where its committed records end (the last stable offset).

    `age_s` is the time since the timestamp of the first record that is not processed; None where there is none, where
    it has no timestamp, or where what comes first holds no record. `lost` says that the log does not hold the committed
    offset any more, or that the topic was made anew since.
    """

    topic: str
    partition: int
    committed: int | None
    end: int
    lag: int | None
    age_s: float | None
    state: State

    def as_json(self) -> dict[str, Any]:
        """The same, as JSON-serialisable values."""
        return asdict(self)


class LagReader:
    """Looks at a pipeline's partitions again and again, by the same connections, until `close`."""

    def __init__(self, kafka: KafkaSettings, pipeline: str) -> None:
        self._kafka = kafka
        self._pipeline = pipeline
        self._cluster = Cluster(kafka)
        self._topics: Sequence[str] = ()

    async def connect(self) -> LedgerState:
        """Reach the cluster; answers what the ledger says. Raises SettingsError where there is no such pipeline."""
        log_ = KafkaLog(self._kafka, LogSettings(group=self._pipeline, exactly_once=True))
        try:
            await log_.connect()
            state = await known_pipeline(log_, self._pipeline)
        finally:
            log_.close()
        self._topics = sorted(state.widths)
        await self._cluster.connect()
        self._cluster.track(self._topics)
        return state

    async def read(self, *, with_ages: bool = True) -> list[PartitionLag]:
        """Every partition of the topics that the pipeline has read. `with_ages` reads a record of each that waits."""
        cluster = self._cluster
        await cluster.refresh()
        views = [view for topic in self._topics if (view := cluster.topic(topic)) is not None]
        partitions = [TopicPartition(view.name, p) for view in views for p in sorted(view.partitions)]
        offsets = Offsets(cluster, timeout_s=_TIMEOUT_S)
        committed = await offsets.committed(self._pipeline, partitions)
        bounds = await offsets.bounds(partitions)
        sender = Sender(cluster, "ages") if with_ages else None
        return [await _lag(cluster, sender, partition, committed, bounds[partition]) for partition in partitions]

    def close(self) -> None:
        """Close every connection."""
        self._cluster.close()


async def lags_of(kafka: KafkaSettings, pipeline: str) -> list[PartitionLag]:
    """Every partition of the topics that the pipeline has read. Raises SettingsError where there is no such one."""
    reader = LagReader(kafka, pipeline)
    try:
        await reader.connect()
        return await reader.read()
    finally:
        reader.close()


async def _lag(
    cluster: Cluster,
    sender: Sender | None,
    partition: TopicPartition,
    committed: Mapping[TopicPartition, CommittedOffset],
    bounds: Bounds,
) -> PartitionLag:
    found = committed.get(partition)
    if found is None:
        return PartitionLag(*partition, None, bounds.end, None, None, "not committed")
    if is_stale(found.metadata, cluster.topic(partition.topic)) or not bounds.start <= found.offset <= bounds.end:
        return PartitionLag(*partition, found.offset, bounds.end, None, None, "lost")
    lag = bounds.end - found.offset
    age_s = await _age_s(cluster, sender, partition, found.offset) if lag and sender is not None else None
    return PartitionLag(*partition, found.offset, bounds.end, lag, age_s, "ok")


async def _age_s(cluster: Cluster, sender: Sender, partition: TopicPartition, offset: int) -> float | None:
    topic = cluster.topic(partition.topic)
    leader = cluster.leader(partition)
    if topic is None or leader is None:
        return None
    # The first partition of a fetch answers with one batch at least, however small the limit is.
    request = FetchRequest([FetchPartition(topic.topic_id, partition.partition, offset, 1)], 0, 1, 1)
    try:
        answer = await sender.call(leader, request, Deadline(_TIMEOUT_S))
        part = answer.partitions[0] if answer.partitions else None
        if part is None or answer.error != Code.NONE or part.error != Code.NONE:
            return None
        records = decode_batches(part.data, partition, fetch_offset=offset, aborted=part.aborted).records
    except (UnavailableError, CorruptBatchError):
        return None
    if not len(records) or records.timestamp[0] < 0:
        return None
    return max(0.0, time.time() - int(records.timestamp[0]) / 1000)
