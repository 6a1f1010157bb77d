"""What a broker of a development cluster says now: who is there, who leads, who coordinates.

A Kafka client would retry, remember answers and turn to another broker. A fault test wants to know what one broker
says at this moment, so that it can hit exactly the node that matters: a connection for each question, no second try.
"""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from millstream.connectors.kafka.requests import Request
from millstream.connectors.kafka.wire import ProtocolError, Reader, Writer
from millstream.processor.errors import UnavailableError

R = TypeVar("R")

_ANSWER_BYTES_MAX = 1 << 20
_METADATA_TOPIC = "__cluster_metadata"
_CORRELATION_ID = 1


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one partition lives, by node ids; `leader` is -1 while it has none."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One broker's view: the ports of the live nodes by id, and each topic's partitions."""

    ports: Mapping[int, int]
    topics: Mapping[str, Mapping[int, Placement]]


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """Metadata v12 of these topics, of all for None; with the replicas, which a client of the pipeline never needs."""

    topics: Sequence[str] | None

    API_KEY: ClassVar[int] = 3
    API_VERSION: ClassVar[int] = 12

    def write(self, writer: Writer) -> None:
        if self.topics is None:
            writer.array_size(None)
        else:
            writer.array(self.topics, _write_topic)
        writer.boolean(False)  # allow auto creation
        writer.boolean(False)  # include authorized operations
        writer.no_tags()

    def read(self, reader: Reader) -> ClusterView:
        reader.int32()
        ports = dict(reader.array(_read_port))
        reader.nullable_string()
        reader.int32()
        return ClusterView(ports, dict(reader.array(_read_topic)))


def _write_topic(writer: Writer, name: str) -> None:
    writer.uuid(uuid.UUID(int=0))
    writer.string(name)
    writer.no_tags()


def _read_port(reader: Reader) -> tuple[int, int]:
    node_id = reader.int32()
    reader.string()
    port = reader.int32()
    reader.nullable_string()
    reader.skip_tags()
    return node_id, port


def _read_topic(reader: Reader) -> tuple[str, Mapping[int, Placement]]:
    reader.int16()
    name = reader.nullable_string() or ""
    reader.uuid()
    reader.boolean()
    partitions = dict(reader.array(_read_partition))
    reader.int32()
    reader.skip_tags()
    return name, partitions


def _read_partition(reader: Reader) -> tuple[int, Placement]:
    reader.int16()
    index = reader.int32()
    leader = reader.int32()
    reader.int32()
    replicas, in_sync, _ = (tuple(reader.array(Reader.int32)) for _ in range(3))
    reader.skip_tags()
    return index, Placement(leader, replicas, in_sync)


@dataclass(frozen=True, slots=True)
class ControllerRequest:
    """DescribeQuorum v0: the active controller's node id, -1 during an election. Metadata names any node instead."""

    API_KEY: ClassVar[int] = 55
    API_VERSION: ClassVar[int] = 0

    def write(self, writer: Writer) -> None:
        writer.array([_METADATA_TOPIC], _write_quorum_topic)
        writer.no_tags()

    def read(self, reader: Reader) -> int:
        reader.int16()
        return reader.only(_read_quorum_topic)


def _write_quorum_topic(writer: Writer, name: str) -> None:
    writer.string(name)
    writer.array([0], _write_quorum_partition)
    writer.no_tags()


def _write_quorum_partition(writer: Writer, index: int) -> None:
    writer.int32(index)
    writer.no_tags()


def _read_quorum_topic(reader: Reader) -> int:
    reader.string()
    leader = reader.only(_read_quorum_partition)
    reader.skip_tags()
    return leader


def _read_quorum_partition(reader: Reader) -> int:
    reader.int32()
    reader.int16()
    leader = reader.int32()
    reader.int32()
    reader.int64()
    for _ in range(2):  # voters, observers
        reader.array(_skip_replica)
    reader.skip_tags()
    return leader


def _skip_replica(reader: Reader) -> None:
    reader.int32()
    reader.int64()
    reader.skip_tags()


def ask(port: int, request: Request[R], *, timeout_s: float) -> R:
    """One question to the broker on this port of 127.0.0.1, each of its steps bounded by `timeout_s`.

    Raises `UnavailableError` where nothing answers, or something else than a Kafka broker does.
    """
    what = f"{type(request).__name__} to 127.0.0.1:{port}"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(_framed(request))
            (length,) = struct.unpack(">i", _receive(connection, 4))
            if not 0 <= length <= _ANSWER_BYTES_MAX:
                raise ProtocolError(f"an answer of {length} bytes")
            reader = Reader(_receive(connection, length))
        if reader.int32() != _CORRELATION_ID:
            raise ProtocolError("an answer to another question")
        reader.skip_tags()
        return request.read(reader)
    except (OSError, EOFError, ProtocolError) as error:
        raise UnavailableError(f"no answer of {what}: {error or type(error).__name__}") from error


def _framed(request: Request[object]) -> bytes:
    writer = Writer()
    writer.int16(request.API_KEY)
    writer.int16(request.API_VERSION)
    writer.int32(_CORRELATION_ID)
    writer.plain_string("millstream-broker")
    writer.no_tags()
    request.write(writer)
    raw = writer.finish()
    return struct.pack(">i", len(raw)) + raw


def _receive(connection: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        chunk = connection.recv(length - len(received))
        if not chunk:
            raise EOFError("the connection was closed")
        received += chunk
    return bytes(received)


def answers(port: int, *, timeout_s: float) -> bool:
    """Whether the broker on this port answers and lists itself.

    An open port alone proves nothing; a broker that lists itself is registered and serves.
    """
    try:
        return port in ask(port, ViewRequest([]), timeout_s=timeout_s).ports.values()
    except UnavailableError:
        return False
