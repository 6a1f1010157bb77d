"""Requests and answers as the Apache Kafka protocol defines them, in the versions that we speak, for test_requests.py.

The schemas are made of aiokafka's types, so that neither bytes nor meaning come from our own code.
"""

from __future__ import annotations

import io
import uuid
from dataclasses import dataclass
from typing import Any

import aiokafka.protocol.types as t

from millstream.connectors.kafka.admin_requests import (
    CreateTopicsRequest,
    DeletedRecords,
    DeleteRecordsRequest,
    DescribeTopicSettingRequest,
    NewTopic,
    TopicAnswer,
    TopicSetting,
)
from millstream.connectors.kafka.describe_requests import (
    DescribeTransactionsRequest,
    ListedTransactions,
    ListTransactionsRequest,
    TransactionState,
)
from millstream.connectors.kafka.read_requests import (
    EARLIEST,
    CommittedOffset,
    FetchAnswer,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    ListedOffset,
    ListOffsetsRequest,
    OffsetFetchAnswer,
    OffsetFetchRequest,
)
from millstream.connectors.kafka.requests import (
    ApiVersionsRequest,
    Broker,
    BrokerFeatures,
    Coordinator,
    CoordinatorType,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataView,
    PartitionView,
    TopicView,
)
from millstream.connectors.kafka.transaction_requests import (
    LEADER_ALONE,
    EndTxnAnswer,
    EndTxnRequest,
    InitProducerIdAnswer,
    InitProducerIdRequest,
    OffsetCommitRequest,
    OffsetToCommit,
    ProduceAnswer,
    ProduceRequest,
    ProducerIdentity,
    TxnOffsetCommitRequest,
)
from millstream.processor.partitions import TopicPartition


class Uuid(t.AbstractType[uuid.UUID]):  # type: ignore[misc, name-defined]
    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: io.BytesIO) -> uuid.UUID:
        return uuid.UUID(bytes=data.read(16))


class Tags(t.AbstractType[dict[int, bytes]]):  # type: ignore[misc, name-defined]
    """aiokafka's own type leaves out the sizes when it writes."""

    decode = t.TaggedFields.decode

    @classmethod
    def encode(cls, value: dict[int, bytes]) -> bytes:
        varint = t.UnsignedVarInt32.encode
        return varint(len(value)) + b"".join(varint(k) + varint(len(v)) + v for k, v in value.items())


STRING, BOOL = t.CompactString("utf-8"), t.Boolean
NO_TAGS: dict[int, bytes] = {}
UNKNOWN_TAG = {9: b"something of a later version"}


def struct_(*kinds: Any) -> Any:
    return t.Schema(*((f"field{i}", kind) for i, kind in enumerate((*kinds, Tags))))


def array(*kinds: Any) -> Any:
    return t.CompactArray(struct_(*kinds)) if len(kinds) > 1 else t.CompactArray(kinds[0])


ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)
A0, A5, B1 = TopicPartition("a", 0), TopicPartition("a", 5), TopicPartition("b", 1)
OFFSETS = array(STRING, array(t.Int32, t.Int64, t.Int32, STRING))
COMMITTED = array(STRING, array(t.Int32, t.Int16))


@dataclass(frozen=True)
class Case:
    """A request with what its bytes mean, and an answer with what it should be read as."""

    request: Any
    key: int
    version: int
    asks: Any
    asked: tuple[Any, ...]
    answers: Any
    answered: tuple[Any, ...]
    read: Any


