"""Kafka's error codes, by what the caller must do about them.

Only codes that lead to different acts have names here; any other is `unexpected` and ends what was being done.
"""

from __future__ import annotations

from enum import IntEnum

from millstream.processor.errors import (
    FencedError,
    MillstreamError,
    OutcomeUnknownError,
    RefusedError,
    UnavailableError,
)


class Code(IntEnum):
    """The codes that the client tells apart."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    UNKNOWN_MEMBER_ID = 25
    ILLEGAL_GENERATION = 22
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    TRANSACTION_ABORTABLE = 120


RETRIABLE = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.BROKER_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.NOT_CONTROLLER,
        Code.CONCURRENT_TRANSACTIONS,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        # A leader that is new and whose followers have not caught up.
        Code.OFFSET_NOT_AVAILABLE,
        Code.UNSTABLE_OFFSET_COMMIT,
        Code.THROTTLING_QUOTA_EXCEEDED,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
    }
)

# The answers after which the address of a leader or coordinator is looked up again.
MOVED = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
    }
)

# `INVALID_TXN_STATE` stands here since a transaction that we believe open and the broker does not was ended by another.
FENCED = frozenset(
    {
        Code.INVALID_PRODUCER_EPOCH,
        Code.PRODUCER_FENCED,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.INVALID_TXN_STATE,
    }
)

TOO_LARGE = frozenset({Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE})

REFUSED = frozenset(
    {
        Code.INVALID_TOPIC_EXCEPTION,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        Code.UNSUPPORTED_VERSION,
        Code.INVALID_PARTITIONS,
        Code.INVALID_REPLICATION_FACTOR,
        Code.INVALID_REQUEST,
    }
)


def code_name(code: int) -> str:
    """`NOT_COORDINATOR (16)`; a code without a name here is just its number."""
    return f"{Code(code).name} ({code})" if code in Code._value2member_map_ else f"error code {code}"


def error_for(code: int, what: str, detail: str | None = None) -> MillstreamError:
    """The error of our own tree for a broker's answer. `what` says what was being done."""
    message = f"{what}: the broker answered {code_name(code)}" + (f" ({detail})" if detail else "")
    if code in TOO_LARGE:
        return RefusedError(
            f"{message}. Batches are made to fit max.message.bytes as it was read at the start: restart where it was "
            "lowered since, or grant DescribeConfigs on the topic where it may not be read"
        )
    if code in FENCED:
        return FencedError(message)
    if code in REFUSED:
        return RefusedError(message)
    if code in RETRIABLE:
        return UnavailableError(message)
    return OutcomeUnknownError(message)
