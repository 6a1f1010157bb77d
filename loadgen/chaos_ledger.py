"""The ledger and the beats of a pipeline as an outsider reads them: what was said when, how regular the beats are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import confluent_kafka

from millstream.loadgen.chaos_timing import Quantiles, sharp_consumer
from millstream.loadgen.topics import TopicAdmin
from millstream.processor.beats import decode_beat
from millstream.processor.errors import UnavailableError
from millstream.processor.ledger import DeadRecord, JoinRecord, LedgerRecord, decode
from millstream.processor.membership import Membership, apply

R = TypeVar("R", bound=LedgerRecord)

_POLL_S = 0.2
_RECORDS_MAX = 500
_JOIN_S = 5.0
_LOOK_S = 0.005
_APPEARS_S = 60.0
_GAPS_KEPT = 200_000


@dataclass(frozen=True, slots=True)
class Said:
    """A record of the ledger, and when it arrived here (monotonic, seconds)."""

    at: float
    offset: int
    record: LedgerRecord


class LedgerWatch:
    """Follows both topics from their beginnings, once they are there. A context manager.

    `said` only ever grows; `membership` is what follows from it.
    """

    def __init__(self, confluent_arguments: Mapping[str, object], pipeline: str) -> None:
        self._arguments = confluent_arguments
        self._ledger, self._beats = f"{pipeline}.ledger", f"{pipeline}.beats"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger watch", daemon=True)
        self._last_beat: dict[str, float] = {}
        self._failure: Exception | None = None
        self.said: list[Said] = []
        self.membership = Membership()
        self._gaps_ms: list[tuple[str, float]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_JOIN_S)

    def check(self) -> None:
        """Raises UnavailableError where the topics cannot be read any more."""
        if self._failure is not None:
            raise UnavailableError(f"the ledger {self._ledger} could not be followed: {self._failure}")

    def all_of(self, kind: type[R], since: int = 0) -> list[tuple[float, R]]:
        """Every record of a kind from the `since`-th on, and when it arrived."""
        return [(said.at, said.record) for said in self.said[since:] if isinstance(said.record, kind)]

    def node_id(self, name: str) -> str | None:
        """The id of the node's present life, by the name that it was given."""
        joins = [record.node for _, record in self.all_of(JoinRecord) if record.name == name]
        return joins[-1] if joins else None

    def await_record(
        self, kind: type[R], fits: Callable[[R], bool], since: int, wait_s: float
    ) -> tuple[float, R] | None:
        """The first that fits from the `since`-th record on; None where none comes in time."""
        deadline = time.monotonic() + wait_s
        while True:
            for at, record in self.all_of(kind, since):
                if fits(record):
                    return at, record
            if time.monotonic() > deadline:
                return None
            self.check()
            time.sleep(_LOOK_S)

    def mistaken(self, struck: set[str]) -> list[DeadRecord]:
        """Verdicts on nodes that nothing was done to."""
        return [record for _, record in self.all_of(DeadRecord) if record.node not in struck]

    def beat_gaps(self, struck: set[str]) -> Quantiles | None:
        """Between two beats of a node, as they arrived here; of those nodes only that nothing was done to."""
        return Quantiles.of([gap_ms for node, gap_ms in self._gaps_ms if node not in struck])

    def _run(self) -> None:
        try:
            self._await_topics()
            consumer = sharp_consumer(self._arguments)
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0) for topic in (self._ledger, self._beats)])
            try:
                while not self._over.is_set():
                    if (first := consumer.poll(_POLL_S)) is not None:
                        self._take(time.monotonic(), [first, *consumer.consume(_RECORDS_MAX, 0)])
            finally:
                consumer.close()
        except Exception as error:
            # Whoever waits for a record must hear why none comes.
            self._failure = error

    def _await_topics(self) -> None:
        admin = TopicAdmin(self._arguments)
        deadline = time.monotonic() + _APPEARS_S
        while not all(admin.partition_count(topic) for topic in (self._ledger, self._beats)):
            if time.monotonic() > deadline or self._over.wait(_POLL_S):
                raise UnavailableError(f"no node made it within {_APPEARS_S:g} s")

    def _take(self, at: float, messages: list[confluent_kafka.Message]) -> None:
        for message in messages:
            value, offset = message.value(), message.offset()
            if message.error() is not None or value is None or offset is None:
                continue
            if message.topic() == self._ledger:
                record = decode(value)
                self.membership = apply(self.membership, offset, record)
                self.said.append(Said(at, offset, record))
            elif (beat := decode_beat(value)) is not None:
                self._note_beat(at, beat.node)

    def _note_beat(self, at: float, node: str) -> None:
        before = self._last_beat.get(node)
        self._last_beat[node] = at
        if before is not None and len(self._gaps_ms) < _GAPS_KEPT:
            self._gaps_ms.append((node, (at - before) * 1000))
