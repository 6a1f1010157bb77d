"""Addresses in answers are replaced and nothing else is changed, in every version that clients may ask for."""

from __future__ import annotations

import io
import struct
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.protocol.admin import ApiVersionResponse_v0, ApiVersionResponse_v1
from aiokafka.protocol.coordination import FindCoordinatorResponse_v0, FindCoordinatorResponse_v1
from aiokafka.protocol.metadata import (
    MetadataResponse_v0,
    MetadataResponse_v1,
    MetadataResponse_v3,
    MetadataResponse_v5,
)

from millstream.connectors.kafka.requests import Broker, CoordinatorType, FindCoordinatorRequest, MetadataRequest
from millstream.connectors.kafka.transaction_requests import ProduceAnswer, ProduceRequest
from millstream.connectors.kafka.wire import Reader, Writer
from millstream.loadgen.kafka_addresses import (
    NEWEST,
    Address,
    carries_addresses,
    check_version,
    clamped,
    places,
    replaced,
    topic_names,
    without_endpoints,
)
from millstream.loadgen.kafka_frames import Api, FrameError
from millstream.processor.partitions import TopicPartition

NEW = ("10.231.0.1", 20_001)
A, B = Address(1, "a-broker-with-a-long-name", 9092), Address(2, "b", 9093)
TOPIC = uuid.uuid4()
OLD_HEADER = struct.pack(">i", 5)
HEADER = OLD_HEADER + b"\0"


def body(write: Callable[[Writer], None]) -> bytes:
    writer = Writer()
    write(writer)
    return writer.finish()


def readdressed(api: int, version: int, answer: bytes) -> bytes:
    found = places(api, version, answer)
    return replaced(api, version, answer, found, {place.address: NEW for place in found})


def write_brokers(writer: Writer, *, is_fenced: bool | None = None) -> None:
    writer.array_size(2)
    for broker in (A, B):
        writer.int32(broker.node_id)
        writer.string(broker.host)
        writer.int32(broker.port)
        writer.string("rack")
        if is_fenced is not None:
            writer.boolean(is_fenced)
        writer.no_tags()


def metadata(version: int) -> bytes:
    def write(writer: Writer) -> None:
        writer.int32(0)
        write_brokers(writer)
        writer.string("cluster")
        writer.int32(1)
        writer.array_size(1)
        writer.int16(0)
        writer.string("beats")
        if version >= 10:
            writer.uuid(TOPIC)
        writer.boolean(False)
        writer.array_size(1)
        writer.int16(0)
        for value in (0, 1, 7):
            writer.int32(value)
        for _ in range(3):
            writer.array([1, 2], Writer.int32)
        writer.no_tags()
        writer.int32(0)
        writer.no_tags()
        writer.no_tags()

    return HEADER + body(write)


@pytest.mark.parametrize("version", [9, 10, 12, 13])
def test_metadata_names_the_proxy_and_is_otherwise_the_same(version: int) -> None:
    answer = metadata(version)
    assert {place.address for place in places(Api.METADATA, version, answer)} == {A, B}
    changed = readdressed(Api.METADATA, version, answer)
    assert A.host.encode() not in changed
    restored = replaced(
        Api.METADATA,
        version,
        changed,
        places(Api.METADATA, version, changed),
        {Address(1, *NEW): (A.host, A.port), Address(2, *NEW): (B.host, B.port)},
    )
    assert restored == answer


def test_our_own_client_reads_the_proxy_in_place_of_the_brokers() -> None:
    reader = Reader(readdressed(Api.METADATA, 12, metadata(12))[len(HEADER) :])
    view = MetadataRequest(["beats"]).read(reader)
    assert view.brokers == {1: Broker(1, *NEW), 2: Broker(2, *NEW)}
    assert view.topics["beats"].partitions[0].leader == 1


def test_topic_ids_are_learnt_from_metadata() -> None:
    assert topic_names(12, metadata(12)) == {TOPIC.bytes: "beats"}
    assert topic_names(9, metadata(9)) == {}


