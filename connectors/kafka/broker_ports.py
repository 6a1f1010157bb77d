"""Loopback ports for the development broker, and the question whether a broker answers on one.

The question is asked with a Metadata request, written by hand: a Kafka client would retry, log and keep
connections, where a start wants one plain answer at a time. An open port alone proves nothing; a broker that lists
itself is registered and serves.
"""

from __future__ import annotations

import itertools
import random
import socket
import struct
from collections.abc import Iterable

from millstream.processor.errors import UnavailableError

_METADATA = 3
_METADATA_VERSION = 1
_ANSWER_BYTES_MAX = 1 << 20
_PORTS = range(20_000, 32_000)
_CANDIDATES = 1_000


def free_ports(count: int) -> list[int]:
    """`count` different ports that were free a moment ago. Another process may take one before it is used.

    They lie below the range from which the kernel takes the local ports of outgoing connections. From that range a
    client could be given the broker's own port while the broker is down: it would then hold the port against the
    restart, or even be connected with itself.
    """
    # A program's own seed must not decide: two test sessions with one seed would choose the same ports.
    candidates = random.SystemRandom().sample(_PORTS, _CANDIDATES)
    free = list(itertools.islice(filter(_can_bind, candidates), count))
    if len(free) == count:
        return free
    raise UnavailableError(f"no {count} free ports among {_CANDIDATES} tried in {_PORTS.start}-{_PORTS.stop - 1}")


def taken_ports(ports: Iterable[int]) -> list[int]:
    """Those of `ports` that some process listens on, or that may not be bound by this user."""
    return [port for port in ports if not _can_bind(port)]


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        # As Java does it: connections of a broker that was just killed (TIME_WAIT) do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def answers(port: int, *, timeout_s: float) -> bool:
    """Whether a Kafka broker on this port answers a Metadata request and lists at least one live broker."""
    # Header v1: api key, version, correlation id, client id; body: an empty list, which asks for no topic.
    request = struct.pack(">hhih5si", _METADATA, _METADATA_VERSION, 1, 5, b"ready", 0)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(struct.pack(">i", len(request)) + request)
            (length,) = struct.unpack(">i", _read(connection, 4))
            if not 8 <= length <= _ANSWER_BYTES_MAX:
                return False
            correlation_id, brokers = struct.unpack_from(">ii", _read(connection, length))
    except (OSError, EOFError):
        return False
    return bool(correlation_id == 1 and brokers >= 1)


def _read(connection: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        chunk = connection.recv(length - len(received))
        if not chunk:
            raise EOFError
        received += chunk
    return bytes(received)
