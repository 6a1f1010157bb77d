"""Kafka as what a node needs to be a member: the ledger followed and appended to, beats sent and read.

Each way has a connection of its own, for a broker answers one request at a time for each connection: a fetch
that waits for news would hold up a verdict. Waits are short, since what is late is of no use to a detector.
"""

from __future__ import annotations

import asyncio
import math
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from millstream.connectors.kafka.cluster import Cluster
from millstream.connectors.kafka.event_log import LOG
from millstream.connectors.kafka.one_partition import OnePartition, Piece
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.connectors.kafka.small_batch import encode_all
from millstream.connectors.kafka.transaction_requests import LEADER_ALONE
from millstream.processor.errors import CorruptBatchError, PositionLostError
from millstream.processor.membership_log import BeatsPage, LedgerPage
from millstream.processor.seldom import SeldomWarning

_LEDGER_BYTES: Final = 1024 * 1024
# About two thousand beats, which take 15 ms to decode: longer, and the agent's loop would be late.
_BEATS_BYTES: Final = 256 * 1024
# From so many beats in a page on there are more than ten nodes.
_CROWD: Final = 5


@dataclass(frozen=True, slots=True)
class MembershipTimeouts:
    """How long things may take, in seconds.

    `follow_wait_s` is how long a broker holds a fetch of the ledger back while there is nothing new. Two fetches of
    beats are `beats_spacing_s` apart, and a beat is seen that much later at most: with a hundred nodes there are two
    thousand beats a second, and each of a hundred readers would have them one by one. The others are bounds: of one
    request or one page of the ledger, of an append that is tried again, of sending a beat or reading some.
    """

    follow_wait_s: float = 0.5
    beats_spacing_s: float = 0.025
    request_s: float = 2.0
    append_s: float = 5.0
    beat_s: float = 1.0


class KafkaMembershipLog:
    """Implements `processor.membership_log.MembershipLog` on a pipeline's ledger and beats topics."""

    def __init__(
        self, kafka: KafkaSettings, *, ledger: str, beats: str, timeouts: MembershipTimeouts | None = None
    ) -> None:
        timeouts = timeouts or MembershipTimeouts()
        request_timeout_ms = min(kafka.request_timeout_ms, int(timeouts.request_s * 1000))
        self._cluster = Cluster(replace(kafka, request_timeout_ms=request_timeout_ms))
        self._cluster.track([ledger, beats])
        self._timeouts = timeouts
        self._following = OnePartition(self._cluster, ledger, role="ledger follow", timeout_s=timeouts.request_s)
        self._appending = OnePartition(self._cluster, ledger, role="ledger append", timeout_s=timeouts.append_s)
        self._deleting = OnePartition(self._cluster, ledger, role="ledger delete", timeout_s=timeouts.append_s)
        self._sending = OnePartition(self._cluster, beats, role="beats send", timeout_s=timeouts.beat_s)
        self._reading = OnePartition(self._cluster, beats, role="beats read", timeout_s=timeouts.beat_s)
        self._ledger_id: uuid.UUID | None = None
        self._beats_offset: int | None = None
        # Nodes of one machine share its clock, and shall not all be answered at once.
        self._grid_s = random.random() * timeouts.beats_spacing_s
        self._is_crowded = False
        # Whoever begins to listen waits for a beat of its own: the first ones come as soon as they are there.
        self._has_beats = False
        self._beats_missed = SeldomWarning(LOG, "beats.missed", topic=beats)

    async def connect(self) -> None:
        """Reach the cluster, within its `connect_timeout_ms`; see that it can do Transactions V2."""
        await self._cluster.connect()

    async def follow(self, offset: int | None) -> LedgerPage:
        """What stands in the ledger from `offset` on; from its start with None."""
        topic_id = await self._following.topic_id()
        if offset is None:
            self._ledger_id = topic_id
            offset = await self._following.start()
        elif topic_id != self._ledger_id:
            raise PositionLostError(f"the ledger was made anew: its topic is {topic_id} now, not {self._ledger_id}")
        piece = await self._following.fetch(offset, wait_s=self._timeouts.follow_wait_s, bytes_max=_LEDGER_BYTES)
        return LedgerPage(piece.entries, piece.next_offset, piece.log_start, piece.end_offset)

    async def append(self, values: Sequence[bytes]) -> None:
        """Append records; all in-sync replicas have them when this returns."""
        await self._appending.append(encode_all(values))

    async def delete_before(self, offset: int) -> None:
        """Delete what stands in the ledger before `offset`. Raises RefusedError without permission to delete."""
        await self._deleting.delete_before(offset)

    async def send_beat(self, value: bytes) -> None:
        """Send a beat; the leader has it when this returns."""
        await self._sending.send(value, acks=LEADER_ALONE)

    async def read_beats(self) -> BeatsPage:
        """The beats since the last call. Where some were missed, or cannot be read, the next ones are at the end."""
        if self._beats_offset is None:
            self._beats_offset = await self._reading.end()
        try:
            piece = await self._next_beats(self._beats_offset)
        except (PositionLostError, CorruptBatchError) as error:
            self._beats_missed(error)
            self._beats_offset = None
            return BeatsPage([], is_behind=True)
        self._beats_offset = piece.next_offset
        self._is_crowded = len(piece.entries) >= _CROWD
        self._has_beats |= bool(piece.entries)
        return BeatsPage([value for _, value in piece.entries], is_behind=piece.next_offset < piece.end_offset)

    async def _next_beats(self, offset: int) -> Piece:
        """One fetch, to be answered at the next point of a grid of `beats_spacing_s`.

        The grid keeps pages at one distance from the node's own beats, which are sent when one arrives. Few nodes leave
        the waiting to the broker, which holds the fetch back however much has come: that is one wake-up of this process
        for each page, and waking up is most of what beats cost. A broker looks at every fetch that it holds back
        whenever a beat comes; so where many nodes beat, each waits by itself, and asks when there is plenty.
        """
        spacing_s = self._timeouts.beats_spacing_s
        now = asyncio.get_running_loop().time()
        points = math.ceil((now - self._grid_s) / spacing_s + 0.5)
        wait_s = self._grid_s + points * spacing_s - now
        if not self._is_crowded:
            return await self._reading.fetch(offset, wait_s=wait_s, bytes_max=_BEATS_BYTES, bytes_min=_BEATS_BYTES)
        await asyncio.sleep(wait_s)
        return await self._reading.fetch(offset, wait_s=spacing_s, bytes_max=_BEATS_BYTES)

    def close(self) -> None:
        """Close every connection."""
        self._cluster.close()