PARTITION = (0, 0, 1, [1, 2], [1])
OLD_METADATA: list[tuple[int, Any]] = [
    (0, MetadataResponse_v0([(1, "a", 9092), (2, "b", 9093)], [(0, "t", [PARTITION])])),
    (1, MetadataResponse_v1([(1, "a", 9092, None), (2, "b", 9093, "r")], 1, [(0, "t", False, [PARTITION])])),
    (3, MetadataResponse_v3(0, [(1, "a", 9092, None)], "cluster", 1, [(0, "t", False, [PARTITION])])),
    (5, MetadataResponse_v5(0, [(1, "a", 9092, None)], "cluster", 1, [(0, "t", False, [(*PARTITION, [])])])),
]


@pytest.mark.parametrize(("version", "answer"), OLD_METADATA)
def test_metadata_of_older_versions_names_the_proxy(version: int, answer: Any) -> None:
    changed = readdressed(Api.METADATA, version, OLD_HEADER + answer.encode())
    read = type(answer).decode(io.BytesIO(changed[len(OLD_HEADER) :]))
    assert [(node, host, port) for node, host, port, *_ in read.brokers] == [
        (node, *NEW) for node, *_ in answer.brokers
    ]
    assert read.topics == answer.topics


@pytest.mark.parametrize(
    ("version", "answer"),
    [(0, FindCoordinatorResponse_v0(0, 1, "a", 9092)), (1, FindCoordinatorResponse_v1(0, 0, None, 1, "a", 9092))],
)
def test_a_coordinator_of_older_versions_is_the_proxy(version: int, answer: Any) -> None:
    changed = readdressed(Api.FIND_COORDINATOR, version, OLD_HEADER + answer.encode())
    read = type(answer).decode(io.BytesIO(changed[len(OLD_HEADER) :]))
    assert (read.error_code, read.coordinator_id, read.host, read.port) == (0, 1, *NEW)


def test_a_coordinator_is_the_proxy() -> None:
    def write(writer: Writer) -> None:
        writer.int32(0)
        writer.array_size(1)
        writer.string("p.0")
        writer.int32(1)
        writer.string("broker")
        writer.int32(9092)
        writer.int16(0)
        writer.string(None)
        writer.no_tags()
        writer.no_tags()

    changed = readdressed(Api.FIND_COORDINATOR, 4, HEADER + body(write))
    found = FindCoordinatorRequest(CoordinatorType.TRANSACTION, "p.0").read(Reader(changed[len(HEADER) :]))
    assert found.node == Broker(1, *NEW)


def test_that_there_is_no_coordinator_is_no_address() -> None:
    answer = OLD_HEADER + FindCoordinatorResponse_v0(15, -1, "", -1).encode()
    assert readdressed(Api.FIND_COORDINATOR, 0, answer) == answer


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_described_cluster_names_the_proxy(version: int) -> None:
    def write(writer: Writer) -> None:
        writer.int32(0)
        writer.int16(0)
        writer.string(None)
        if version >= 1:
            writer.int8(1)
        writer.string("cluster")
        writer.int32(1)
        write_brokers(writer, is_fenced=True if version >= 2 else None)
        writer.int32(0)
        writer.no_tags()

    answer = HEADER + body(write)
    assert {place.address for place in places(Api.DESCRIBE_CLUSTER, version, answer)} == {A, B}
    assert {(p.address.host, p.address.port) for p in places(60, version, readdressed(60, version, answer))} == {NEW}


def produce_answer(version: int, tags: bytes) -> bytes:
    def write(writer: Writer) -> None:
        writer.array_size(1)
        if version >= 13:
            writer.uuid(TOPIC)
        else:
            writer.string("orders")
        writer.array_size(1)
        writer.int32(3)
        writer.int16(6)
        for value in (-1, -1, 0):
            writer.int64(value)
        writer.array_size(1)
        writer.int32(0)
        writer.string("bad")
        writer.no_tags()
        writer.string("moved")
        # The leader that the broker knows of: tag 0 of a partition.
        writer.unsigned_varint(1)
        writer.unsigned_varint(0)
        writer.unsigned_varint(4)
        writer.int32(2)
        writer.no_tags()
        writer.int32(0)

    return HEADER + body(write) + tags


