"""A connected socket as a stream of messages, for either side; descriptors go with the first ones."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from millstream.gpu_offload.protocol import FRAME_BYTES_MAX, Frames, Hello, Message, ProtocolError, frame

_HELLO_BYTES_MAX: Final = 4096


class FramedSocket(asyncio.Protocol):
    """Calls `heard` for each message as it comes, and `lost` once, with the reason, at the connection's end."""

    def __init__(self, heard: Callable[[Any], None], lost: Callable[[str], None]) -> None:
        self._heard = heard
        self._lost = lost
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._trouble: str | None = None

    @classmethod
    async def over(cls, end: socket.socket, heard: Callable[[Any], None], lost: Callable[[str], None]) -> FramedSocket:
        """One that owns the connected socket `end` from now on."""
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_unix_connection(lambda: cls(heard, lost), sock=end)
        return protocol

    def send(self, message: Message) -> None:
        """Send at once; nothing happens where the other end is gone. One that does not read is given up."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > FRAME_BYTES_MAX:
            self._give_up("the other end does not read")
            return
        self._transport.write(frame(message))

    def close(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._heard(message)
        except ProtocolError as error:
            self._give_up(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self._trouble or (str(exc) if exc else "the connection ended"))

    def _give_up(self, trouble: str) -> None:
        self._trouble = self._trouble or trouble
        self.close()


def send_hello(end: socket.socket, hello: Hello, descriptor: int) -> None:
    """Send the first message with the memory's descriptor. Raises OSError."""
    socket.send_fds(end, [frame(hello)], [descriptor])


async def receive_hello(end: socket.socket) -> tuple[Hello, int]:
    """The first message, and a descriptor that the caller closes. Raises ProtocolError, OSError."""
    await _readable(end)
    data, descriptors, _, _ = socket.recv_fds(end, _HELLO_BYTES_MAX, 1)
    try:
        messages = list(Frames().feed(data))
        if len(messages) != 1 or not isinstance(messages[0], Hello) or len(descriptors) != 1:
            raise ProtocolError("the first message is no greeting with a descriptor")
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return messages[0], descriptors[0]


async def _readable(end: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = loop.create_future()

    def wake() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(end, wake)
    try:
        await readable
    finally:
        loop.remove_reader(end)
