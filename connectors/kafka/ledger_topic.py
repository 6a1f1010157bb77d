"""A topic of one partition, read whole and appended to: where a pipeline keeps its ledger."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.connectors.kafka.cluster import Cluster
from millstream.connectors.kafka.one_partition import OnePartition
from millstream.connectors.kafka.sender import Deadline
from millstream.connectors.kafka.small_batch import encode_all
from millstream.processor.errors import PositionLostError, UnavailableError

_FETCH_BYTES = 1024 * 1024
_WAIT_S = 0.1


class LedgerTopic:
    """Reads and appends.

    Every method raises UnavailableError when it is not done within `timeout_s`, and RefusedError without permission.
    """

    def __init__(self, cluster: Cluster, topic: str, *, timeout_s: float) -> None:
        self._topic = topic
        self._log = OnePartition(cluster, topic, role="ledger", timeout_s=timeout_s)
        self._timeout_s = timeout_s

    async def read(self) -> list[bytes]:
        """All records that are there, in order."""
        deadline = Deadline(self._timeout_s)
        while True:
            try:
                return await self._read(deadline)
            except PositionLostError:
                # Somebody has deleted what a snapshot holds while we were reading it.
                if deadline.left_s == 0:
                    raise UnavailableError(f"{self._topic} changes faster than it can be read") from None

    async def _read(self, deadline: Deadline) -> list[bytes]:
        offset, end = await self._log.start(), await self._log.end()
        records: list[bytes] = []
        while offset < end:
            try:
                piece = await self._log.fetch(offset, wait_s=_WAIT_S, bytes_max=_FETCH_BYTES)
            except UnavailableError as error:
                if deadline.left_s == 0:
                    raise UnavailableError(f"{self._topic} was read to offset {offset} of {end}: {error}") from error
                continue
            records += [value for _, value in piece.entries]
            offset = piece.next_offset
        return records

    async def append(self, values: Sequence[bytes]) -> None:
        """Append records; they are stored by all in-sync replicas when this returns.

        What cannot be told to be stored is reported as UnavailableError: to append it again is harmless, since a
        ledger is folded and says the same twice.
        """
        await self._log.append(encode_all(values))
