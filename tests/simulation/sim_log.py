"""The processor's log on the model of Kafka: the real commits, fences and look-ups of offsets, over requests that are
objects and not bytes.
"""

from __future__ import annotations

import asyncio
import random
import uuid
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sim_feed import READ_FROM, Fetcher, Outbox, Session
from sim_kafka import Kafka
from sim_membership import Ledger
from sim_network import REQUEST_TIMEOUT_S, Client, Network

from millstream.connectors.kafka.describe_requests import DescribeTransactionsRequest, TransactionState
from millstream.connectors.kafka.error_codes import Code
from millstream.connectors.kafka.kafka_log import KafkaShardLog
from millstream.connectors.kafka.offsets import Offsets
from millstream.connectors.kafka.read_requests import (
    ListedOffset,
    ListOffsetsRequest,
    OffsetFetchAnswer,
    OffsetFetchRequest,
)
from millstream.connectors.kafka.requests import CoordinatorType, PartitionView, TopicView
from millstream.connectors.kafka.transaction import TransactionalCommitter
from millstream.connectors.kafka.transaction_requests import (
    NO_PRODUCER,
    EndTxnAnswer,
    EndTxnRequest,
    InitProducerIdAnswer,
    InitProducerIdRequest,
    ProduceAnswer,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from millstream.processor.log import TopicPlan
from millstream.processor.partitions import TopicPartition

GROUP = "p"
TRANSACTION_TIMEOUT_S = 4.0
_TOPIC_ID = uuid.UUID(int=1)

# Answers that ask to be tried again; each may come instead of an effect, or instead of the answer to one.
_TRY_AGAIN = (
    Code.NOT_COORDINATOR,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    Code.REQUEST_TIMED_OUT,
)

_FAILED: Mapping[type, Callable[[Any, int], Any]] = {
    InitProducerIdRequest: lambda _, code: InitProducerIdAnswer(code, NO_PRODUCER),
    ProduceRequest: lambda request, code: [ProduceAnswer(place, code, None) for place in request.batches],
    TxnOffsetCommitRequest: lambda request, code: [(place, code) for place in request.offsets],
    EndTxnRequest: lambda _, code: EndTxnAnswer(code, NO_PRODUCER),
    OffsetFetchRequest: lambda _, code: OffsetFetchAnswer(code, []),
    ListOffsetsRequest: lambda request, code: [ListedOffset(place, code, -1) for place in request.timestamps],
    DescribeTransactionsRequest: lambda _, code: [TransactionState(code, "", "", 0, -1, NO_PRODUCER, [])],
}


@dataclass
class Cluster:
    """What the connector knows as its cluster, for one session. Every partition has one leader for good."""

    network: Network
    kafka: Kafka
    client: Client
    session: Session | None
    rng: random.Random
    trouble: Trouble

    request_timeout_s = REQUEST_TIMEOUT_S

    async def call(self, node_id: int, role: Hashable, request: Any, *, timeout_s: float | None = None) -> Any:
        kind = type(request).__name__

        def handle(respond: Callable[[Any], None]) -> None:
            self.kafka.note("request", self.session, request)
            is_troubled = self.rng.random() < self.trouble.chance
            if is_troubled and self.rng.random() < 0.5:
                answer = None
            else:
                answer = self.kafka.handle(self.session, request)
            respond(_FAILED[type(request)](request, self.rng.choice(_TRY_AGAIN)) if is_troubled else answer)

        return await self.network.ask(self.client, node_id, kind, handle, timeout_s or REQUEST_TIMEOUT_S)

    def leader(self, partition: TopicPartition) -> int:
        return READ_FROM if partition.topic == "in" else 1 + partition.partition % self.network.brokers

    async def leaders(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {partition: self.leader(partition) for partition in partitions}

    async def coordinator(self, kind: CoordinatorType, key: str) -> int:
        return 1 + (zlib.crc32(key.encode()) + kind) % self.network.brokers

    def topic(self, name: str) -> TopicView:
        logs = self.kafka.topics[name]
        return TopicView(name, _TOPIC_ID, Code.NONE, {i: PartitionView(i, 1, 0) for i in range(len(logs))})

    async def refresh(self) -> None:
        await asyncio.sleep(self.network.way_s)

    def forget_coordinator(self, kind: CoordinatorType, key: str) -> None:
        pass

    def release(self, role: Hashable) -> None:
        pass


@dataclass
class Trouble:
    """How often a broker answers a shard's request with "try again"."""

    chance: float = 0.0


class ShardLog(KafkaShardLog):
    """The connector's own, but for feeds and outboxes."""

    def __init__(self, log: Log, session: Session, transactional_id: str, batch_records: int) -> None:
        self.session = session
        self.shards = log.shards
        self._batch_records = batch_records
        cluster: Any = Cluster(log.network, log.kafka, log.client, session, log.rng, log.trouble)
        committer = TransactionalCommitter(
            cluster,
            transactional_id=transactional_id,
            group=GROUP,
            commit_timeout_s=log.commit_timeout_s,
            transaction_timeout_ms=int(TRANSACTION_TIMEOUT_S * 1000),
        )
        offsets = Offsets(cluster, timeout_s=log.commit_timeout_s)
        super().__init__(cluster, GROUP, committer, offsets, log.fetcher, None)  # type: ignore[arg-type]

    def open(self, permit: Any, partition: TopicPartition, offset: int, notify: Callable[[], None]) -> Any:
        return self._fetcher.open(self.session, partition, offset, notify)  # type: ignore[call-arg, arg-type]

    def outbox(self) -> Any:
        return Outbox(self._partitions_of, self._batch_records)


class Log:
    """Implements `processor.log.Log` for one worker."""

    def __init__(
        self,
        network: Network,
        kafka: Kafka,
        ledger: Ledger,
        client: Client,
        rng: random.Random,
        trouble: Trouble,
        shards: int,
        commit_timeout_s: float,
    ) -> None:
        self.shards = shards
        self.commit_timeout_s = commit_timeout_s
        self.network = network
        self.kafka = kafka
        self.client = client
        self.rng = rng
        self.trouble = trouble
        self.fetcher = Fetcher(network, kafka, client, piece_records=rng.randint(2, 8))
        self.last_failure: str | None = None
        self._ledger = ledger

    async def _ask(self, kind: str, effect: Callable[[], Any]) -> Any:
        return await self.network.ask(self.client, 1, kind, lambda respond: respond(effect()))

    async def connect(self) -> None:
        await self._ask("Connect", lambda: None)

    async def run(self) -> None:
        await self.fetcher.run()

    async def broker_count(self) -> int:
        return self.network.brokers

    async def missing_topics(self, topics: Sequence[str]) -> Sequence[str]:
        return []

    async def create_topics(self, plans: Sequence[TopicPlan]) -> None:
        raise AssertionError("there are all topics")

    async def partition_counts(self, topics: Sequence[str]) -> Mapping[str, int]:
        return {topic: len(self.kafka.topics[topic]) for topic in topics}

    async def record_bytes_max(self, topics: Sequence[str]) -> Mapping[str, int]:
        await self._ask("DescribeConfigs", lambda: None)
        return dict.fromkeys(topics, 1_000_000)

    async def read_ledger(self, topic: str) -> Sequence[bytes]:
        return await self._ask("ReadLedger", self._ledger.values)  # type: ignore[no-any-return]

    async def append_to_ledger(self, topic: str, records: Sequence[bytes]) -> None:
        await self._ask("AppendToLedger", lambda: self._ledger.store(records))

    def shard(self, shard: int) -> ShardLog:
        session = Session(self.client, shard)
        return ShardLog(self, session, f"{GROUP}.{shard}", self.rng.choice([2, 5, 100]))

    def close(self) -> None:
        pass
