"""Kafka as the runtime's log: what a worker, and each of its shards, reads from and writes to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from millstream.connectors.kafka.admin import Admin
from millstream.connectors.kafka.admin_requests import REPLICATION_DEFAULT, NewTopic
from millstream.connectors.kafka.cluster import Cluster
from millstream.connectors.kafka.event_log import LOG
from millstream.connectors.kafka.fetcher import Feed, Fetcher, FetchLimits
from millstream.connectors.kafka.ledger_topic import LedgerTopic
from millstream.connectors.kafka.offset_note import is_stale, note_for
from millstream.connectors.kafka.offsets import Offsets
from millstream.connectors.kafka.outbox import KafkaOutbox, OutputSettings, SealedOutputs
from millstream.connectors.kafka.read_requests import EARLIEST, LATEST
from millstream.connectors.kafka.record_batch import Compression
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.connectors.kafka.transaction import Permit, PlainCommitter, TransactionalCommitter
from millstream.connectors.kafka.transaction_requests import OffsetToCommit
from millstream.processor.errors import UnavailableError
from millstream.processor.log import Bounds, Committed, Positions, Sealed, Start, TopicPlan
from millstream.processor.log import Permit as AnyPermit
from millstream.processor.partitions import TopicPartition
from millstream.processor.seldom import SeldomWarning

_METADATA_REFRESH_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How the log is used. `group` names the offset store, and prefixes the transactional ids."""

    group: str
    exactly_once: bool
    compression: Compression = Compression.NONE
    commit_timeout_s: float = 10.0
    transaction_timeout_ms: int = 30_000
    fetch: FetchLimits = field(default_factory=FetchLimits)


