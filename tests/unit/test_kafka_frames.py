"""What the fault proxy reads of requests: those of our own client, and older versions, written by aiokafka."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest_v4, FetchRequest_v11
from aiokafka.protocol.produce import ProduceRequest_v3, ProduceRequest_v8
from aiokafka.protocol.transaction import InitProducerIdRequest_v0
from fake_kafka import fetch, frame

from millstream.connectors.kafka.requests import MetadataRequest
from millstream.connectors.kafka.transaction_requests import (
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    ProducerIdentity,
    TxnOffsetCommitRequest,
)
from millstream.loadgen.kafka_frames import FrameError, Request, read_request, topics, transactional_id
from millstream.processor.partitions import TopicPartition

BEATS, ORDERS = uuid.uuid4(), uuid.uuid4()
NAMES = {BEATS.bytes: "beats", ORDERS.bytes: "orders"}
OURS = ProducerIdentity(7, 1)


def old_frame(request: Any) -> Request:
    """A request of a version from before tagged fields."""
    header = struct.pack(">hhi", request.API_KEY, request.API_VERSION, 5) + struct.pack(">h", 1) + b"c"
    data = header + request.encode()
    return read_request(data, len(data))


def test_a_header_is_read() -> None:
    request = frame(MetadataRequest(["a"]))
    assert (request.api, request.version, request.correlation_id, request.is_whole) == (3, 12, 5, True)


def test_a_frame_that_is_shorter_than_a_header_is_refused() -> None:
    with pytest.raises(FrameError, match="shorter than its header"):
        read_request(b"\0\0\0", 3)


def test_the_topics_of_a_produce_are_found() -> None:
    batches = {TopicPartition("beats", 0): b"x" * 300, TopicPartition("orders", 3): b"y"}
    assert topics(frame(ProduceRequest("p.0", batches, 1000)), {}) == {"beats", "orders"}


def test_of_a_produce_whose_rest_is_missing_the_first_topics_are_found() -> None:
    batches = {TopicPartition("beats", 0): b"x" * 300, TopicPartition("orders", 3): b"y"}
    assert topics(frame(ProduceRequest(None, batches, 1000), head=100), {}) == {"beats"}


def test_the_topics_of_a_fetch_are_looked_up_by_their_ids() -> None:
    assert topics(frame(fetch(BEATS, ORDERS)), NAMES) == {"beats", "orders"}
    with pytest.raises(FrameError, match="in no Metadata answer"):
        topics(frame(fetch(BEATS, uuid.uuid4())), NAMES)


def test_the_topics_of_older_versions_are_found() -> None:
    produced = [("beats", [(0, b"x")]), ("orders", [(1, b"y"), (2, b"z")])]
    for version in (ProduceRequest_v3, ProduceRequest_v8):
        request = old_frame(version("t", -1, 1000, produced))
        assert topics(request, {}) == {"beats", "orders"}
        assert transactional_id(request) == "t"
    v4 = FetchRequest_v4(-1, 20, 1, 1000, 1, [("beats", [(0, 10, 1000), (1, 10, 1000)]), ("orders", [(0, 1, 9)])])
    v11 = FetchRequest_v11(-1, 20, 1, 1000, 1, 0, -1, [("beats", [(0, -1, 10, -1, 1000)])], [], "")
    assert topics(old_frame(v4), {}) == {"beats", "orders"}
    assert topics(old_frame(v11), {}) == {"beats"}


def test_a_fetch_session_is_refused_where_topics_matter() -> None:
    request = old_frame(FetchRequest_v11(-1, 20, 1, 1000, 1, 77, 3, [], [], ""))
    with pytest.raises(FrameError, match="session epoch 3"):
        topics(request, {})


@pytest.mark.parametrize("api", [0, 1])
def test_a_version_that_is_not_described_is_refused_where_topics_matter(api: int) -> None:
    data = struct.pack(">hhih", api, 90, 5, 0) + bytes(50)
    with pytest.raises(FrameError, match=r"version 90 cannot be looked into.*kafka_frames\.py"):
        topics(read_request(data, len(data)), {})


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (ProduceRequest("p.3", {TopicPartition("a", 0): b"x"}, 1), "p.3"),
        (ProduceRequest(None, {TopicPartition("a", 0): b"x"}, 1), None),
        (InitProducerIdRequest("p.3", 1000), "p.3"),
        (InitProducerIdRequest(None, 1000), None),
        (TxnOffsetCommitRequest("p.3", "group", OURS, {}), "p.3"),
        (EndTxnRequest("p.3", OURS), "p.3"),
        (MetadataRequest(["p.3"]), None),
        (fetch(BEATS), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_transactional_id_is_found_where_there_is_one(request_: Any, expected: str | None) -> None:
    assert transactional_id(frame(request_)) == expected


def test_a_transactional_id_of_an_older_version_is_found() -> None:
    assert transactional_id(old_frame(InitProducerIdRequest_v0("old", 1000))) == "old"


def test_a_whole_frame_that_lies_about_its_lengths_is_refused() -> None:
    whole = frame(ProduceRequest("p.0", {TopicPartition("beats", 0): b"x" * 300}, 1000)).head
    for size in range(12, len(whole) - 1):
        with pytest.raises(FrameError):
            topics(read_request(whole[:size], size), {})
