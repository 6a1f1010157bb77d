"""Reads a ledger's verdicts as they appear, with another client library than the one that wrote them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import confluent_kafka

from millstream.processor import ledger
from millstream.processor.ledger import DeadRecord

_POLL_S: Final = 0.5
_END_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class SeenVerdict:
    """One DEAD record, and when it was read (monotonic seconds)."""

    at_s: float
    offset: int
    record: DeadRecord


class VerdictWatch:
    """Follows a ledger from its start. A context manager; until it is left, verdicts are noted as they appear."""

    def __init__(self, confluent_arguments: dict[str, object], topic: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                **confluent_arguments,
                "group.id": f"{topic}.watch",
                "enable.auto.commit": False,
                "log_level": 3,
            }
        )
        self._topic = topic
        self._changed = threading.Condition()
        self._verdicts: list[SeenVerdict] = []
        self._ends = False
        self._thread = threading.Thread(target=self._watch, name="verdicts", daemon=True)

    def __enter__(self) -> Self:
        self._consumer.assign([confluent_kafka.TopicPartition(self._topic, 0, 0)])
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends = True
        self._thread.join(_END_S)
        self._consumer.close()

    def verdicts(self) -> list[SeenVerdict]:
        """All so far, in the ledger's order."""
        with self._changed:
            return list(self._verdicts)

    def wait_for(self, node: str, timeout_s: float) -> SeenVerdict | None:
        """The first verdict on a node; None where there is none in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._first(node) is not None, timeout_s)
            return self._first(node)

    def _first(self, node: str) -> SeenVerdict | None:
        return next((seen for seen in self._verdicts if seen.record.node == node), None)

    def _watch(self) -> None:
        while not self._ends:
            message = self._consumer.poll(_POLL_S)
            if message is None or message.error() is not None:
                continue
            now, value, offset = time.monotonic(), message.value(), message.offset()
            record = ledger.decode(value) if value is not None else None
            if isinstance(record, DeadRecord) and offset is not None:
                with self._changed:
                    self._verdicts.append(SeenVerdict(now, offset, record))
                    self._changed.notify_all()