@pytest.mark.parametrize("version", [10, 12, 13])
def test_a_produce_answer_loses_its_hint_at_addresses_and_nothing_else(version: int) -> None:
    hint = b"\x01\x00\x07address"
    assert without_endpoints(version, produce_answer(version, hint)) == produce_answer(version, b"\0")
    assert without_endpoints(version, produce_answer(version, b"\0")) == produce_answer(version, b"\0")


def test_our_own_client_reads_a_produce_answer_without_its_hint() -> None:
    changed = without_endpoints(12, produce_answer(12, b"\x01\x00\x07address"))
    asked = ProduceRequest(None, {TopicPartition("orders", 3): b"x"}, 1)
    assert asked.read(Reader(changed[len(HEADER) :])) == [ProduceAnswer(TopicPartition("orders", 3), 6, "moved")]


def test_nothing_newer_is_offered_than_can_be_read() -> None:
    offered = [(0, 0, 20), (1, 4, 18), (3, 0, 13), (18, 0, 4), (55, 0, 2), (78, 1, 2)]
    v0 = clamped(0, OLD_HEADER + ApiVersionResponse_v0(0, offered).encode())
    expected = [(0, 0, NEWEST[Api.PRODUCE]), (1, 4, NEWEST[Api.FETCH]), (3, 0, 13), (18, 0, 4), (55, 0, 1), (78, 1, 2)]
    assert ApiVersionResponse_v0.decode(io.BytesIO(v0[4:])).api_versions == expected
    v1 = clamped(1, OLD_HEADER + ApiVersionResponse_v1(0, offered, 99).encode())
    assert ApiVersionResponse_v1.decode(io.BytesIO(v1[4:])).api_versions == expected
    # A version that the broker does not speak is answered in the oldest form.
    refused = clamped(4, OLD_HEADER + ApiVersionResponse_v0(35, offered).encode())
    assert ApiVersionResponse_v0.decode(io.BytesIO(refused[4:])).api_versions == expected


def test_a_compact_offer_is_lowered_in_place() -> None:
    def write(newest: int) -> bytes:
        def write_all(writer: Writer) -> None:
            writer.int16(0)
            writer.array_size(2)
            for api, most in ((1, newest), (18, 4)):
                for value in (api, 4, most):
                    writer.int16(value)
                writer.no_tags()
            writer.int32(0)
            writer.no_tags()

        return OLD_HEADER + body(write_all)

    assert clamped(3, write(18)) == write(NEWEST[Api.FETCH])


@pytest.mark.parametrize(("api", "version"), [(0, 14), (1, 16), (3, 14), (10, 7), (60, 3), (55, 2), (78, 1), (93, 0)])
def test_a_version_whose_addresses_could_leak_is_refused(api: int, version: int) -> None:
    with pytest.raises(FrameError, match=rf"request {api} version {version} may carry.*kafka_addresses\.py"):
        check_version(api, version)


@pytest.mark.parametrize(("api", "version"), [(0, 13), (1, 13), (3, 12), (10, 4), (26, 99), (22, 6)])
def test_what_can_be_read_or_carries_no_address_is_let_through(api: int, version: int) -> None:
    check_version(api, version)


def test_only_kinds_that_carry_addresses_are_looked_at() -> None:
    assert [api for api in Api if carries_addresses(api)] == [Api.METADATA, Api.FIND_COORDINATOR, Api.DESCRIBE_CLUSTER]


def test_an_answer_cut_short_within_its_addresses_is_refused() -> None:
    answer = metadata(12)
    end = places(Api.METADATA, 12, answer)[-1].end
    for size in range(4, end):
        with pytest.raises(FrameError):
            places(Api.METADATA, 12, answer[:size])
