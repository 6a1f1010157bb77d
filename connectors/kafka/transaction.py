"""Exactly-once commits for one shard, by Transactions V2.

A shard's right to commit is a value: `fence` makes a `Permit`, `commit` uses one up and answers with the next. Whoever
holds an old permit is told so by Kafka (FencedError). Any answer that leaves the outcome open raises, and the permit
is then worthless: there is no repair in place, only a new fence (design, invariants I2 to I5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from millstream.connectors.kafka.cluster import Cluster
from millstream.connectors.kafka.describe_requests import DescribeTransactionsRequest, TransactionState
from millstream.connectors.kafka.error_codes import Code
from millstream.connectors.kafka.requests import CoordinatorType
from millstream.connectors.kafka.sender import Deadline, Sender, worst
from millstream.connectors.kafka.transaction_requests import (
    NO_PRODUCER,
    EndTxnRequest,
    InitProducerIdRequest,
    OffsetCommitRequest,
    OffsetToCommit,
    ProducerIdentity,
    TxnOffsetCommitRequest,
)
from millstream.processor.errors import OutcomeUnknownError, UnavailableError
from millstream.processor.partitions import TopicPartition

# While the broker resolves the old owner's transaction it answers CONCURRENT_TRANSACTIONS; that takes milliseconds.
_FENCE_PAUSE_S = 0.004


class SealedBatch(Protocol):
    """A record batch that lacks only its producer's identity."""

    record_count: int

    def stamped(
        self, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool
    ) -> bytes | memoryview:
        """The bytes to send; the same at every call with the same arguments."""


SealedOutputs = Mapping[TopicPartition, Sequence[SealedBatch]]
Offsets = Mapping[TopicPartition, OffsetToCommit]


@dataclass(frozen=True, slots=True)
class Permit:
    """The right to commit the next transaction of a shard. Only `fence` and `commit` make one."""

    identity: ProducerIdentity


class TransactionalCommitter:
    """Fences and commits for one transactional id."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        transactional_id: str,
        group: str,
        commit_timeout_s: float,
        transaction_timeout_ms: int,
    ) -> None:
        self._sender = Sender(cluster, ("transaction", transactional_id))
        self._transactional_id = transactional_id
        self._group = group
        self._commit_timeout_s = commit_timeout_s
        self._transaction_timeout_ms = transaction_timeout_ms

    def close(self) -> None:
        """Close this committer's connections."""
        self._sender.close()

    async def fence(self) -> Permit:
        """Take the shard over: afterwards no earlier owner can commit, and its open transaction is resolved.

        Raises UnavailableError when that is not reached within the commit timeout, RefusedError without
        authorization.
        """
        request = InitProducerIdRequest(self._transactional_id, self._transaction_timeout_ms)
        deadline = Deadline(self._commit_timeout_s)
        what = f"fencing {self._transactional_id}"

        async def call(node: int) -> tuple[int, ProducerIdentity]:
            while True:
                answer = await self._sender.call(node, request, deadline)
                if answer.error != Code.CONCURRENT_TRANSACTIONS or deadline.left_s == 0:
                    return answer.error, answer.identity
                await asyncio.sleep(_FENCE_PAUSE_S)

        try:
            identity = await self._sender.coordinated(
                CoordinatorType.TRANSACTION, self._transactional_id, what, deadline, call
            )
        except OutcomeUnknownError as error:
            # Nothing is at stake before the fence: the same request can be made anew.
            raise UnavailableError(str(error)) from error
        return Permit(identity)

    async def holds(self, permit: Permit) -> bool:
        """Whether the coordinator still has this permit's identity as the last; True where it does not tell now."""
        deadline = Deadline(self._commit_timeout_s)
        request = DescribeTransactionsRequest([self._transactional_id])

        async def call(node: int) -> tuple[int, TransactionState | None]:
            found = await self._sender.call(node, request, deadline)
            code = found[0].error if found else Code.UNKNOWN_SERVER_ERROR
            # An id that was forgotten is nobody's any more.
            return (Code.NONE, None) if code == Code.TRANSACTIONAL_ID_NOT_FOUND else (code, found[0])

        what = f"looking who holds {self._transactional_id}"
        try:
            state = await self._sender.coordinated(
                CoordinatorType.TRANSACTION, self._transactional_id, what, deadline, call
            )
        except (UnavailableError, OutcomeUnknownError):
            return True
        return state is not None and state.identity == permit.identity

    async def commit(self, permit: Permit, outputs: SealedOutputs, offsets: Offsets) -> Permit:
        """Commit outputs and offsets together, or not at all (I1). Answers with the permit for the next commit.

        Raises FencedError when somebody else owns the shard, OutcomeUnknownError when nobody can tell what became of
        the transaction; either ends the shard's run. Raises ValueError for a transaction with nothing in it (I6).
        """
        if not outputs and not offsets:
            raise ValueError("a transaction without outputs and offsets must not be sent")
        deadline = Deadline(self._commit_timeout_s)
        for batches in stamped_rounds(outputs, permit.identity, in_transaction=True):
            await self._sender.produce(self._transactional_id, batches, deadline)
        if offsets:
            await self._commit_offsets(permit, offsets, deadline)
        return await self._end(permit, deadline)

    async def _commit_offsets(self, permit: Permit, offsets: Offsets, deadline: Deadline) -> None:
        request = TxnOffsetCommitRequest(self._transactional_id, self._group, permit.identity, offsets)

        async def call(node: int) -> tuple[int, None]:
            answers = await self._sender.call(node, request, deadline)
            return worst(code for _, code in answers), None

        what = f"adding offsets to the transaction of {self._transactional_id}"
        await self._sender.coordinated(CoordinatorType.GROUP, self._group, what, deadline, call)

    async def _end(self, permit: Permit, deadline: Deadline) -> Permit:
        request = EndTxnRequest(self._transactional_id, permit.identity)

        async def call(node: int) -> tuple[int, ProducerIdentity]:
            answer = await self._sender.call(node, request, deadline)
            return answer.error, answer.identity

        what = f"committing the transaction of {self._transactional_id}"
        identity = await self._sender.coordinated(
            CoordinatorType.TRANSACTION, self._transactional_id, what, deadline, call
        )
        return Permit(identity)


