"""Three development brokers, without starting one: what each is told, and what is asked of them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.connectors.kafka.broker_properties import ClusterPlace, server_properties
from millstream.connectors.kafka.broker_questions import ControllerRequest, Placement, ViewRequest, answers, ask
from millstream.connectors.kafka.development_cluster import DevelopmentCluster
from millstream.connectors.kafka.wire import Writer
from millstream.processor.errors import MillstreamError, SettingsError, UnavailableError

PLACE = ClusterPlace(node_id=2, cluster_id="c", port=20_012, controller_ports={3: 20_003, 1: 20_001, 2: 20_002})


def told(place: ClusterPlace | None) -> dict[str, str]:
    ports = place.ports if place else {"PLAINTEXT": 20_012, "CONTROLLER": 20_002}
    return server_properties(log_directory=Path("/data"), ports=ports, place=place)


def test_a_node_knows_all_controllers_and_listens_on_its_own_ports() -> None:
    properties = told(PLACE)
    assert properties["node.id"] == "2"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:20001,2@127.0.0.1:20002,3@127.0.0.1:20003"
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:20012,CONTROLLER://127.0.0.1:20002"
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20012"


def test_several_nodes_replicate_and_keep_kafkas_timeouts() -> None:
    properties = told(PLACE)
    assert properties["default.replication.factor"] == "3"
    assert properties["min.insync.replicas"] == "2"
    # What is not set is Kafka's default: three replicas of the internal topics, and every timeout.
    assert not [name for name in properties if name.endswith("topic.replication.factor") or "min.isr" in name]
    assert {name for name in properties if name.endswith(".ms")} == {"group.initial.rebalance.delay.ms"}


def test_one_node_has_one_replica_of_everything_and_restarts_fast() -> None:
    properties = told(None)
    factors = {name: value for name, value in properties.items() if "replication.factor" in name or "min.isr" in name}
    assert set(factors.values()) == {"1"}
    assert len(factors) == 5
    assert properties["broker.session.timeout.ms"] == "2000"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:20002"


@contextlib.contextmanager
def a_server(answer: bytes) -> Iterator[int]:
    """Answers one connection with these bytes, whatever it is asked; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


def framed(body: Writer, correlation_id: int = 1) -> bytes:
    raw = struct.pack(">i", correlation_id) + b"\x00" + body.finish()
    return struct.pack(">i", len(raw)) + raw


def a_view(port: int) -> Writer:
    writer = Writer()
    writer.int32(0)
    writer.array([(1, port), (2, 5)], _write_broker)
    writer.string("cluster")
    writer.int32(1)
    writer.array(["orders"], _write_topic)
    writer.no_tags()
    return writer


def _write_broker(writer: Writer, broker: tuple[int, int]) -> None:
    writer.int32(broker[0])
    writer.string("127.0.0.1")
    writer.int32(broker[1])
    writer.string(None)
    writer.no_tags()


def _write_topic(writer: Writer, name: str) -> None:
    writer.int16(0)
    writer.string(name)
    for _ in range(2):
        writer.int64(7)  # the topic's id
    writer.boolean(False)
    writer.array([0], _write_partition)
    writer.int32(0)
    writer.no_tags()


def _write_partition(writer: Writer, index: int) -> None:
    writer.int16(0)
    writer.int32(index)
    writer.int32(2)
    writer.int32(9)
    for nodes in ([1, 2, 3], [2, 3], [1]):
        writer.array(nodes, Writer.int32)
    writer.no_tags()


def test_a_view_has_nodes_and_placements() -> None:
    with a_server(framed(a_view(77))) as port:
        view = ask(port, ViewRequest(["orders"]), timeout_s=5)
    assert view.ports == {1: 77, 2: 5}
    assert view.topics == {"orders": {0: Placement(2, (1, 2, 3), (2, 3))}}


def test_the_active_controller_is_read_from_the_quorum() -> None:
    writer = Writer()
    writer.int16(0)

    def write_replica(writer: Writer, node_id: int) -> None:
        writer.int32(node_id)
        writer.int64(100)
        writer.no_tags()

    def write_partition(writer: Writer, leader: int) -> None:
        writer.int32(0)
        writer.int16(0)
        writer.int32(leader)
        writer.int32(4)
        writer.int64(100)
        writer.array([1, 2, 3], write_replica)
        writer.array([], write_replica)
        writer.no_tags()

    def write_topic(writer: Writer, leader: int) -> None:
        writer.string("__cluster_metadata")
        writer.array([leader], write_partition)
        writer.no_tags()

    writer.array([3], write_topic)
    writer.no_tags()
    with a_server(framed(writer)) as port:
        assert ask(port, ControllerRequest(), timeout_s=5) == 3


def test_a_broker_answers_only_once_it_lists_itself() -> None:
    with a_server(framed(a_view(77))) as port:
        assert not answers(port, timeout_s=5)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert not answers(port, timeout_s=5)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x00\x00\x04\x00",
        struct.pack(">i", -1),
        framed(Writer()),
        framed(a_view(1), correlation_id=2),
    ],
)
def test_what_is_no_answer_is_said_to_be_none(answer: bytes) -> None:
    with a_server(answer) as port, pytest.raises(UnavailableError, match=rf"ViewRequest to 127\.0\.0\.1:{port}"):
        ask(port, ViewRequest(None), timeout_s=5)


def test_a_cluster_that_was_not_started_says_so() -> None:
    cluster = DevelopmentCluster()
    assert not cluster.is_running
    with pytest.raises(MillstreamError, match="no node 1; it has none before its start"):
        cluster.kill(1)
    with pytest.raises(UnavailableError, match="no node of the development cluster runs"):
        cluster.leader("orders", 0)
    cluster.stop()


def test_three_ports_in_a_row_must_exist() -> None:
    with pytest.raises(SettingsError, match="port 65536"):
        DevelopmentCluster(port=65_534)


def test_the_mistakes_of_a_nodes_settings_are_told() -> None:
    with pytest.raises(SettingsError, match="heap_mb 1 is below"):
        DevelopmentCluster(heap_mb=1)
