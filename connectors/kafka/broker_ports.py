"""Loopback ports for the development broker: free ones, and which of some are taken."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Iterable

from millstream.processor.errors import UnavailableError

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
