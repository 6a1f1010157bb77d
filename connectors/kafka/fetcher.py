"""Reading ahead: for each broker one fetch in flight, for each partition a feed of what has arrived.

A feed's first fetch goes alone, by a connection of its own, and is answered at once: the one in flight may wait at the
broker for another 50 ms, and what waits for a shard's new owner waits for it. Until it is answered no other fetch asks
for that feed, so what arrives is in order.

A feed is bounded in bytes: a partition whose feed is full is left out of the next fetch. Whoever closes a feed drops
what it holds; an answer that still comes for it finds no taker. The fetcher belongs to a worker and serves all of its
shards, so that a broker has one waiting fetch from each worker, not from each shard.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from millstream.connectors.kafka.cluster import Cluster, retry_pause_s
from millstream.connectors.kafka.error_codes import RETRIABLE, Code, error_for
from millstream.connectors.kafka.event_log import LOG
from millstream.connectors.kafka.read_requests import FetchedPartition, FetchPartition, FetchRequest
from millstream.connectors.kafka.record_batch import decode_batches
from millstream.processor.errors import CorruptBatchError, MillstreamError, PositionLostError, UnavailableError
from millstream.processor.log import Fetched
from millstream.processor.partitions import TopicPartition
from millstream.processor.seldom import SeldomWarning

FETCH_ROLE = "fetch"
FIRST_FETCH_ROLE = "first fetch"
_LEADERLESS_PAUSE_S = 0.1
_CORRUPT_READS_MAX = 3


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Bounds of reading ahead.

    A worker asks for `partition_bytes_max` of a partition at a time while its feed holds less than
    `feed_bytes_max`. A fetch that finds nothing waits at the broker for `wait_ms_max`. After one that brought less than
    `small_answer_bytes` the next begins no sooner than `spacing_ms` after it: a trickle would be fetched record by
    record otherwise, at the cost of a request each, and commits wait longer than that anyway.
    """

    wait_ms_max: int = 50
    spacing_ms: int = 3
    small_answer_bytes: int = 64 * 1024
    bytes_min: int = 1
    answer_bytes_max: int = 16 * 1024 * 1024
    partition_bytes_max: int = 1024 * 1024
    feed_bytes_max: int = 2 * 1024 * 1024
    batch_bytes_max: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Answered:
    """What a fetch brought. `trouble`: a partition is in a state that may pass, or has moved."""

    trouble: bool
    byte_count: int


class Feed:
    """What has arrived of one partition, in order. Filled by the fetcher, emptied by one shard."""

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: uuid.UUID,
        offset: int,
        notify: Callable[[], None],
        on_room: Callable[[], None],
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.fetch_offset = offset
        self.corrupt_reads = 0
        self.end_offset: int | None = None
        self.closed = False
        self.error: MillstreamError | None = None
        self.is_new = True
        self.is_beginning = True
        self._notify = notify
        self._on_room = on_room
        self._pieces: deque[Fetched] = deque()
        self._byte_count = 0
        self._heard_at = _now()

    def hungry(self, bytes_max: int) -> bool:
        """True while more should be fetched: it has begun, holds less than `bytes_max` and has not ended."""
        return not self.is_beginning and not self.closed and self.error is None and self._byte_count < bytes_max

    def heard(self) -> None:
        """The broker has answered for this partition, be it that there is nothing new."""
        self._heard_at = _now()

    @property
    def silent_s(self) -> float:
        """For how many seconds a fetch has not been answered; 0 while something is at hand."""
        return 0.0 if self.has_something else _now() - self._heard_at

    def put(self, piece: Fetched) -> None:
        """Add what a fetch brought."""
        self._pieces.append(piece)
        self._byte_count += piece.byte_count
        self.fetch_offset = piece.next_offset
        self._notify()

    def fail(self, error: MillstreamError) -> None:
        """Nothing more comes; the taker meets the error after the pieces before it."""
        self.error = error
        self._notify()

    def take_nowait(self) -> Fetched | None:
        """The next piece, or None when there is none now. Raises the feed's error once all before it is taken."""
        if self._pieces:
            piece = self._pieces.popleft()
            self._byte_count -= piece.byte_count
            # A feed that was full was not fetched for, which is no silence of the broker's.
            self.heard()
            self._on_room()
            return piece
        if self.error is not None:
            raise self.error
        return None

    @property
    def has_something(self) -> bool:
        """True where `take_nowait` would answer or raise."""
        return bool(self._pieces) or self.error is not None

    def close(self) -> None:
        """Drop everything; the partition is not fetched for this feed any more."""
        self.closed = True
        self._pieces.clear()
        self._byte_count = 0


