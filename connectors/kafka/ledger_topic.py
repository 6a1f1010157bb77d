"""A topic of one partition, read whole and appended to: where a pipeline keeps its ledger."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millstream.connectors.kafka.cluster import Cluster, retry_pause_s
from millstream.connectors.kafka.error_codes import REFUSED, Code, error_for
from millstream.connectors.kafka.offsets import Offsets
from millstream.connectors.kafka.read_requests import FetchPartition, FetchRequest
from millstream.connectors.kafka.record_batch import BatchBuilder, decode_batches
from millstream.connectors.kafka.sender import Deadline, Sender
from millstream.processor.columns import OutputRecords, Slices
from millstream.processor.errors import OutcomeUnknownError, UnavailableError
from millstream.processor.partitions import TopicPartition

_FETCH_BYTES = 1024 * 1024
_BATCH_BYTES = 512 * 1024
_NO_HEADERS = b"\x00"


class LedgerTopic:
    """Reads and appends.

    Every method raises UnavailableError when it is not done within `timeout_s`, and RefusedError without permission.
    """

    def __init__(self, cluster: Cluster, topic: str, *, timeout_s: float) -> None:
        self._cluster = cluster
        self._partition = TopicPartition(topic, 0)
        self._sender = Sender(cluster, "ledger")
        self._timeout_s = timeout_s

    async def read(self) -> list[bytes]:
        """All records, in order."""
        bounds = (await Offsets(self._cluster, timeout_s=self._timeout_s).bounds([self._partition]))[self._partition]
        offset, records = bounds.start, list[bytes]()
        deadline = Deadline(self._timeout_s)
        tries = 0
        while offset < bounds.end:
            if deadline.left_s == 0:
                raise UnavailableError(f"{self._partition} could not be read to offset {bounds.end}; got to {offset}")
            read = await self._fetch(offset, deadline)
            if read is None:
                await self._cluster.refresh()
                await deadline.pause(retry_pause_s(tries))
                tries += 1
                continue
            values, offset = read
            records += values
        return records

    async def _fetch(self, offset: int, deadline: Deadline) -> tuple[list[bytes], int] | None:
        leader = (await self._cluster.leaders([self._partition]))[self._partition]
        topic = self._cluster.topic(self._partition.topic)
        if topic is None:
            return None
        wanted = FetchPartition(topic.topic_id, 0, offset, _FETCH_BYTES)
        answer = await self._sender.call(leader, FetchRequest([wanted], 100, 1, _FETCH_BYTES), deadline)
        code = answer.error or (answer.partitions[0].error if answer.partitions else Code.UNKNOWN_SERVER_ERROR)
        if code in REFUSED:
            raise error_for(code, f"reading {self._partition}")
        if code != Code.NONE:
            return None
        part = answer.partitions[0]
        fetched = decode_batches(part.data, self._partition, fetch_offset=offset, aborted=part.aborted)
        if fetched.corrupt is not None:
            raise fetched.corrupt
        return [value for value in fetched.records.value.to_list() if value is not None], fetched.next_offset

    async def append(self, values: Sequence[bytes]) -> None:
        """Append records; they are stored by all in-sync replicas when this returns.

        What cannot be told to be stored is reported as UnavailableError: to append it again is harmless, since a
        ledger is folded and says the same twice.
        """
        count = len(values)
        none = Slices.repeated(None, count)
        records = OutputRecords(
            self._partition.topic,
            none,
            Slices.from_list(values),
            Slices.repeated(_NO_HEADERS, count),
            np.full(count, -1, np.int64),
            np.zeros(count, np.int32),
            np.arange(count, dtype=np.int32),
        )
        builder = BatchBuilder(batch_bytes_max=_BATCH_BYTES)
        builder.append(records, np.arange(count))
        deadline = Deadline(self._timeout_s)
        try:
            for batch in builder.seal():
                data = batch.stamped(producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False)
                await self._sender.produce(None, {self._partition: data}, deadline)
        except OutcomeUnknownError as error:
            raise UnavailableError(str(error)) from error
