"""Requests to leaders and coordinators, repeated unchanged for as long as that can help and a deadline allows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from millstream.connectors.kafka.cluster import Cluster, retry_pause_s
from millstream.connectors.kafka.error_codes import MOVED, RETRIABLE, Code, code_name, error_for
from millstream.connectors.kafka.requests import CoordinatorType, Request
from millstream.connectors.kafka.transaction_requests import ProduceRequest
from millstream.processor.errors import OutcomeUnknownError, UnavailableError
from millstream.processor.partitions import TopicPartition

T = TypeVar("T")
Batches = Mapping[TopicPartition, bytes | memoryview]

# A repeated batch whose first answer got lost is told to be a duplicate: it is stored.
_STORED = frozenset({Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER})
_LAST_ATTEMPT_S = 0.05


class Deadline:
    """One bound for all steps of a piece of work, rather than a timeout for each."""

    def __init__(self, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + timeout_s
        self.timeout_s = timeout_s

    @property
    def left_s(self) -> float:
        """Seconds left; 0 when it has passed."""
        return max(0.0, self._end - self._loop.time())

    async def pause(self, seconds: float) -> None:
        """Wait, but not past the deadline."""
        await asyncio.sleep(min(seconds, self.left_s))


def worst(codes: Iterable[int]) -> int:
    """The code that decides over several answers: one that retrying cannot mend before one that it can."""
    failed = set(codes) - {Code.NONE}
    return next((code for code in failed if code not in RETRIABLE), next(iter(failed), Code.NONE))


class Sender:
    """Sends for one role, over connections of that role's own."""

    def __init__(self, cluster: Cluster, role: Hashable) -> None:
        self._cluster = cluster
        self._role = role

    def close(self) -> None:
        """Close the role's connections."""
        self._cluster.release(self._role)

    async def call(self, node_id: int, request: Request[T], deadline: Deadline) -> T:
        """One attempt at one broker. Raises UnavailableError or RefusedError."""
        timeout_s = min(self._cluster.request_timeout_s, max(deadline.left_s, _LAST_ATTEMPT_S))
        return await self._cluster.call(node_id, self._role, request, timeout_s=timeout_s)

    async def retried(self, what: str, deadline: Deadline, attempt: Callable[[], Awaitable[tuple[int, T]]]) -> T:
        """Call `attempt`, which answers (error code, result), until the code is NONE.

        Raises the error that the code stands for. Raises OutcomeUnknownError when the deadline passes: a request may
        have been carried out although its answer did not come.
        """
        tries = 0
        while True:
            try:
                code, result = await attempt()
            except UnavailableError as error:
                reason = str(error)
            else:
                if code == Code.NONE:
                    return result
                if code not in RETRIABLE:
                    raise error_for(code, what)
                reason = code_name(code)
            if deadline.left_s == 0:
                raise OutcomeUnknownError(f"{what}: not done within {deadline.timeout_s:g} s; last: {reason}")
            await deadline.pause(retry_pause_s(tries))
            tries += 1

    async def coordinated(
        self,
        kind: CoordinatorType,
        key: str,
        what: str,
        deadline: Deadline,
        call: Callable[[int], Awaitable[tuple[int, T]]],
    ) -> T:
        """As `retried`, at the coordinator of `key`, which is looked up again when it moved or does not answer."""

        async def attempt() -> tuple[int, T]:
            try:
                code, result = await call(await self._cluster.coordinator(kind, key))
            except UnavailableError:
                self._cluster.forget_coordinator(kind, key)
                raise
            if code in MOVED:
                self._cluster.forget_coordinator(kind, key)
            return code, result

        return await self.retried(what, deadline, attempt)

    async def produce(self, transactional_id: str | None, batches: Batches, deadline: Deadline) -> None:
        """Have every batch stored by its partition's leader. What is sent again is the same bytes (I5)."""
        left = dict(batches)

        async def attempt() -> tuple[int, None]:
            codes = await self._produce_once(transactional_id, left, deadline)
            for partition in [partition for partition, code in codes.items() if code in _STORED]:
                del left[partition]
            failed = [code for code in codes.values() if code not in _STORED]
            if any(code in MOVED or code == Code.NETWORK_EXCEPTION for code in failed):
                await self._cluster.refresh()
            return worst(failed), None

        names = ", ".join(sorted({partition.topic for partition in batches}))
        await self.retried(f"writing to {names}", deadline, attempt)

    async def _produce_once(
        self, transactional_id: str | None, batches: Batches, deadline: Deadline
    ) -> dict[TopicPartition, int]:
        by_leader: dict[int, dict[TopicPartition, bytes | memoryview]] = {}
        for partition, leader in (await self._cluster.leaders(batches)).items():
            by_leader.setdefault(leader, {})[partition] = batches[partition]

        async def produce_to(leader: int) -> dict[TopicPartition, int]:
            codes = dict.fromkeys(by_leader[leader], int(Code.NETWORK_EXCEPTION))
            timeout_ms = int(self._cluster.request_timeout_s * 1000)
            try:
                answers = await self.call(
                    leader, ProduceRequest(transactional_id, by_leader[leader], timeout_ms), deadline
                )
            except UnavailableError:
                return codes
            return codes | {answer.partition: answer.error for answer in answers}

        codes: dict[TopicPartition, int] = {}
        for answered in await asyncio.gather(*(produce_to(leader) for leader in by_leader)):
            codes |= answered
        return codes