class Fetcher:
    """Fills feeds. `run` must be running for anything to arrive."""

    def __init__(self, cluster: Cluster, limits: FetchLimits) -> None:
        self._cluster = cluster
        self._limits = limits
        self._feeds: list[Feed] = []
        self._changed = asyncio.Event()
        self._wake_up: dict[int, asyncio.Event] = {}
        self.last_failure: str | None = None
        self._no_metadata = SeldomWarning(LOG, "metadata.stale")
        self._fetch_failed = SeldomWarning(LOG, "fetch.failed")

    def open(self, partition: TopicPartition, offset: int, notify: Callable[[], None]) -> Feed:
        """Read `partition` from `offset` on. `notify` is called whenever something arrives.

        The topic must be known to the cluster; the feed stays with the topic as it is now, and fails if it is
        deleted and made anew.
        """
        topic = self._cluster.topic(partition.topic)
        if topic is None:
            raise UnavailableError(f"topic {partition.topic} is not known")
        feed = Feed(partition, topic.topic_id, offset, notify, self._wake)
        self._feeds.append(feed)
        self._changed.set()
        self._wake()
        return feed

    def _wake(self) -> None:
        for event in self._wake_up.values():
            event.set()

    async def run(self) -> None:
        """Fetch until cancelled. Trouble with a broker is met with patience and ends no feed."""
        async with asyncio.TaskGroup() as brokers:
            while True:
                self._changed.clear()
                self._feeds = [feed for feed in self._feeds if not feed.closed]
                leaders = {self._cluster.leader(feed.partition) for feed in self._feeds}
                for node_id in leaders:
                    if node_id is not None and node_id not in self._wake_up:
                        self._wake_up[node_id] = asyncio.Event()
                        brokers.create_task(self._serve_broker(node_id))
                    if node_id is not None and (new := self._new_feeds(node_id)):
                        brokers.create_task(self._fetch_first(node_id, new))
                self._wake()
                if None in leaders:
                    await asyncio.sleep(_LEADERLESS_PAUSE_S)
                    await self._refresh()
                else:
                    await self._changed.wait()

    def _new_feeds(self, node_id: int) -> list[Feed]:
        """Those of this broker's that nobody has fetched for; they count as new no more."""
        new = [feed for feed in self._feeds if feed.is_new and self._cluster.leader(feed.partition) == node_id]
        for feed in new:
            feed.is_new = False
        return new

    async def _fetch_first(self, node_id: int, feeds: list[Feed]) -> None:
        """The first fetch of new feeds. Whatever is wrong with it, the fetches after it meet as well."""
        try:
            await self._fetch(node_id, feeds, FIRST_FETCH_ROLE, wait_ms=0)
        except UnavailableError:
            pass
        finally:
            for feed in feeds:
                feed.is_beginning = False
            self._wake()

    async def _refresh(self) -> None:
        try:
            await self._cluster.refresh()
        except UnavailableError as error:
            self._no_metadata(error)
        for feed in self._feeds:
            topic = self._cluster.topic(feed.partition.topic)
            if topic is not None and topic.topic_id != feed.topic_id and feed.error is None:
                feed.fail(PositionLostError(f"topic {topic.name} was deleted and created again while it was read"))
        self._changed.set()

    async def _serve_broker(self, node_id: int) -> None:
        """Keep one fetch in flight at this broker for the feeds whose partitions it leads."""
        loop = asyncio.get_running_loop()
        failures = 0
        turn = 0
        while True:
            began = loop.time()
            self._wake_up[node_id].clear()
            wanted = [feed for feed in self._feeds if feed.hungry(self._limits.feed_bytes_max)]
            wanted = [feed for feed in wanted if self._cluster.leader(feed.partition) == node_id]
            if not wanted:
                await self._wake_up[node_id].wait()
                continue
            # Only the first partition of a fetch is sure to get a batch that is larger than its limit, so each gets
            # its turn to be the first.
            turn = (turn + 1) % len(wanted)
            try:
                answered = await self._fetch(
                    node_id, wanted[turn:] + wanted[:turn], FETCH_ROLE, self._limits.wait_ms_max
                )
                self.last_failure = None
            except UnavailableError as error:
                self.last_failure = str(error)
                self._fetch_failed(error)
                answered = _Answered(trouble=True, byte_count=0)
            failures = failures + 1 if answered.trouble else 0
            if answered.trouble:
                await asyncio.sleep(retry_pause_s(failures - 1))
                await self._refresh()
            elif answered.byte_count < self._limits.small_answer_bytes:
                await asyncio.sleep(max(0.0, began + self._limits.spacing_ms / 1000 - loop.time()))

    async def _fetch(self, node_id: int, feeds: list[Feed], role: str, wait_ms: int) -> _Answered:
        """One fetch, which waits at the broker for `wait_ms` where there is nothing."""
        asked = {(feed.topic_id, feed.partition.partition): feed for feed in feeds}
        request = FetchRequest(
            [
                FetchPartition(topic_id, partition, feed.fetch_offset, self._limits.partition_bytes_max)
                for (topic_id, partition), feed in asked.items()
            ],
            wait_ms,
            self._limits.bytes_min,
            self._limits.answer_bytes_max,
        )
        timeout_s = wait_ms / 1000 + self._cluster.request_timeout_s
        answer = await self._cluster.call(node_id, role, request, timeout_s=timeout_s)
        if answer.error != Code.NONE:
            raise error_for(answer.error, f"fetching from broker {node_id}")
        trouble = False
        for part in answer.partitions:
            feed = asked.get((part.topic_id, part.partition))
            if feed is not None and not feed.closed:
                trouble |= self._deliver(feed, part)
        return _Answered(trouble, sum(len(part.data) for part in answer.partitions))

    def _deliver(self, feed: Feed, part: FetchedPartition) -> bool:
        if part.error == Code.NONE:
            return self._deliver_records(feed, part)
        if part.error == Code.OFFSET_OUT_OF_RANGE:
            feed.fail(
                PositionLostError(
                    f"{feed.partition} does not hold offset {feed.fetch_offset}; "
                    f"its log starts at {part.log_start_offset}"
                )
            )
            return False
        if part.error == Code.CORRUPT_MESSAGE:
            reason = "the broker itself cannot read it and answered CORRUPT_MESSAGE (2)"
            return self._meet_damage(feed, CorruptBatchError(reason, base_offset=feed.fetch_offset, next_offset=None))
        if part.error in RETRIABLE:
            return True
        feed.fail(error_for(part.error, f"fetching {feed.partition}"))
        return False

    def _deliver_records(self, feed: Feed, part: FetchedPartition) -> bool:
        feed.end_offset = part.last_stable_offset
        feed.heard()
        fetched = decode_batches(
            part.data,
            feed.partition,
            fetch_offset=feed.fetch_offset,
            aborted=part.aborted,
            batch_bytes_max=self._limits.batch_bytes_max,
        )
        if fetched.next_offset > feed.fetch_offset:
            feed.corrupt_reads = 0
            feed.put(Fetched(fetched.records, fetched.next_offset, len(fetched.records.value.buffer)))
        return fetched.corrupt is not None and self._meet_damage(feed, fetched.corrupt)

    def _meet_damage(self, feed: Feed, damage: CorruptBatchError) -> bool:
        """Damage on the way, unlike damage on the disk, is gone when the batch is read again; true where it will be."""
        feed.corrupt_reads += 1
        if feed.corrupt_reads < _CORRUPT_READS_MAX:
            return True
        damage.reads = feed.corrupt_reads
        feed.fail(damage)
        return False


def _now() -> float:
    return asyncio.get_running_loop().time()
