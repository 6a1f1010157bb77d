"""Errors of a cluster that pass by themselves: a topic or a leader that is new, and not known to every broker yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import confluent_kafka
from confluent_kafka import KafkaError

T = TypeVar("T")

PASSING_S: Final = 15.0
# A topic that is not there at all says the same, and whoever mistyped its name waits for that.
UNKNOWN_S: Final = 3.0
_PAUSE_S: Final = 0.1
# The names with an underscore are public; they stand for what the client finds out by itself.
UNKNOWN: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
_MOVING: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        # A leader that is new answers so until its followers have caught up.
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
)


def is_passing(error: KafkaError) -> bool:
    """Whether asking again may help."""
    return error.code() in UNKNOWN or error.code() in _MOVING


def patiently(ask: Callable[[], T]) -> T:
    """Ask until there is an answer, or an error that does not pass, or has not for 15 s (of an unknown topic: 3 s).

    Raises the last KafkaException.
    """
    began = time.monotonic()
    while True:
        try:
            return ask()
        except confluent_kafka.KafkaException as error:
            reason = error.args[0]
            within_s = UNKNOWN_S if reason.code() in UNKNOWN else PASSING_S
            if not is_passing(reason) or time.monotonic() - began > within_s:
                raise
        time.sleep(_PAUSE_S)
