"""`millstream broker` tells where it is and ends in order on a signal."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.connectors.kafka.broker_questions import answers

pytestmark = pytest.mark.broker

COMMAND = [sys.executable, "-c", "from millstream.processor.cli import main; raise SystemExit(main())", "broker"]


@pytest.mark.parametrize("order", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_broker_in_order(order: signal.Signals) -> None:
    with subprocess.Popen([*COMMAND, "--heap-mb", "256"], stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            address = program.stdout.readline().split()[-1]
            data = Path(program.stdout.readline().split()[1])
            port = int(address.rpartition(":")[2])
            assert answers(port, timeout_s=5)
            assert data.exists()

            program.send_signal(order)
            assert program.wait(timeout=30) == 0
            assert not answers(port, timeout_s=5)
            assert not data.exists()
        finally:
            program.kill()


@pytest.mark.timeout(180)
def test_three_nodes_are_announced_each_and_a_lost_one_is_told() -> None:
    with subprocess.Popen([*COMMAND, "--nodes", "3"], stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            addresses = program.stdout.readline().split()[-1].split(",")
            nodes = [program.stdout.readline().strip() for _ in addresses]
            processes = [int(re.search(r"process (\d+)", node)[1]) for node in nodes]  # type: ignore[index]
            directories = [Path(re.search(r"data (\S+)", node)[1]) for node in nodes]  # type: ignore[index]
            assert len(addresses) == len(set(processes)) == 3
            assert all(answers(int(address.rpartition(":")[2]), timeout_s=5) for address in addresses)
            assert [program.stdout.readline().split()[0] for _ in range(2)] == ["use:", "stop:"]

            os.kill(processes[1], signal.SIGKILL)
            assert program.stdout.readline() == "Node 2 has ended; the others go on\n"
            program.send_signal(signal.SIGTERM)
            assert program.wait(timeout=60) == 0
            assert not any(directory.exists() for directory in directories)
        finally:
            program.kill()


def test_a_taken_port_is_the_users_to_mend(unused_tcp_port: int) -> None:
    with socket.create_server(("127.0.0.1", unused_tcp_port)):
        result = subprocess.run([*COMMAND, "--port", str(unused_tcp_port)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert str(unused_tcp_port) in result.stderr
    assert "Traceback" not in result.stderr
