"""What a host knows of its pipeline already, so that a shard that it takes over does not have to wait for it again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from millstream.processor.ledger import LedgerState
from millstream.processor.log import Log
from millstream.processor.partitions import TopicPartition
from millstream.processor.preparation import read_state

_SIZES_VALID_S = 60.0


class Known:
    """Facts of the ledger and sizes of topics, as last read. `ledger_topic` is where the facts are."""

    def __init__(self, log_: Log, ledger_topic: str, state: LedgerState, written_topics: Sequence[str]) -> None:
        self.ledger_topic = ledger_topic
        self._log = log_
        self._state = state
        self._written_topics = written_topics
        self._sizes: Mapping[str, int] = {}
        self._sizes_until = float("-inf")

    async def facts(self, partitions: Collection[TopicPartition]) -> LedgerState:
        """What the ledger says about these partitions.

        What it says of a partition that was started never changes; of others it is read anew.
        """
        if not self._state.started.issuperset(partitions):
            self._state = await read_state(self._log, self.ledger_topic)
        return self._state

    async def record_bytes_max(self) -> Mapping[str, int]:
        """The largest record batch that each written topic takes, as the broker said within the last minute."""
        now = asyncio.get_running_loop().time()
        if now >= self._sizes_until:
            self._sizes = await self._log.record_bytes_max(self._written_topics)
            self._sizes_until = now + _SIZES_VALID_S
        return self._sizes