class KafkaLog:
    """One worker's connections, and everything that its shards share."""

    def __init__(self, kafka: KafkaSettings, settings: LogSettings) -> None:
        self._cluster = Cluster(kafka)
        self._settings = settings
        self._admin = Admin(self._cluster)
        self._fetcher = Fetcher(self._cluster, settings.fetch)
        self._offsets = Offsets(self._cluster, timeout_s=settings.commit_timeout_s)
        self._batch_bytes_max: dict[str, int] = {}

    async def connect(self) -> None:
        """Reach the cluster; see that it can do Transactions V2."""
        await self._cluster.connect()

    async def run(self) -> None:
        """Keep feeds filled and metadata fresh, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._fetcher.run())
            tasks.create_task(self._refresh_now_and_then())

    async def _refresh_now_and_then(self) -> None:
        no_metadata = SeldomWarning(LOG, "metadata.stale")
        while True:
            await asyncio.sleep(_METADATA_REFRESH_S)
            try:
                await self._cluster.refresh()
            except UnavailableError as error:
                no_metadata(error)

    @property
    def last_failure(self) -> str | None:
        """Why the last fetch was not answered; None where it was."""
        return self._fetcher.last_failure

    async def broker_count(self) -> int:
        """How many brokers the cluster shows now."""
        return len((await self._cluster.refresh()).brokers)

    async def missing_topics(self, topics: Sequence[str]) -> Sequence[str]:
        """Those that do not exist."""
        return await self._admin.missing(topics)

    async def create_topics(self, plans: Sequence[TopicPlan]) -> None:
        """Create those that do not exist."""
        await self._admin.create(
            [NewTopic(p.name, p.partitions, p.replication or REPLICATION_DEFAULT, p.settings) for p in plans]
        )

    async def partition_counts(self, topics: Sequence[str]) -> Mapping[str, int]:
        """How many partitions each topic has, as last seen; metadata is refreshed every few seconds."""
        return {topic: len(view.partitions) for topic in topics if (view := self._cluster.topic(topic)) is not None}

    async def record_bytes_max(self, topics: Sequence[str]) -> Mapping[str, int]:
        """The largest record batch that each topic takes, as the broker says now."""
        found = await self._admin.message_bytes_max(topics)
        self._batch_bytes_max.update(found)
        return found

    async def read_ledger(self, topic: str) -> Sequence[bytes]:
        """All records of the ledger, in order."""
        return await LedgerTopic(self._cluster, topic, timeout_s=self._settings.commit_timeout_s).read()

    async def append_to_ledger(self, topic: str, records: Sequence[bytes]) -> None:
        """Append records to the ledger."""
        await LedgerTopic(self._cluster, topic, timeout_s=self._settings.commit_timeout_s).append(records)

    def shard(self, shard: int) -> KafkaShardLog:
        """The log for one shard."""
        name = f"{self._settings.group}.{shard}"
        committer: TransactionalCommitter | PlainCommitter
        if self._settings.exactly_once:
            committer = TransactionalCommitter(
                self._cluster,
                transactional_id=name,
                group=self._settings.group,
                commit_timeout_s=self._settings.commit_timeout_s,
                transaction_timeout_ms=self._settings.transaction_timeout_ms,
            )
        else:
            committer = PlainCommitter(
                self._cluster,
                shard_name=name,
                group=self._settings.group,
                commit_timeout_s=self._settings.commit_timeout_s,
            )
        outputs = OutputSettings(self._batch_bytes_max, self._settings.compression)
        return KafkaShardLog(self._cluster, self._settings.group, committer, self._offsets, self._fetcher, outputs)

    def close(self) -> None:
        """Close every connection."""
        self._cluster.close()


class KafkaShardLog:
    """The log as one shard uses it."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        committer: TransactionalCommitter | PlainCommitter,
        offsets: Offsets,
        fetcher: Fetcher,
        outputs: OutputSettings,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._committer = committer
        self._offsets = offsets
        self._fetcher = fetcher
        self._outputs = outputs

    async def fence(self) -> Permit:
        """Become the only one who can commit for the shard."""
        return await self._committer.fence()

    async def committed(
        self, permit: AnyPermit, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, Committed]:
        """The stable committed positions. The note kept with each tells the topic that it belongs to."""
        del permit  # asked for so that nobody reads positions before the fence (I2)
        found = await self._offsets.committed(self._group, partitions)
        return {
            partition: Committed(offset.offset, is_stale(offset.metadata, self._cluster.topic(partition.topic)))
            for partition, offset in found.items()
        }

    async def starting(self, partitions: Mapping[TopicPartition, Start]) -> Positions:
        """The offsets at which to begin; a time that lies after the last record means the end."""
        if not partitions:
            return {}
        asked = {partition: _timestamp(start) for partition, start in partitions.items()}
        found = await self._offsets.listed(asked)
        late = [partition for partition, offset in found.items() if offset < 0]
        ends = await self._offsets.listed(dict.fromkeys(late, LATEST)) if late else {}
        return found | ends

    async def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        """Where the partitions begin and end now."""
        return await self._offsets.bounds(partitions)

    async def holds(self, permit: AnyPermit) -> bool:
        """Whether nobody has fenced the shard since."""
        return await self._committer.holds(cast("Permit", permit))

    def open(self, permit: AnyPermit, partition: TopicPartition, offset: int, notify: Callable[[], None]) -> Feed:
        """Read from `offset` on."""
        del permit  # nothing is read before the fence (I2)
        return self._fetcher.open(partition, offset, notify)

    def outbox(self) -> KafkaOutbox:
        """An empty outbox."""
        return KafkaOutbox(self._outputs, self._partitions_of)

    def _partitions_of(self, topic: str) -> int:
        view = self._cluster.topic(topic)
        if view is None:
            raise UnavailableError(f"output topic {topic} is not known to the cluster any more")
        return len(view.partitions)

    async def commit(self, permit: AnyPermit, outputs: Sealed, positions: Positions) -> Permit:
        """Commit both together or not at all."""
        offsets = {p: OffsetToCommit(at, note_for(self._cluster.topic(p.topic))) for p, at in positions.items()}
        return await self._committer.commit(cast("Permit", permit), cast("SealedOutputs", outputs).batches, offsets)

    def close(self) -> None:
        """Close the shard's own connections."""
        self._committer.close()


def _timestamp(start: Start) -> int:
    if isinstance(start, str):
        return EARLIEST if start == "earliest" else LATEST
    return int(start.timestamp() * 1000)