CASES = [
    Case(
        ApiVersionsRequest(),
        18,
        3,
        struct_(STRING, STRING),
        ("millstream", "0.1.0", NO_TAGS),
        struct_(t.Int16, array(t.Int16, t.Int16, t.Int16), t.Int32),
        (
            0,
            [(0, 0, 12, NO_TAGS), (1, 4, 17, UNKNOWN_TAG)],
            0,
            # Tag 2: finalized features; name, highest level, lowest level.
            {1: b"\0" * 8, 2: array(STRING, t.Int16, t.Int16).encode([("transaction.version", 2, 1, NO_TAGS)])},
        ),
        BrokerFeatures({"transaction.version": 2}),
    ),
    Case(
        MetadataRequest(["a", "b"]),
        3,
        12,
        struct_(array(Uuid, STRING), BOOL, BOOL),
        ([(uuid.UUID(int=0), "a", NO_TAGS), (uuid.UUID(int=0), "b", NO_TAGS)], False, False, NO_TAGS),
        struct_(
            t.Int32,
            array(t.Int32, STRING, t.Int32, STRING),
            STRING,
            t.Int32,
            array(
                t.Int16,
                STRING,
                Uuid,
                BOOL,
                array(t.Int16, t.Int32, t.Int32, t.Int32, array(t.Int32), array(t.Int32), array(t.Int32)),
                t.Int32,
            ),
        ),
        (
            0,
            [(1, "host", 9092, None, NO_TAGS), (2, "other", 9093, "rack", UNKNOWN_TAG)],
            "cluster",
            1,
            [
                (
                    0,
                    "a",
                    ONE,
                    False,
                    [(0, 0, 1, 7, [1, 2], [1], [2], NO_TAGS), (5, 1, -1, 8, None, [], [], UNKNOWN_TAG)],
                    -(2**31),
                    NO_TAGS,
                ),
                (3, "b", TWO, False, [], -(2**31), NO_TAGS),
            ],
            NO_TAGS,
        ),
        MetadataView(
            {1: Broker(1, "host", 9092), 2: Broker(2, "other", 9093)},
            {
                "a": TopicView("a", ONE, 0, {0: PartitionView(0, 1, 7), 1: PartitionView(1, -1, 8)}),
                "b": TopicView("b", TWO, 3, {}),
            },
        ),
    ),
    Case(
        FindCoordinatorRequest(CoordinatorType.TRANSACTION, "p.3"),
        10,
        4,
        struct_(t.Int8, array(STRING)),
        (1, ["p.3"], NO_TAGS),
        struct_(t.Int32, array(STRING, t.Int32, STRING, t.Int32, t.Int16, STRING)),
        (0, [("p.3", 1, "host", 9092, 15, "not yet", NO_TAGS)], NO_TAGS),
        Coordinator(Broker(1, "host", 9092), 15, "not yet"),
    ),
    Case(
        InitProducerIdRequest("p.3", 30_000),
        22,
        5,
        struct_(STRING, t.Int32, t.Int64, t.Int16),
        ("p.3", 30_000, -1, -1, NO_TAGS),
        struct_(t.Int32, t.Int16, t.Int64, t.Int16),
        (0, 51, 2**40, 17, NO_TAGS),
        InitProducerIdAnswer(51, ProducerIdentity(2**40, 17)),
    ),
    Case(
        ProduceRequest("p.3", {A0: b"batch one", B1: memoryview(b"batch two"), A5: b"batch three"}, 5000),
        0,
        12,
        struct_(STRING, t.Int16, t.Int32, array(STRING, array(t.Int32, t.CompactBytes))),
        (
            "p.3",
            -1,
            5000,
            [
                ("a", [(0, b"batch one", NO_TAGS), (5, b"batch three", NO_TAGS)], NO_TAGS),
                ("b", [(1, b"batch two", NO_TAGS)], NO_TAGS),
            ],
            NO_TAGS,
        ),
        struct_(
            array(
                STRING,
                array(t.Int32, t.Int16, t.Int64, t.Int64, t.Int64, array(t.Int32, STRING), STRING),
            ),
            t.Int32,
        ),
        (
            [
                ("a", [(0, 0, 100, -1, 0, [], None, NO_TAGS)], NO_TAGS),
                ("b", [(1, 47, -1, -1, -1, [(3, "bad record", NO_TAGS)], "fenced", UNKNOWN_TAG)], UNKNOWN_TAG),
            ],
            0,
            NO_TAGS,
        ),
        [ProduceAnswer(A0, 0, None), ProduceAnswer(B1, 47, "fenced")],
    ),
    Case(
        ProduceRequest(None, {A0: b"x"}, 1, LEADER_ALONE),
        0,
        12,
        struct_(STRING, t.Int16, t.Int32, array(STRING, array(t.Int32, t.CompactBytes))),
        (None, 1, 1, [("a", [(0, b"x", NO_TAGS)], NO_TAGS)], NO_TAGS),
        struct_(
            array(STRING, array(t.Int32, t.Int16, t.Int64, t.Int64, t.Int64, array(t.Int32, STRING), STRING)), t.Int32
        ),
        ([], 0, NO_TAGS),
        [],
    ),
    Case(
        TxnOffsetCommitRequest(
            "p.3", "p", ProducerIdentity(7, 9), {A0: OffsetToCommit(5, "note"), B1: OffsetToCommit(6)}
        ),
        28,
        5,
        struct_(STRING, STRING, t.Int64, t.Int16, t.Int32, STRING, STRING, OFFSETS),
        (
            "p.3",
            "p",
            7,
            9,
            -1,
            "",
            None,
            [("a", [(0, 5, -1, "note", NO_TAGS)], NO_TAGS), ("b", [(1, 6, -1, "", NO_TAGS)], NO_TAGS)],
            NO_TAGS,
        ),
        struct_(t.Int32, COMMITTED),
        (0, [("a", [(0, 0, NO_TAGS)], NO_TAGS), ("b", [(1, 51, NO_TAGS)], UNKNOWN_TAG)], NO_TAGS),
        [(A0, 0), (B1, 51)],
    ),
    Case(
        OffsetCommitRequest("p", {A0: OffsetToCommit(5, "note")}),
        8,
        8,
        struct_(STRING, t.Int32, STRING, STRING, OFFSETS),
        ("p", -1, "", None, [("a", [(0, 5, -1, "note", NO_TAGS)], NO_TAGS)], NO_TAGS),
        struct_(t.Int32, COMMITTED),
        (0, [("a", [(0, 16, NO_TAGS)], NO_TAGS)], NO_TAGS),
        [(A0, 16)],
    ),
    Case(
        EndTxnRequest("p.3", ProducerIdentity(7, 9)),
        26,
        5,
        struct_(STRING, t.Int64, t.Int16, BOOL),
        ("p.3", 7, 9, True, NO_TAGS),
        struct_(t.Int32, t.Int16, t.Int64, t.Int16),
        (0, 0, 7, 10, NO_TAGS),
        EndTxnAnswer(0, ProducerIdentity(7, 10)),
    ),
    Case(
        FetchRequest(
            [FetchPartition(ONE, 0, 50, 1000), FetchPartition(TWO, 1, 0, 2000), FetchPartition(ONE, 5, 7, 9)],
            50,
            1,
            9999,
        ),
        1,
        13,
        struct_(
            t.Int32,
            t.Int32,
            t.Int32,
            t.Int32,
            t.Int8,
            t.Int32,
            t.Int32,
            array(Uuid, array(t.Int32, t.Int32, t.Int64, t.Int32, t.Int64, t.Int32)),
            array(Uuid, array(t.Int32)),
            STRING,
        ),
        (
            -1,
            50,
            1,
            9999,
            1,
            0,
            -1,
            [
                (ONE, [(0, -1, 50, -1, -1, 1000, NO_TAGS), (5, -1, 7, -1, -1, 9, NO_TAGS)], NO_TAGS),
                (TWO, [(1, -1, 0, -1, -1, 2000, NO_TAGS)], NO_TAGS),
            ],
            [],
            "",
            NO_TAGS,
        ),
        struct_(
            t.Int32,
            t.Int16,
            t.Int32,
            array(
                Uuid,
                array(t.Int32, t.Int16, t.Int64, t.Int64, t.Int64, array(t.Int64, t.Int64), t.Int32, t.CompactBytes),
            ),
        ),
        (
            0,
            0,
            0,
            [
                (ONE, [(0, 0, 80, 70, 10, [(5, 60, NO_TAGS)], -1, b"batches", UNKNOWN_TAG)], NO_TAGS),
                (TWO, [(1, 1, -1, -1, 3, None, -1, None, NO_TAGS)], NO_TAGS),
            ],
            NO_TAGS,
        ),
        FetchAnswer(
            0,
            [
                FetchedPartition(ONE, 0, 0, 80, 70, 10, [(5, 60)], memoryview(b"batches")),
                FetchedPartition(TWO, 1, 1, -1, -1, 3, [], memoryview(b"")),
            ],
        ),
    ),
    Case(
        OffsetFetchRequest("p", [A0, B1, A5]),
        9,
        8,
        struct_(array(STRING, array(STRING, array(t.Int32))), BOOL),
        ([("p", [("a", [0, 5], NO_TAGS), ("b", [1], NO_TAGS)], NO_TAGS)], True, NO_TAGS),
        struct_(t.Int32, array(STRING, array(STRING, array(t.Int32, t.Int64, t.Int32, STRING, t.Int16)), t.Int16)),
        (
            0,
            [
                (
                    "p",
                    [("a", [(0, 50, 3, "note", 0, NO_TAGS), (5, -1, -1, None, 88, NO_TAGS)], NO_TAGS)],
                    0,
                    UNKNOWN_TAG,
                )
            ],
            NO_TAGS,
        ),
        OffsetFetchAnswer(0, [CommittedOffset(A0, 50, "note", 0), CommittedOffset(A5, -1, "", 88)]),
    ),
    Case(
        ListOffsetsRequest({A0: EARLIEST, B1: 1_700_000_000_000}),
        2,
        7,
        struct_(t.Int32, t.Int8, array(STRING, array(t.Int32, t.Int32, t.Int64))),
        (
            -1,
            1,
            [("a", [(0, -1, -2, NO_TAGS)], NO_TAGS), ("b", [(1, -1, 1_700_000_000_000, NO_TAGS)], NO_TAGS)],
            NO_TAGS,
        ),
        struct_(t.Int32, array(STRING, array(t.Int32, t.Int16, t.Int64, t.Int64, t.Int32))),
        (0, [("a", [(0, 0, -1, 33, 2, NO_TAGS)], NO_TAGS), ("b", [(1, 6, -1, -1, -1, NO_TAGS)], NO_TAGS)], NO_TAGS),
        [ListedOffset(A0, 0, 33), ListedOffset(B1, 6, -1)],
    ),
    Case(
        CreateTopicsRequest([NewTopic("a", 3, settings={"retention.ms": "-1"}), NewTopic("b", 1, 2)], 5000),
        19,
        5,
        struct_(array(STRING, t.Int32, t.Int16, array(t.Int32, array(t.Int32)), array(STRING, STRING)), t.Int32, BOOL),
        (
            [("a", 3, -1, [], [("retention.ms", "-1", NO_TAGS)], NO_TAGS), ("b", 1, 2, [], [], NO_TAGS)],
            5000,
            False,
            NO_TAGS,
        ),
        struct_(
            t.Int32,
            array(STRING, t.Int16, STRING, t.Int32, t.Int16, array(STRING, STRING, BOOL, t.Int8, BOOL)),
        ),
        (
            0,
            [
                ("a", 0, None, 3, 1, [("retention.ms", "-1", False, 1, False, NO_TAGS)], NO_TAGS),
                ("b", 36, "it exists", -1, -1, None, UNKNOWN_TAG),
            ],
            NO_TAGS,
        ),
        [TopicAnswer("a", 0, None), TopicAnswer("b", 36, "it exists")],
    ),
    Case(
        DescribeTopicSettingRequest(["a", "b"], "max.message.bytes"),
        32,
        4,
        struct_(array(t.Int8, STRING, array(STRING)), BOOL, BOOL),
        ([(2, "a", ["max.message.bytes"], NO_TAGS), (2, "b", ["max.message.bytes"], NO_TAGS)], False, False, NO_TAGS),
        struct_(
            t.Int32,
            array(
                t.Int16,
                STRING,
                t.Int8,
                STRING,
                array(STRING, STRING, BOOL, t.Int8, BOOL, array(STRING, STRING, t.Int8), t.Int8, STRING),
            ),
        ),
        (
            0,
            [
                (
                    0,
                    None,
                    2,
                    "a",
                    [("max.message.bytes", "500", False, 5, False, [("x", "1", 5, NO_TAGS)], 3, None, NO_TAGS)],
                    NO_TAGS,
                ),
                (29, "no", 2, "b", [], UNKNOWN_TAG),
            ],
            NO_TAGS,
        ),
        [TopicSetting("a", 0, "500"), TopicSetting("b", 29, None)],
    ),
    Case(
        DeleteRecordsRequest({A0: 70, B1: 5, A5: 6}, 5000),
        21,
        2,
        struct_(array(STRING, array(t.Int32, t.Int64)), t.Int32),
        (
            [("a", [(0, 70, NO_TAGS), (5, 6, NO_TAGS)], NO_TAGS), ("b", [(1, 5, NO_TAGS)], NO_TAGS)],
            5000,
            NO_TAGS,
        ),
        struct_(t.Int32, array(STRING, array(t.Int32, t.Int64, t.Int16))),
        (
            0,
            [("a", [(0, 70, 0, NO_TAGS)], NO_TAGS), ("b", [(1, -1, 29, UNKNOWN_TAG)], UNKNOWN_TAG)],
            NO_TAGS,
        ),
        [DeletedRecords(A0, 70, 0), DeletedRecords(B1, -1, 29)],
    ),
    Case(
        DescribeTransactionsRequest(["p.0", "p.1"]),
        65,
        0,
        struct_(array(STRING)),
        (["p.0", "p.1"], NO_TAGS),
        struct_(
            t.Int32,
            array(t.Int16, STRING, STRING, t.Int32, t.Int64, t.Int64, t.Int16, array(STRING, array(t.Int32))),
        ),
        (
            0,
            [
                (
                    *(0, "p.0", "Ongoing", 30_000, 1_700_000_000_000, 2**40, 17),
                    [("a", [0, 5], NO_TAGS), ("b", [1], UNKNOWN_TAG)],
                    NO_TAGS,
                ),
                (105, "p.1", "", 0, -1, -1, -1, [], UNKNOWN_TAG),
            ],
            NO_TAGS,
        ),
        [
            TransactionState(0, "p.0", "Ongoing", 30_000, 1_700_000_000_000, ProducerIdentity(2**40, 17), [A0, A5, B1]),
            TransactionState(105, "p.1", "", 0, -1, ProducerIdentity(-1, -1), []),
        ],
    ),
    Case(
        ListTransactionsRequest(),
        66,
        0,
        struct_(array(STRING), array(t.Int64)),
        ([], [], NO_TAGS),
        struct_(t.Int32, t.Int16, array(STRING), array(STRING, t.Int64, STRING)),
        (0, 15, ["Strange"], [("p.0", 7, "Ongoing", NO_TAGS), ("other", 8, "Empty", UNKNOWN_TAG)], NO_TAGS),
        ListedTransactions(15, ["p.0", "other"]),
    ),
]
