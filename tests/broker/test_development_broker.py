"""The development broker is a real Kafka: it starts, survives a crash with its data, and never outlives its program."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.connectors.kafka.broker_ports import free_ports
from millstream.connectors.kafka.development_broker import DevelopmentBroker, new_cluster_id
from millstream.connectors.kafka.pytest_broker import Broker
from millstream.processor.errors import SettingsError, UnavailableError

pytestmark = pytest.mark.broker

WAIT_S = 30
STARTS_AND_PRINTS = """
import sys, time
from pathlib import Path
from millstream.connectors.kafka.development_broker import DevelopmentBroker
broker = DevelopmentBroker(heap_mb=256)
broker.start()
print(broker.pid, broker.data_directory, flush=True)
time.sleep(60)
"""


def write_one_record(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WAIT_S)
    errors = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    producer.produce(topic, value=b"kept", partition=0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(WAIT_S)
    assert errors == [None]


def read_one_record(bootstrap: str, topic: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-reader"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.fixture
def small_broker() -> Iterator[DevelopmentBroker]:
    broker = DevelopmentBroker(heap_mb=256)
    yield broker
    broker.stop()


def test_session_broker_answers_a_client_of_another_make(broker: Broker, unique: Callable[[str], str]) -> None:
    topic = unique("topic")
    write_one_record(broker.bootstrap, topic)
    assert read_one_record(broker.bootstrap, topic) == b"kept"


def test_killed_broker_restarts_on_its_port_with_its_data_and_stops_without_a_trace(
    small_broker: DevelopmentBroker,
) -> None:
    small_broker.start()
    bootstrap = small_broker.bootstrap
    write_one_record(bootstrap, "kept")
    small_broker.kill()
    assert small_broker.pid is None

    small_broker.start()
    assert small_broker.bootstrap == bootstrap
    assert read_one_record(bootstrap, "kept") == b"kept"

    pid, directory = small_broker.pid, small_broker.data_directory
    assert pid is not None
    small_broker.stop()
    assert not psutil.pid_exists(pid)
    assert not directory.exists()


def test_a_named_data_directory_outlives_an_orderly_stop(tmp_path: Path) -> None:
    broker = DevelopmentBroker(data_directory=tmp_path, heap_mb=256)
    with broker:
        write_one_record(broker.bootstrap, "kept")
    with DevelopmentBroker(data_directory=tmp_path, heap_mb=256) as another:
        assert read_one_record(another.bootstrap, "kept") == b"kept"


def test_broker_and_its_directory_are_gone_after_the_program_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS_AND_PRINTS], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pid, directory = program.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
        program.send_signal(signal.SIGKILL)
    assert eventually(lambda: not psutil.pid_exists(int(pid)))
    assert eventually(lambda: not Path(directory).exists())


def test_broker_dies_with_its_supervisor(small_broker: DevelopmentBroker) -> None:
    small_broker.start()
    assert small_broker.pid is not None
    java = psutil.Process(small_broker.pid)
    supervisor = java.parent()
    assert supervisor is not None
    assert supervisor.ppid() == os.getpid()
    supervisor.kill()
    assert eventually(lambda: not java.is_running())


def test_a_taken_port_is_reported_with_its_number() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"port {port} .* is taken"):
            DevelopmentBroker(port=port).start()


def test_a_broker_that_cannot_start_reports_the_end_of_its_log() -> None:
    refused = DevelopmentBroker(heap_mb=256, properties={"log.retention.hours": "soon"})
    with pytest.raises(UnavailableError, match=r"log\.retention\.hours"):
        refused.start()
    assert refused.pid is None


def test_all_mistakes_in_the_settings_are_reported_together() -> None:
    with pytest.raises(SettingsError) as caught:
        DevelopmentBroker(port=99_999, heap_mb=1)
    assert len(caught.value.mistakes) == 2


def test_free_ports_differ() -> None:
    assert len(set(free_ports(8))) == 8


def test_a_cluster_id_never_reads_as_a_flag() -> None:
    ids = [new_cluster_id() for _ in range(1_000)]
    assert len(set(ids)) == len(ids)
    assert not any(each.startswith("-") for each in ids)
    assert {len(each) for each in ids} == {22}
