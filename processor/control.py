"""What an agent and its worker processes say to each other, and the channel that they say it on.

A frame is one byte of protocol version, four bytes of length, and a JSON message with its type in it. Frames are
small and rare (five a second for each worker), so that being able to read them counts for more than their size.
The channel also carries what must not be seen in a process list: the arguments with the user's credentials.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
from enum import Enum
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from millstream.processor.counts import Counts
from millstream.processor.errors import MillstreamError
from millstream.processor.measures import Measures, ProcessUse
from millstream.processor.shard_host import DeviceNews, HostEvent
from millstream.processor.stalled import Stalled, WatchPlan

PROTOCOL: Final = 1
FRAME_BYTES_MAX: Final = 1 << 20
# What may wait for a peer that does not read. Beyond it the peer is not slow but stuck.
BACKLOG_BYTES_MAX: Final = 1 << 20
# A worker that gets it writes to stderr where the code of all its threads is.
STACK_SIGNAL: Final = signal.SIGUSR2
_HEADER: Final = struct.Struct("!BI")


class ControlError(MillstreamError):
    """The other end of a control channel says what cannot be understood, or does not listen."""


class Start(msgspec.Struct, frozen=True, tag="start"):
    """The agent's first words: who the worker is, and how to make its host.

    The host is what `factory` (`module:function`), called with `arguments` by keyword, answers.
    """

    worker: int
    incarnation: int
    factory: str
    arguments: dict[str, Any]
    drain_timeout_s: float
    log_level: str


class Assign(msgspec.Struct, frozen=True, tag="assign"):
    """All shards that the worker shall own from now on, at which of their batches workers hung, and by shard the token
    of its ownership."""

    shards: list[int]
    stalls: list[Stalled] = []
    tokens: dict[int, int] = {}


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Commit what is in hand within the bound, release everything, and exit."""

    timeout_s: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The worker's host is prepared and waits for shards."""

    pipeline: str
    shards: int
    watch_plan: WatchPlan = msgspec.field(default_factory=WatchPlan)
    requires_device: bool = False


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How far the worker is; sent a few times a second, and once more before it exits.

    `counts`, `measures` and `use` are those of this incarnation. `loop_lag_ms` is how late the event loop was at worst
    since the last one.
    """

    counts: Counts
    loop_lag_ms: float
    measures: Measures = msgspec.field(default_factory=Measures)
    use: ProcessUse = msgspec.field(default_factory=ProcessUse)


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """The worker was told to end by somebody else: it drains and wants no new shards."""


class ShardFinished(msgspec.Struct, frozen=True, tag="shard-finished"):
    """The run has an end, and the shard has reached it: nobody needs to run it any more."""

    shard: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The run has an end, and all shards of this worker have reached it; the worker exits."""


class Trouble(Enum):
    """Whether starting the worker anew can help: never, perhaps, or as soon as the world outside is well again."""

    FINAL = "final"
    DEFECT = "defect"
    WORLD = "world"


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The worker gives up; `text` is for the user, and `exit_code` is the node's where the trouble is final."""

    trouble: Trouble
    text: str
    exit_code: int = 1


ToWorker: TypeAlias = Start | Assign | Stop | DeviceNews
ToAgent: TypeAlias = Ready | Progress | Leaving | ShardFinished | Done | Failed | HostEvent
Incoming = TypeVar("Incoming")

TO_WORKER: Final[msgspec.json.Decoder[ToWorker]] = msgspec.json.Decoder(ToWorker)
TO_AGENT: Final[msgspec.json.Decoder[ToAgent]] = msgspec.json.Decoder(ToAgent)


def frame(message: ToWorker | ToAgent) -> bytes:
    """The message's bytes on the wire. Raises ControlError where it is too long to be sent."""
    body = msgspec.json.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise ControlError(
            f"a control message ({type(message).__name__}) has {len(body)} bytes; at most {FRAME_BYTES_MAX} may be sent"
        )
    return _HEADER.pack(PROTOCOL, len(body)) + body


class Channel(Generic[Incoming]):
    """One end of a connected stream socket: sends at once or refuses, and receives one message after the other."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: msgspec.json.Decoder[Incoming]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder

    @classmethod
    async def over(cls, end: socket.socket, decoder: msgspec.json.Decoder[Incoming]) -> Channel[Incoming]:
        """A channel that owns the socket `end` from now on."""
        reader, writer = await asyncio.open_unix_connection(sock=end)
        return cls(reader, writer, decoder)

    def send_nowait(self, message: ToWorker | ToAgent) -> None:
        """Hand the message to the socket; nothing happens where the other end is gone, since that shows elsewhere.

        Raises ControlError where the message is too long or the other end has stopped reading.
        """
        if self._writer.is_closing():
            return
        if self.backlog_bytes() > BACKLOG_BYTES_MAX:
            raise ControlError(f"the other end has not read {self.backlog_bytes()} bytes of control messages")
        self._writer.write(frame(message))

    def backlog_bytes(self) -> int:
        """What was sent and waits in this process."""
        return self._writer.transport.get_write_buffer_size()

    async def receive(self) -> Incoming | None:
        """The next message, or None when the other end has closed, be it in the middle of a message.

        Raises ControlError for another protocol version, an absurd length, or a message that is not one of ours.
        """
        try:
            version, length = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            _check(version, length)
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ControlError(f"a control message cannot be understood: {error}") from error

    async def close(self) -> None:
        """Send what is waiting, for a second at most, and close."""
        self._writer.close()
        try:
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()
        except (TimeoutError, ConnectionError):
            self._writer.transport.abort()


def _check(version: int, length: int) -> None:
    if version != PROTOCOL:
        raise ControlError(
            f"the other end speaks version {version} of the control protocol and this end version {PROTOCOL}: "
            "the installed millstream was changed while the node ran; restart the node"
        )
    if length > FRAME_BYTES_MAX:
        raise ControlError(f"a control message claims {length} bytes; at most {FRAME_BYTES_MAX} are allowed")
