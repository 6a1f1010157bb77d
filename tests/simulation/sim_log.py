"""The processor's log on the model of Kafka: the real commits, fences and look-ups of offsets, over requests that are
objects and not bytes; feeds and outboxes without record batches.
"""

from __future__ import annotations

import asyncio
import random
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sim_kafka import Kafka, Record, Stamped
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
    ProducerIdentity,
    TxnOffsetCommitRequest,
)
from millstream.processor.columns import OutputRecords, Records, Slices
from millstream.processor.errors import UnavailableError
from millstream.processor.log import Fetched, TopicPlan
from millstream.processor.partitions import TopicPartition

GROUP = "p"
TRANSACTION_TIMEOUT_S = 4.0
_FETCH_WAIT_S = 0.3
_PIECES_AHEAD = 2
_TOPIC_ID = uuid.UUID(int=1)
# Another one than the ledger's: who is cut off from that one goes on as if nothing had happened.
_READ_FROM = 2

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


class Session:
    """One run of a shard by somebody: what it asks for is noted under this."""

    def __init__(self, client: Client, shard: int) -> None:
        self.client = client
        self.shard = shard

    def __repr__(self) -> str:
        return f"{self.client.process.name} shard {self.shard}"


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
        return _READ_FROM if partition.topic == "in" else 1 + partition.partition % self.network.brokers

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


class Batch:
    """A record batch that lacks its producer's identity."""

    def __init__(self, records: tuple[Record, ...]) -> None:
        self.records = records
        self.record_count = len(records)

    def stamped(self, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool) -> Any:
        assert transactional
        return Stamped(ProducerIdentity(producer_id, producer_epoch), base_sequence, self.records)


@dataclass(frozen=True)
class Sealed:
    batches: Mapping[TopicPartition, list[Batch]]
    byte_count: int

    @property
    def empty(self) -> bool:
        return not self.batches


class Outbox:
    """Outputs by partition. Now and then a new batch begins, so that a transaction has several of a partition."""

    def __init__(self, partitions: Callable[[str], int], batch_records: int) -> None:
        self._partitions = partitions
        self._batch_records = batch_records
        self._records: dict[TopicPartition, list[Record]] = {}
        self.byte_count = 0

    def add(self, outputs: OutputRecords) -> None:
        count = self._partitions(outputs.topic)
        rows = zip(outputs.key.to_list(), outputs.value.to_list(), outputs.unkeyed_partition.tolist(), strict=True)
        for key, value, unkeyed in rows:
            assert value is not None
            place = TopicPartition(outputs.topic, (unkeyed if key is None else zlib.crc32(key)) % count)
            self._records.setdefault(place, []).append(Record(key, value))
            self.byte_count += len(value)

    def seal(self) -> Sealed:
        most = self._batch_records
        batches = {
            place: [Batch(tuple(records[i : i + most])) for i in range(0, len(records), most)]
            for place, records in self._records.items()
        }
        sealed = Sealed(batches, self.byte_count)
        self._records, self.byte_count = {}, 0
        return sealed


class Feed:
    """What has arrived of one partition."""

    def __init__(
        self, place: TopicPartition, offset: int, notify: Callable[[], None], taken: Callable[[], None]
    ) -> None:
        self.place = place
        self.next_offset = offset
        self.end_offset: int | None = None
        self.is_closed = False
        self.pieces: deque[Fetched] = deque()
        self._notify = notify
        self._taken = taken

    @property
    def has_something(self) -> bool:
        return bool(self.pieces)

    @property
    def silent_s(self) -> float:
        return 0.0

    @property
    def is_hungry(self) -> bool:
        return not self.is_closed and len(self.pieces) < _PIECES_AHEAD

    def take_nowait(self) -> Fetched | None:
        assert not self.is_closed, "a feed that was closed is read"
        if not self.pieces:
            return None
        self._taken()
        return self.pieces.popleft()

    def put(self, records: Sequence[tuple[int, Record]], next_offset: int, end: int) -> None:
        self.end_offset = end
        if next_offset > self.next_offset:
            self.pieces.append(Fetched(_columns(self.place, records), next_offset, 16 * len(records)))
            self.next_offset = next_offset
            self._notify()

    def close(self) -> None:
        self.is_closed = True
        self.pieces.clear()


def _nothing() -> None:
    pass


def _columns(place: TopicPartition, records: Sequence[tuple[int, Record]]) -> Records:
    count = len(records)
    return Records(
        (place,),
        np.zeros(count, np.int32),
        np.array([offset for offset, _ in records], np.int64),
        np.full(count, -1, np.int64),
        Slices.from_list([record.key for _, record in records]),
        Slices.from_list([record.value for _, record in records]),
        Slices.repeated(b"\0", count),
    )


class Fetcher:
    """One fetch in flight for all feeds of a worker, as in the connector."""

    is_committed_only = True

    def __init__(self, network: Network, kafka: Kafka, client: Client, piece_records: int) -> None:
        self._network = network
        self._kafka = kafka
        self._client = client
        self._piece_records = piece_records
        self._feeds: list[Feed] = []
        self._changed = asyncio.Event()
        self._cut_short: Callable[[], None] = _nothing

    def open(self, session: Session, place: TopicPartition, offset: int, notify: Callable[[], None]) -> Feed:
        self._kafka.note("open", session, (place, offset))
        feed = Feed(place, offset, notify, self._changed.set)
        self._feeds.append(feed)
        self._changed.set()
        # The connector's fetches wait for 50 ms at most; here they are rarer, and end early instead.
        self._network.later(self._network.way_s, self._cut_short)
        return feed

    async def run(self) -> None:
        while True:
            self._changed.clear()
            self._feeds = [feed for feed in self._feeds if not feed.is_closed]
            hungry = [feed for feed in self._feeds if feed.is_hungry]
            if not hungry:
                await self._changed.wait()
                continue
            await self._fetch(hungry)

    async def _fetch(self, feeds: list[Feed]) -> None:
        asked = [(feed.place, feed.next_offset) for feed in feeds]

        def read() -> list[tuple[Sequence[tuple[int, Record]], int, int]]:
            answer = []
            for place, offset in asked:
                log = self._kafka.partition(place)
                end = log.stable_end if self.is_committed_only else len(log.entries)
                until = min(end, offset + self._piece_records)
                records = log.visible(offset, until, is_committed_only=self.is_committed_only)
                answer.append((records, max(until, offset), end))
            return answer

        def handle(respond: Callable[[Any], None]) -> None:
            is_answered = False

            def answer(*, is_due: bool = True) -> None:
                nonlocal is_answered
                found = read()
                if not is_answered and (
                    is_due or any(part[1] > at for part, (_, at) in zip(found, asked, strict=True))
                ):
                    is_answered = True
                    respond(found)

            answer(is_due=False)
            if not is_answered:
                self._cut_short = answer
                self._kafka.wait_for([place for place, _ in asked], answer)
                self._network.later(_FETCH_WAIT_S, answer)

        try:
            found = await self._network.ask(
                self._client, _READ_FROM, "Fetch", handle, _FETCH_WAIT_S + REQUEST_TIMEOUT_S
            )
        except UnavailableError:
            await asyncio.sleep(0.02)
            return
        for feed, (records, next_offset, end), (_, offset) in zip(feeds, found, asked, strict=True):
            if not feed.is_closed and feed.next_offset == offset:
                feed.put(records, next_offset, end)


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
