"""A model of Kafka, as far as exactly-once depends on it: what a broker does with a request that has arrived.

Modelled as Apache Kafka 4 with Transactions V2 behaves: the end of a transaction bumps the producer's epoch and is
answered before its markers are written; until then its records hold up committed readers of each partition, its offsets
are unstable, and a new transaction of the same id meets CONCURRENT_TRANSACTIONS; a fence aborts what is open and is
answered only when that is resolved everywhere; batches have sequence numbers, by which copies are told; transactions
that nobody ends are aborted after their timeout.

Everything that a checker wants to see is in `history`, in the order in which it happened.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from millstream.connectors.kafka.describe_requests import DescribeTransactionsRequest, TransactionState
from millstream.connectors.kafka.error_codes import Code
from millstream.connectors.kafka.read_requests import (
    EARLIEST,
    CommittedOffset,
    ListedOffset,
    ListOffsetsRequest,
    OffsetFetchAnswer,
    OffsetFetchRequest,
)
from millstream.connectors.kafka.transaction_requests import (
    NO_PRODUCER,
    EndTxnAnswer,
    EndTxnRequest,
    InitProducerIdAnswer,
    InitProducerIdRequest,
    ProduceAnswer,
    ProduceRequest,
    ProducerIdentity,
    TxnOffsetCommitRequest,
)
from millstream.processor.partitions import TopicPartition

GROUP_MARKER = TopicPartition("__consumer_offsets", 0)


class Record(NamedTuple):
    key: bytes | None
    value: bytes


class Stamped(NamedTuple):
    """A batch as it is sent: what a real one has in its header, and its records."""

    identity: ProducerIdentity
    sequence: int
    records: tuple[Record, ...]


@dataclass(eq=False, slots=True)
class Transaction:
    """`partitions` has where its records begin, `unmarked` the places that have no marker yet."""

    name: str
    state: Literal["open", "committing", "committed", "aborting", "aborted"] = "open"
    partitions: dict[TopicPartition, int] = field(default_factory=dict)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    unmarked: set[TopicPartition] = field(default_factory=set)


class Entry(NamedTuple):
    """One offset: a record, or (with None) the marker of an ended transaction."""

    record: Record | None
    transaction: Transaction | None


class Partition:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.open: dict[Transaction, int] = {}
        self.sequences: dict[ProducerIdentity, int] = {}

    @property
    def stable_end(self) -> int:
        return min(self.open.values()) if self.open else len(self.entries)

    def visible(self, start: int, end: int, *, is_committed_only: bool = True) -> list[tuple[int, Record]]:
        """The committed records in this range, with their offsets; it must lie before the stable end then."""
        return [
            (offset, entry.record)
            for offset, entry in enumerate(self.entries[start:end], start)
            if entry.record is not None
            and (entry.transaction is None or entry.transaction.state[:6] == "commit" or not is_committed_only)
        ]


@dataclass(slots=True)
class Producer:
    """`ended` is the epoch whose transaction was committed last, so that a repeated end is told."""

    id: int
    epoch: int = -1
    transaction: Transaction | None = None
    ended: int | None = None

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.id, self.epoch)


class Event(NamedTuple):
    """Something that a checker may look at. `session` is the run of a shard that asked for it, if one did."""

    time: float
    kind: str
    session: Any
    what: Any


@dataclass(slots=True)
class Pace:
    """How long markers take, in seconds: most of them about `marker_s`, one in ten up to `marker_slow_s`."""

    marker_s: float = 0.002
    marker_slow_s: float = 0.02


class Kafka:
    """The brokers of one cluster, all in one. `later` runs something after so many seconds."""

    def __init__(
        self, rng: random.Random, now: Callable[[], float], later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self.pace = Pace()
        self.history: list[Event] = []
        self.topics: dict[str, list[Partition]] = {}
        self.offsets: dict[TopicPartition, int] = {}
        self.require_stable = True
        self._rng = rng
        self._now = now
        self._later = later
        self._known_at = 0.0
        self._producers: dict[str, Producer] = {}
        self._waiting: dict[TopicPartition, list[Callable[[], None]]] = {}
        self._pending: dict[TopicPartition, list[Transaction]] = {}
        self._handlers: dict[type, Callable[[Any, Any], Any]] = {
            InitProducerIdRequest: self.fence,
            ProduceRequest: self.produce,
            TxnOffsetCommitRequest: self.add_offsets,
            EndTxnRequest: self.end,
            OffsetFetchRequest: self.fetch_offsets,
            ListOffsetsRequest: self.list_offsets,
            DescribeTransactionsRequest: self.describe,
        }

    def handle(self, session: Any, request: Any) -> Any:
        """The answer to a request of a shard's run."""
        return self._handlers[type(request)](session, request)

    def note(self, kind: str, session: Any, what: Any) -> None:
        self.history.append(Event(self._now(), kind, session, what))

    # -- topics -------------------------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int) -> None:
        """Create it, or add partitions to it."""
        logs = self.topics.setdefault(topic, [])
        logs += [Partition() for _ in range(partitions - len(logs))]

    def partition(self, place: TopicPartition) -> Partition:
        return self.topics[place.topic][place.partition]

    def wait_for(self, places: Iterable[TopicPartition], callback: Callable[[], None]) -> None:
        """Call it when committed readers of one of these may see more, once for each."""
        for place in places:
            self._waiting.setdefault(place, []).append(callback)

    def _changed(self, place: TopicPartition) -> None:
        for callback in self._waiting.pop(place, ()):
            callback()

    def send(self, place: TopicPartition, records: Iterable[Record]) -> None:
        """Records outside of any transaction."""
        self.partition(place).entries += [Entry(record, None) for record in records]
        self._changed(place)

    def committed(self, topic: str) -> list[tuple[TopicPartition, list[tuple[int, Record]]]]:
        """What a committed reader of the whole topic sees."""
        logs = enumerate(self.topics[topic])
        return [(TopicPartition(topic, i), log.visible(0, log.stable_end)) for i, log in logs]

    # -- transactions -------------------------------------------------------------------------------------------

    def _producer(self, name: str) -> Producer:
        return self._producers.setdefault(name, Producer(len(self._producers) + 1))

    def fence(self, session: Any, request: InitProducerIdRequest) -> InitProducerIdAnswer:
        name = request.transactional_id or ""
        producer = self._producer(name)
        if producer.transaction is not None:
            if producer.transaction.state == "open":
                self._prepare(producer, "aborting")
            return InitProducerIdAnswer(Code.CONCURRENT_TRANSACTIONS, NO_PRODUCER)
        producer.epoch += 1
        producer.ended = None
        self.note("fenced", session, (name, producer.epoch))
        return InitProducerIdAnswer(Code.NONE, producer.identity)

    def describe(self, session: Any, request: DescribeTransactionsRequest) -> list[TransactionState]:
        states = []
        for name in request.transactional_ids:
            producer = self._producer(name)
            state = "Empty" if producer.transaction is None else "Ongoing"
            states.append(TransactionState(Code.NONE, name, state, 0, -1, producer.identity, []))
        return states

    def _transaction(self, name: str, identity: ProducerIdentity, timeout_s: float = 4.0) -> Transaction | Code:
        """The open transaction of this producer, which begins here if there is none; or why there cannot be one."""
        producer = self._producer(name)
        if identity != producer.identity:
            return Code.INVALID_PRODUCER_EPOCH
        if producer.transaction is None:
            producer.transaction = transaction = Transaction(name)
            self._later(timeout_s, lambda: self._expire(producer, transaction))
        return producer.transaction if producer.transaction.state == "open" else Code.CONCURRENT_TRANSACTIONS

    def _expire(self, producer: Producer, transaction: Transaction) -> None:
        if producer.transaction is transaction and transaction.state == "open":
            self.note("expired", None, producer)
            self._prepare(producer, "aborting")

    def produce(self, session: Any, request: ProduceRequest) -> list[ProduceAnswer]:
        return [
            ProduceAnswer(place, self._store(session, request.transactional_id or "", place, batch), None)  # type: ignore[arg-type]
            for place, batch in request.batches.items()
        ]

    def _store(self, session: Any, name: str, place: TopicPartition, batch: Stamped) -> int:
        transaction = self._transaction(name, batch.identity)
        if isinstance(transaction, Code):
            self.note("refused", session, transaction)
            return transaction
        log = self.partition(place)
        if batch.sequence >= 0:
            expected = log.sequences.get(batch.identity, 0)
            if batch.sequence < expected:
                return Code.DUPLICATE_SEQUENCE_NUMBER
            if batch.sequence > expected:
                return Code.OUT_OF_ORDER_SEQUENCE_NUMBER
            log.sequences[batch.identity] = expected + len(batch.records)
        if place not in transaction.partitions:
            transaction.partitions[place] = len(log.entries)
            log.open[transaction] = len(log.entries)
        log.entries += [Entry(record, transaction) for record in batch.records]
        return Code.NONE

    def add_offsets(self, session: Any, request: TxnOffsetCommitRequest) -> list[tuple[TopicPartition, int]]:
        transaction = self._transaction(request.transactional_id, request.identity)
        if isinstance(transaction, Code):
            self.note("refused", session, transaction)
            return [(place, transaction) for place in request.offsets]
        for place, offset in request.offsets.items():
            if place not in transaction.offsets:
                self._pending.setdefault(place, []).append(transaction)
            transaction.offsets[place] = offset.offset
        return [(place, Code.NONE) for place in request.offsets]

    def end(self, session: Any, request: EndTxnRequest) -> EndTxnAnswer:
        producer = self._producer(request.transactional_id)
        transaction = producer.transaction
        if request.identity == producer.identity:
            if transaction is None or transaction.state != "open":
                self.note("empty", session, producer)
                return EndTxnAnswer(Code.INVALID_TXN_STATE, NO_PRODUCER)
            self.note("committed", session, (transaction, dict(transaction.offsets)))
            producer.ended = producer.epoch
            self._prepare(producer, "committing")
            return EndTxnAnswer(Code.NONE, producer.identity)
        if request.identity.epoch == producer.ended == producer.epoch - 1:
            if transaction is not None and transaction.state == "committing":
                return EndTxnAnswer(Code.CONCURRENT_TRANSACTIONS, NO_PRODUCER)
            return EndTxnAnswer(Code.NONE, producer.identity)
        self.note("refused", session, Code.PRODUCER_FENCED)
        return EndTxnAnswer(Code.PRODUCER_FENCED, NO_PRODUCER)

    def _prepare(self, producer: Producer, state: Literal["committing", "aborting"]) -> None:
        """Decide how the transaction ends; the markers follow one by one, each in its own time."""
        transaction = producer.transaction
        assert transaction is not None
        transaction.state = state
        producer.epoch += 1
        transaction.unmarked = {*transaction.partitions, GROUP_MARKER}
        for place in (*transaction.partitions, GROUP_MARKER):
            self._later(self._marker_s(), lambda place=place: self._mark(producer, transaction, place))

    def _marker_s(self) -> float:
        most = self.pace.marker_slow_s if self._rng.random() < 0.1 else self.pace.marker_s
        return self._rng.random() * most

    def _mark(self, producer: Producer, transaction: Transaction, place: TopicPartition) -> None:
        if place is GROUP_MARKER:
            # The group's coordinator has the marker, and takes a moment to make the offsets known; in the log's order.
            is_committed = transaction.state == "committing"
            self._known_at = max(self._known_at, self._now() + self._marker_s())
            self._later(self._known_at - self._now(), lambda: self._apply(transaction, is_committed=is_committed))
        else:
            log = self.partition(place)
            log.entries.append(Entry(None, transaction))
            del log.open[transaction]
            self._changed(place)
        transaction.unmarked.discard(place)
        if not transaction.unmarked:
            transaction.state = "committed" if transaction.state == "committing" else "aborted"
            producer.transaction = None

    def _apply(self, transaction: Transaction, *, is_committed: bool) -> None:
        for place, offset in transaction.offsets.items():
            self._pending[place].remove(transaction)
            if is_committed:
                self.note("offset", None, (place, self.offsets.get(place, 0), offset))
                self.offsets[place] = offset

    # -- writers that are nobody's shard ------------------------------------------------------------------------

    def write(self, name: str, identity: ProducerIdentity, place: TopicPartition, records: Sequence[Record]) -> None:
        """Records in a transaction, which begins here."""
        assert self._store(None, name, place, Stamped(identity, 0, tuple(records))) == Code.NONE

    def commit(self, name: str) -> None:
        """The transaction ends well."""
        producer = self._producers[name]
        if producer.transaction is not None and producer.transaction.state == "open":
            self._prepare(producer, "committing")

    def abort(self, name: str) -> None:
        """The transaction ends without effect."""
        producer = self._producers[name]
        if producer.transaction is not None and producer.transaction.state == "open":
            self._prepare(producer, "aborting")

    # -- reading ------------------------------------------------------------------------------------------------

    def fetch_offsets(self, session: Any, request: OffsetFetchRequest) -> OffsetFetchAnswer:
        return OffsetFetchAnswer(Code.NONE, [self._offset_of(place) for place in request.partitions])

    def _offset_of(self, place: TopicPartition) -> CommittedOffset:
        if self.require_stable and self._pending.get(place):
            return CommittedOffset(place, -1, "", Code.UNSTABLE_OFFSET_COMMIT)
        return CommittedOffset(place, self.offsets.get(place, -1), "", Code.NONE)

    def list_offsets(self, session: Any, request: ListOffsetsRequest) -> Sequence[ListedOffset]:
        asked: Mapping[TopicPartition, int] = request.timestamps
        return [
            ListedOffset(place, Code.NONE, 0 if at == EARLIEST else self.partition(place).stable_end)
            for place, at in asked.items()
        ]

    @property
    def open_transactions(self) -> list[str]:
        """The ids whose transaction has not ended."""
        return [name for name, producer in self._producers.items() if producer.transaction is not None]
