"""A topic of one partition, read and written in small pieces: what the ledger and the beats have in common."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from millstream.connectors.kafka.admin_requests import DeleteRecordsRequest
from millstream.connectors.kafka.cluster import Cluster, retry_pause_s
from millstream.connectors.kafka.error_codes import REFUSED, Code, error_for
from millstream.connectors.kafka.offsets import Offsets
from millstream.connectors.kafka.read_requests import EARLIEST, LATEST, FetchAnswer, FetchPartition, FetchRequest
from millstream.connectors.kafka.requests import Request
from millstream.connectors.kafka.sender import Deadline, Sender
from millstream.connectors.kafka.small_batch import decode, encode
from millstream.connectors.kafka.transaction_requests import ProduceAnswer, ProduceRequest
from millstream.processor.errors import OutcomeUnknownError, PositionLostError, UnavailableError
from millstream.processor.membership_log import Entry
from millstream.processor.partitions import TopicPartition

R = TypeVar("R")
T = TypeVar("T")

_PAUSE_S_MAX: Final = 0.1


@dataclass(frozen=True, slots=True)
class Piece:
    """What one fetch answered. `end_offset` is the high watermark: where the log ended then."""

    entries: Sequence[Entry]
    next_offset: int
    log_start: int
    end_offset: int


class OnePartition:
    """Partition 0 of a topic, by connections of one role.

    Methods raise UnavailableError, also when they are not done within `timeout_s`, and RefusedError without permission.
    """

    def __init__(self, cluster: Cluster, topic: str, *, role: Hashable, timeout_s: float) -> None:
        self._cluster = cluster
        self._partition = TopicPartition(topic, 0)
        self._role = role
        self._sender = Sender(cluster, role)
        self._offsets = Offsets(cluster, timeout_s=timeout_s)
        self._timeout_s = timeout_s
        self._failures = 0

    async def topic_id(self) -> uuid.UUID:
        """The topic's identity, which a topic that is made anew does not share."""
        if self._failures or self._cluster.leader(self._partition) is None:
            async with self._attempt("looking for"):
                await self._leader()
        return self._topic_id()

    async def start(self) -> int:
        """The first offset that is there."""
        async with self._attempt("looking up the start of"):
            return (await self._offsets.listed({self._partition: EARLIEST}))[self._partition]

    async def end(self) -> int:
        """The offset that the next record will have."""
        async with self._attempt("looking up the end of"):
            return (await self._offsets.listed({self._partition: LATEST}))[self._partition]

    async def fetch(self, offset: int, *, wait_s: float, bytes_max: int, bytes_min: int = 1) -> Piece:
        """One fetch at `offset`, which the broker answers as soon as there are `bytes_min`, or after `wait_s`.

        Raises PositionLostError where the offset is not there, and CorruptBatchError.
        """

        def request() -> FetchRequest:
            wanted = FetchPartition(self._topic_id(), 0, offset, bytes_max)
            return FetchRequest([wanted], int(wait_s * 1000), bytes_min, bytes_max)

        def read(answer: FetchAnswer) -> Piece:
            part = answer.partitions[0] if answer.partitions else None
            code = answer.error or (Code.UNKNOWN_SERVER_ERROR if part is None else part.error)
            if code == Code.OFFSET_OUT_OF_RANGE:
                raise PositionLostError(f"{self._partition} does not hold offset {offset}")
            if part is None or code != Code.NONE:
                raise self._error(code, "reading")
            decoded = decode(part.data, fetch_offset=offset, aborted=part.aborted)
            return Piece(decoded.entries, decoded.next_offset, part.log_start_offset, part.high_watermark)

        return await self._asked("reading", request, read)

    async def append(self, batches: Sequence[bytes]) -> None:
        """Append record batches, one after the other; all in-sync replicas have them when this returns.

        Sends again for as long as there is time. What cannot be told to be stored is reported as UnavailableError.
        """
        async with self._attempt("writing to"):
            try:
                for batch in batches:
                    await self._sender.produce(None, {self._partition: batch}, Deadline(self._timeout_s))
            except OutcomeUnknownError as error:
                raise UnavailableError(str(error)) from error

    async def send(self, value: bytes, *, acks: int) -> None:
        """Send one record, once."""

        def request() -> ProduceRequest:
            return ProduceRequest(None, {self._partition: encode([value])}, int(self._timeout_s * 1000), acks)

        def read(answers: list[ProduceAnswer]) -> None:
            code = answers[0].error if answers else Code.UNKNOWN_SERVER_ERROR
            if code != Code.NONE:
                raise self._error(code, "writing to")

        await self._asked("writing to", request, read)

    async def delete_before(self, offset: int) -> None:
        """Delete the records before `offset`. Raises RefusedError where that is not allowed."""
        async with self._attempt("deleting records of"):
            request = DeleteRecordsRequest({self._partition: offset}, int(self._timeout_s * 1000))
            answers = await self._sender.call(await self._leader(), request, Deadline(self._timeout_s))
            code = answers[0].error if answers else Code.UNKNOWN_SERVER_ERROR
            # Out of range: somebody has made the topic anew, and what was to be deleted is gone.
            if code not in (Code.NONE, Code.OFFSET_OUT_OF_RANGE):
                raise self._error(code, "deleting records of")

    async def _asked(self, doing: str, request: Callable[[], Request[R]], read: Callable[[R], T]) -> T:
        """What `read` makes of the answer to `request`, both of which may raise.

        Beats come and go sixty times a second. Where the leader is known and connected and nothing has gone wrong, the
        request's own bound is enough, and the rest of an attempt would double what it costs.
        """
        leader = None if self._failures else self._cluster.leader(self._partition)
        connection = None if leader is None else self._cluster.open_connection(leader, self._role)
        if connection is None:
            async with self._attempt(doing):
                return read(await self._sender.call(await self._leader(), request(), Deadline(self._timeout_s)))
        try:
            return read(
                await connection.call(request(), timeout_s=min(self._timeout_s, self._cluster.request_timeout_s))
            )
        except UnavailableError:
            self._failures += 1
            raise

    async def _leader(self) -> int:
        return (await self._cluster.leaders([self._partition]))[self._partition]

    def _topic_id(self) -> uuid.UUID:
        topic = self._cluster.topic(self._partition.topic)
        if topic is None:
            raise UnavailableError(f"{self._partition} is not known to the cluster")
        return topic.topic_id

    def _error(self, code: int, doing: str) -> Exception:
        what = f"{doing} {self._partition}"
        return error_for(code, what) if code in REFUSED else UnavailableError(str(error_for(code, what)))

    @asynccontextmanager
    async def _attempt(self, doing: str) -> AsyncIterator[None]:
        """Bounded as a whole, where several steps take their time: metadata, connecting, the request itself.

        After a failure the next attempt looks at the cluster anew. That is not the failed one's to do: a broker that
        hangs has used up its time. It pauses first, so that nobody who tries again at once makes a storm.
        """
        try:
            async with asyncio.timeout(self._timeout_s) as bound:
                if self._failures:
                    await asyncio.sleep(min(retry_pause_s(self._failures - 1), _PAUSE_S_MAX))
                    await self._cluster.refresh()
                yield
        except TimeoutError as error:
            if not bound.expired():
                raise
            self._failures += 1
            raise UnavailableError(f"{doing} {self._partition} was not done within {self._timeout_s:g} s") from error
        except UnavailableError:
            self._failures += 1
            raise
        self._failures = 0
