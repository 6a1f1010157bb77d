"""Positions: what a group has committed, and where a log begins and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from millstream.connectors.kafka.cluster import Cluster
from millstream.connectors.kafka.error_codes import MOVED, Code
from millstream.connectors.kafka.read_requests import (
    EARLIEST,
    LATEST,
    CommittedOffset,
    ListOffsetsRequest,
    OffsetFetchRequest,
)
from millstream.connectors.kafka.requests import CoordinatorType
from millstream.connectors.kafka.sender import Deadline, Sender, worst
from millstream.processor.errors import OutcomeUnknownError, UnavailableError
from millstream.processor.log import Bounds
from millstream.processor.partitions import TopicPartition

# An unstable offset belongs to a transaction that is being resolved; that takes milliseconds.
_UNSTABLE_PAUSE_S = 0.003


def _remedy(error: OutcomeUnknownError) -> str:
    if Code.UNSTABLE_OFFSET_COMMIT.name not in str(error):
        return ""
    return (
        ". A transaction ended and its markers were never written, which a fence does not mend; where it lasts, see "
        "'Markers that are missing' in the operations page"
    )


class Offsets:
    """Reads positions. Every method raises UnavailableError when the answer can't be had within `timeout_s`."""

    def __init__(self, cluster: Cluster, *, timeout_s: float) -> None:
        self._cluster = cluster
        self._sender = Sender(cluster, "offsets")
        self._timeout_s = timeout_s

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """The group's committed offsets, stable ones only; a partition without one is left out."""
        if not partitions:
            return {}
        deadline = Deadline(self._timeout_s)

        async def call(node: int) -> tuple[int, list[CommittedOffset]]:
            while True:
                answer = await self._sender.call(node, OffsetFetchRequest(group, partitions), deadline)
                code = answer.error or worst(offset.error for offset in answer.offsets)
                if code != Code.UNSTABLE_OFFSET_COMMIT or deadline.left_s == 0:
                    return code, list(answer.offsets)
                await asyncio.sleep(_UNSTABLE_PAUSE_S)

        try:
            found = await self._sender.coordinated(
                CoordinatorType.GROUP, group, f"reading committed offsets of {group}", deadline, call
            )
        except OutcomeUnknownError as error:
            raise UnavailableError(f"{error}{_remedy(error)}") from error
        return {offset.partition: offset for offset in found if offset.offset >= 0}

    async def listed(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """For each partition the first offset at or after a time (milliseconds, EARLIEST or LATEST); -1 for none."""
        found: dict[TopicPartition, int] = {}
        deadline = Deadline(self._timeout_s)

        async def attempt() -> tuple[int, None]:
            left = [partition for partition in timestamps if partition not in found]
            codes = []
            by_leader: dict[int, dict[TopicPartition, int]] = {}
            for partition, leader in (await self._cluster.leaders(left)).items():
                by_leader.setdefault(leader, {})[partition] = timestamps[partition]
            for leader, asked in by_leader.items():
                for answer in await self._sender.call(leader, ListOffsetsRequest(asked), deadline):
                    codes.append(answer.error)
                    if answer.error == Code.NONE:
                        found[answer.partition] = answer.offset
            if any(code in MOVED for code in codes):
                await self._cluster.refresh()
            return worst(codes), None

        try:
            await self._sender.retried("looking up offsets", deadline, attempt)
        except OutcomeUnknownError as error:
            raise UnavailableError(str(error)) from error
        return found

    async def bounds(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """The first offset and the end of the committed records of each partition."""
        starts = await self.listed(dict.fromkeys(partitions, EARLIEST))
        ends = await self.listed(dict.fromkeys(partitions, LATEST))
        return {partition: Bounds(starts[partition], ends[partition]) for partition in partitions}
