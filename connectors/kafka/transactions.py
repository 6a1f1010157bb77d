"""A pipeline's transactional ids, seen from outside, and fencing what a dead owner has left open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from millstream.connectors.kafka.cluster import LOOKUP_ROLE, Cluster
from millstream.connectors.kafka.describe_requests import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    TransactionState,
)
from millstream.connectors.kafka.error_codes import Code
from millstream.connectors.kafka.kafka_log import KafkaLog, LogSettings
from millstream.connectors.kafka.one_partition import OnePartition
from millstream.connectors.kafka.requests import CoordinatorType
from millstream.connectors.kafka.sender import Deadline, Sender
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.connectors.kafka.transaction_requests import ProducerIdentity
from millstream.processor.errors import OutcomeUnknownError, RefusedError, SettingsError, UnavailableError
from millstream.processor.names import Names
from millstream.processor.partitions import TopicPartition
from millstream.processor.reset import known_pipeline

LISTEN_S: Final = 2.0

_TIMEOUT_S: Final = 10.0
_BEATS_BYTES: Final = 64 * 1024
_SETTLED: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


@dataclass(frozen=True, slots=True)
class Transaction:
    """One of the pipeline's transactional ids.

    `age_s` is how long its open transaction has been open, None where nothing is open. `partitions` are what that has
    written to. A `shard` is None for a number that the pipeline does not have.
    """

    transactional_id: str
    shard: int | None
    state: str
    age_s: float | None
    timeout_ms: int
    producer: ProducerIdentity
    partitions: Sequence[TopicPartition]

    @property
    def is_open(self) -> bool:
        """Whether committed readers wait for its end."""
        return self.state not in _SETTLED

    def as_json(self) -> dict[str, Any]:
        """The same, as JSON-serialisable values."""
        return {
            "transactional_id": self.transactional_id,
            "shard": self.shard,
            "state": self.state,
            "open": self.is_open,
            "age_s": self.age_s,
            "timeout_ms": self.timeout_ms,
            "producer_id": self.producer.producer_id,
            "epoch": self.producer.epoch,
            "partitions": [{"topic": topic, "partition": partition} for topic, partition in self.partitions],
        }


async def transactions_of(kafka: KafkaSettings, pipeline: str) -> list[Transaction]:
    """Every transactional id of the pipeline that the cluster remembers, by shard; nothing is changed.

    Raises SettingsError where there is no such pipeline.
    """
    async with _Looking(kafka, pipeline) as looking:
        return await looking.transactions()


async def fence(
    kafka: KafkaSettings, pipeline: str, shards: Sequence[int], *, is_forced: bool
) -> tuple[list[int], list[Transaction]]:
    """Fence these shards, or all with an open transaction where none are named; which, and what there is afterwards.

    What was open is aborted, and whoever held the shard can commit no more. Unless forced, it listens for LISTEN_S
    first, and raises RefusedError where somebody runs the pipeline. Raises SettingsError for shards that it has not.
    """
    async with _Looking(kafka, pipeline) as looking:
        looking.check(shards)
        if not is_forced:
            await looking.refuse_while_it_runs()
        found = await looking.transactions()
        chosen = sorted(set(shards)) or [t.shard for t in found if t.is_open and t.shard is not None]
        for shard in chosen:
            await looking.log.shard(shard).fence()
        return chosen, await looking.transactions()


class _Looking:
    """The connections and the ledger of one look at a pipeline."""

    def __init__(self, kafka: KafkaSettings, pipeline: str) -> None:
        self.log = KafkaLog(kafka, LogSettings(group=pipeline, exactly_once=True))
        self._cluster = Cluster(kafka)
        self._sender = Sender(self._cluster, LOOKUP_ROLE)
        self._pipeline = pipeline
        self._shards = 0

    async def __aenter__(self) -> Self:
        try:
            await self.log.connect()
            self._shards = (await known_pipeline(self.log, self._pipeline)).shards or 0
            await self._cluster.connect()
        except BaseException:
            self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._cluster.close()
        self.log.close()

    def check(self, shards: Iterable[int]) -> None:
        """Raises SettingsError that names every shard that there is not."""
        if wrong := [shard for shard in shards if not 0 <= shard < self._shards]:
            raise SettingsError(
                f"pipeline {self._pipeline!r}",
                [f"it has no shard {shard}; its shards are 0 to {self._shards - 1}" for shard in wrong],
            )

    async def refuse_while_it_runs(self) -> None:
        """Listens for LISTEN_S: for beats of a node, and for transactions that move on."""
        before = await self._descriptions()
        beats = await self._beats()
        moved = [now.transactional_id for now in await self._descriptions() if now not in before]
        signs = [f"{beats} beats of its nodes came"] if beats else []
        signs += [f"the transactions of {', '.join(moved)} moved on"] if moved else []
        if signs:
            raise RefusedError(
                f"pipeline {self._pipeline!r} runs ({' and '.join(signs)} within {LISTEN_S:g} s), and nothing was "
                "fenced: a running pipeline fences by itself what a dead node has left. Stop it, or use --force: each "
                "fenced shard then starts again, once"
            )

    async def _beats(self) -> int:
        """How many came while we listened; 0 as well where nobody has ever made a topic for them."""
        topic = Names.of(self._pipeline).beats
        deadline = Deadline(LISTEN_S)
        count = 0
        if await self.log.missing_topics([topic]):
            await deadline.pause(LISTEN_S)
            return count
        beats = OnePartition(self._cluster, topic, role="beats", timeout_s=_TIMEOUT_S)
        offset = await beats.end()
        while (left_s := deadline.left_s) > 0:
            piece = await beats.fetch(offset, wait_s=left_s, bytes_max=_BEATS_BYTES)
            count, offset = count + len(piece.entries), piece.next_offset
        return count

    async def transactions(self) -> list[Transaction]:
        """All of the pipeline's, by number."""
        now_ms = time.time() * 1000
        return [self._transaction(described, now_ms) for described in await self._descriptions()]

    def _transaction(self, described: TransactionState, now_ms: float) -> Transaction:
        number = int(described.transactional_id.removeprefix(f"{self._pipeline}."))
        is_open = described.state not in _SETTLED
        return Transaction(
            transactional_id=described.transactional_id,
            shard=number if number < self._shards else None,
            state=described.state,
            # By two clocks; one that is behind must not make it negative.
            age_s=max(0.0, (now_ms - described.started_ms) / 1000) if is_open and described.started_ms >= 0 else None,
            timeout_ms=described.timeout_ms,
            producer=described.identity,
            partitions=described.partitions,
        )

    async def _descriptions(self) -> list[TransactionState]:
        deadline = Deadline(_TIMEOUT_S)
        try:
            found = [await self._describe(number, deadline) for number in await self._numbers(deadline)]
        except OutcomeUnknownError as error:
            raise UnavailableError(str(error)) from error
        return [described for described in found if described is not None]

    async def _numbers(self, deadline: Deadline) -> list[int]:
        """The numbers behind the pipeline's name, from all coordinators, and those that the ledger knows."""
        view = await self._cluster.refresh()
        listed = await asyncio.gather(*(self._listed(node, deadline) for node in view.brokers))
        prefix = f"{self._pipeline}."
        ids = {name.removeprefix(prefix) for names in listed for name in names if name.startswith(prefix)}
        return sorted({int(text) for text in ids if text.isascii() and text.isdecimal()} | {*range(self._shards)})

    async def _listed(self, node: int, deadline: Deadline) -> Sequence[str]:
        async def attempt() -> tuple[int, Sequence[str]]:
            answer = await self._sender.call(node, ListTransactionsRequest(), deadline)
            return answer.error, answer.transactional_ids

        return await self._sender.retried(f"listing the transactions of broker {node}", deadline, attempt)

    async def _describe(self, number: int, deadline: Deadline) -> TransactionState | None:
        """None where the coordinator does not know the id: it was never used, or has expired."""
        transactional_id = f"{self._pipeline}.{number}"

        async def call(node: int) -> tuple[int, TransactionState | None]:
            found = await self._sender.call(node, DescribeTransactionsRequest([transactional_id]), deadline)
            code = found[0].error if found else Code.UNKNOWN_SERVER_ERROR
            return (Code.NONE, None) if code == Code.TRANSACTIONAL_ID_NOT_FOUND else (code, found[0] if found else None)

        what = f"describing the transaction of {transactional_id}"
        return await self._sender.coordinated(CoordinatorType.TRANSACTION, transactional_id, what, deadline, call)