class PlainCommitter:
    """At least once, the user's explicit choice: outputs first, offsets after them, and no fence."""

    def __init__(self, cluster: Cluster, *, shard_name: str, group: str, commit_timeout_s: float) -> None:
        self._sender = Sender(cluster, ("plain", shard_name))
        self._group = group
        self._commit_timeout_s = commit_timeout_s

    def close(self) -> None:
        """Close this committer's connections."""
        self._sender.close()

    async def fence(self) -> Permit:
        """There is nobody to fence."""
        return Permit(NO_PRODUCER)

    async def holds(self, permit: Permit) -> bool:  # noqa: ARG002 - as the other committer has it
        """There is nobody who could have fenced us."""
        return True

    async def commit(self, permit: Permit, outputs: SealedOutputs, offsets: Offsets) -> Permit:
        """Write outputs, then offsets. A failure between the two repeats the outputs later."""
        deadline = Deadline(self._commit_timeout_s)
        for batches in stamped_rounds(outputs, permit.identity, in_transaction=False):
            await self._sender.produce(None, batches, deadline)
        if offsets:
            await self._commit_offsets(offsets, deadline)
        return permit

    async def _commit_offsets(self, offsets: Offsets, deadline: Deadline) -> None:
        request = OffsetCommitRequest(self._group, offsets)

        async def call(node: int) -> tuple[int, None]:
            answers = await self._sender.call(node, request, deadline)
            return worst(code for _, code in answers), None

        await self._sender.coordinated(CoordinatorType.GROUP, self._group, "committing offsets", deadline, call)


def stamped_rounds(
    outputs: SealedOutputs, identity: ProducerIdentity, *, in_transaction: bool
) -> list[dict[TopicPartition, bytes | memoryview]]:
    """The produce requests' contents: a request holds at most one batch for each partition.

    Sequences start at 0 with every transaction, since each has an epoch of its own.
    """
    rounds: list[dict[TopicPartition, bytes | memoryview]] = []
    for partition, batches in outputs.items():
        sequence = 0
        for number, batch in enumerate(batches):
            if number == len(rounds):
                rounds.append({})
            rounds[number][partition] = batch.stamped(
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                base_sequence=sequence if in_transaction else -1,
                transactional=in_transaction,
            )
            sequence += batch.record_count
    return rounds
