"""Feeds and outboxes of the processor on the model of Kafka: records as objects, without record batches."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sim_kafka import Kafka, Record, Stamped
from sim_network import REQUEST_TIMEOUT_S, Client, Network

from millstream.connectors.kafka.transaction_requests import ProducerIdentity
from millstream.processor.columns import OutputRecords, Records, Slices
from millstream.processor.errors import UnavailableError
from millstream.processor.log import Fetched
from millstream.processor.partitions import TopicPartition

# The broker that leads the input. Another one than the ledger's: who is cut off from that one goes on as if nothing had
# happened.
READ_FROM = 2
_FETCH_WAIT_S = 0.3
_PIECES_AHEAD = 2


class Session:
    """One run of a shard by somebody: what it asks for is noted under this."""

    def __init__(self, client: Client, shard: int) -> None:
        self.client = client
        self.shard = shard

    def __repr__(self) -> str:
        return f"{self.client.process.name} shard {self.shard}"


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
                if is_answered:
                    return
                found = read()
                if is_due or any(part[1] > at for part, (_, at) in zip(found, asked, strict=True)):
                    is_answered = True
                    respond(found)

            answer(is_due=False)
            if not is_answered:
                self._cut_short = answer
                self._kafka.wait_for([place for place, _ in asked], answer)
                self._network.later(_FETCH_WAIT_S, answer)

        try:
            found = await self._network.ask(self._client, READ_FROM, "Fetch", handle, _FETCH_WAIT_S + REQUEST_TIMEOUT_S)
        except UnavailableError:
            await asyncio.sleep(0.02)
            return
        for feed, (records, next_offset, end), (_, offset) in zip(feeds, found, asked, strict=True):
            if not feed.is_closed and feed.next_offset == offset:
                feed.put(records, next_offset, end)
