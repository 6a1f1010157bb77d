"""`millstream broker` tells where it is and ends in order on a signal."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.connectors.kafka.broker_ports import answers

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


def test_a_taken_port_is_the_users_to_mend(unused_tcp_port: int) -> None:
    with socket.create_server(("127.0.0.1", unused_tcp_port)):
        result = subprocess.run([*COMMAND, "--port", str(unused_tcp_port)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert str(unused_tcp_port) in result.stderr
    assert "Traceback" not in result.stderr
