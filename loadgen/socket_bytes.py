"""What a process has sent and received over TCP, as the kernel counts it for each open connection. Needs Linux."""

from __future__ import annotations

import os
import socket
import stat
import struct

import msgspec

# struct tcp_info in linux/tcp.h: bytes_acked and bytes_received, then segs_out and segs_in.
_BYTES = struct.Struct("=120xQQII")


class SocketBytes(msgspec.Struct, frozen=True):
    """Payload bytes that have arrived at the other side, payload bytes received, and packets either way.

    Those of connections that are closed are gone with them.
    """

    sent: int = 0
    received: int = 0
    packets_sent: int = 0
    packets_received: int = 0

    def __add__(self, other: SocketBytes) -> SocketBytes:
        return SocketBytes(
            self.sent + other.sent,
            self.received + other.received,
            self.packets_sent + other.packets_sent,
            self.packets_received + other.packets_received,
        )

    def __sub__(self, other: SocketBytes) -> SocketBytes:
        return SocketBytes(
            self.sent - other.sent,
            self.received - other.received,
            self.packets_sent - other.packets_sent,
            self.packets_received - other.packets_received,
        )


def socket_bytes() -> SocketBytes:
    """Over all TCP connections that this process has open now."""
    total = SocketBytes()
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            total += _of(int(name))
        except OSError:
            # It was closed meanwhile (the listing's own is among them), or is no TCP connection.
            continue
    return total


def _of(descriptor: int) -> SocketBytes:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.type != socket.SOCK_STREAM:
            return SocketBytes()
        return SocketBytes(*_BYTES.unpack(copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES.size)))
