"""One client's connection through the fault proxy: two lanes of frames, each in order.

A lane reads ahead within a bound, so that a delay is a delay and not a narrower pipe: frames keep the time at which
they came. Only what a rule or an address asks for is read whole; everything else flows in pieces.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from millstream.loadgen.fault_rules import Fault, Frame, Reset, RuleBook, Struck, Wait, Way
from millstream.loadgen.kafka_addresses import carries_addresses, check_version
from millstream.loadgen.kafka_frames import Api, FrameError, Request, read_request
from millstream.loadgen.moments import Moment

# Enough to name the topics of every request but those that carry records.
_HEAD_BYTES = 16 << 10
_PIECE_BYTES = 256 << 10
BUFFER_BYTES = 512 << 10
# In pieces: 16 MiB at most for each lane.
_AHEAD = 64
# What brokers take at most by default (socket.request.max.bytes); answers stay below it too.
_FRAME_BYTES_MAX = 100 << 20
_LENGTH = struct.Struct(">i")
_CORRELATION = struct.Struct(">i")
# Wakes early by less than the event loop's own resolution are no reason to look again.
_TICK_S = 0.0005
_FLUSH_S = 1.0


class ConnectionBroken(Exception):  # noqa: N818 - it is an order, not an error
    """A rule wants this connection reset."""


@dataclass(slots=True)
class World:
    """What all connections of a proxy share. `changed` is set, and replaced, when rules change."""

    book: RuleBook
    changed: asyncio.Event
    readdressed: Callable[[Request, bytes], Awaitable[bytes]]

    def rules_changed(self) -> None:
        """Wake every frame that waits, so that it is decided about again."""
        self.changed.set()
        self.changed = asyncio.Event()


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Relay:
    """Between one client and one broker. `node_id` answers the broker's number, -1 while nobody knows it."""

    def __init__(self, world: World, client: Stream, broker: Stream, node_id: Callable[[], int]) -> None:
        self._world = world
        self._node_id = node_id
        self._client = client
        self._broker = broker
        self._unanswered: deque[Request] = deque()
        self._queues: dict[Way, asyncio.Queue[Frame | bytes | None]] = {way: asyncio.Queue(_AHEAD) for way in Way}
        self._severed_by: set[Fault] = set()
        self._broken = False
        self._tasks: set[asyncio.Task[None]] = set()

    def lifted(self, fault: Fault) -> None:
        """Reset the connection if the fault has swallowed something of it."""
        if fault in self._severed_by:
            self._broken = True
            for task in self._tasks:
                task.cancel()

    async def run(self) -> None:
        """Relay until the broker has closed, or until either side is beyond reach. Raises FrameError."""
        answers = asyncio.create_task(self._write(Way.ANSWERS))
        self._tasks = left = {
            answers,
            asyncio.create_task(self._read(Way.REQUESTS, self._read_request)),
            asyncio.create_task(self._read(Way.ANSWERS, self._read_answer)),
            asyncio.create_task(self._write(Way.REQUESTS)),
        }
        try:
            while not answers.done():
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if not task.cancelled():
                        task.result()
                if self._broken:
                    break
        except ConnectionBroken:
            self._broken = True
        except ConnectionError:
            # The broker is gone; so are its connections.
            pass
        finally:
            for task in self._tasks:
                task.cancel()
            await self._end()

    async def _end(self) -> None:
        writers = [writer for _, writer in (self._client, self._broker)]
        # Before anything is waited for: a proxy that ends meanwhile cancels the wait.
        for writer in writers:
            close(writer, reset=self._broken)
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in writers:
                await closed(writer)
        except asyncio.CancelledError:
            for writer in writers:
                writer.transport.abort()
            raise

    async def _read(self, way: Way, read_frame: Callable[[], Awaitable[None]]) -> None:
        try:
            while True:
                await read_frame()
        except (asyncio.IncompleteReadError, ConnectionError):
            # The end, however it came, takes its place behind what was sent before it.
            await self._queues[way].put(None)

    async def _read_request(self) -> None:
        reader, queue = self._client[0], self._queues[Way.REQUESTS]
        size = await _read_size(reader)
        head = await reader.readexactly(min(size, _HEAD_BYTES))
        request = read_request(head, size)
        check_version(request.api, request.version)
        if not request.is_whole and self._world.book.needs_whole(Way.REQUESTS, request, self._node_id()):
            head += await reader.readexactly(size - len(head))
            request = read_request(head, size)
        await queue.put(Frame(Way.REQUESTS, request, self._node_id(), Moment.now().monotonic_s))
        await queue.put(_LENGTH.pack(size) + head)
        await _in_pieces(reader, size - len(head), queue)

    async def _read_answer(self) -> None:
        reader, queue = self._broker[0], self._queues[Way.ANSWERS]
        size = await _read_size(reader)
        head = await reader.readexactly(min(size, _HEAD_BYTES))
        request = self._asked(head)
        rest = size - len(head)
        if request.api in (Api.PRODUCE, Api.API_VERSIONS) or carries_addresses(request.api):
            head = await self._world.readdressed(request, head + await reader.readexactly(rest))
            rest = 0
        await queue.put(Frame(Way.ANSWERS, request, self._node_id(), Moment.now().monotonic_s))
        await queue.put(_LENGTH.pack(len(head) + rest) + head)
        await _in_pieces(reader, rest, queue)

    def _asked(self, answer: bytes) -> Request:
        """The request that an answer belongs to. Kafka answers in order; one that got no answer is passed over."""
        if len(answer) < _CORRELATION.size:
            raise FrameError(f"an answer of {len(answer)} bytes has no correlation id")
        (wanted,) = _CORRELATION.unpack_from(answer)
        while self._unanswered:
            request = self._unanswered.popleft()
            if request.correlation_id == wanted:
                return request
        raise FrameError(f"an answer to request {wanted}, which nobody made")

    async def _write(self, way: Way) -> None:
        """Pass on what the rules let pass. What cannot be delivered any more is read on and thrown away."""
        queue = self._queues[way]
        writer = (self._broker if way is Way.REQUESTS else self._client)[1]
        is_open = True
        while (item := await queue.get()) is not None:
            if isinstance(item, Frame):
                is_open = is_open and not await self._is_swallowed(item)
                if is_open and way is Way.REQUESTS and expects_answer(item.request):
                    self._unanswered.append(item.request)
            elif is_open:
                is_open = await self._delivered(way, writer, item)
        if way is Way.REQUESTS and writer.can_write_eof():
            writer.write_eof()

    async def _is_swallowed(self, frame: Frame) -> bool:
        """Wait as the rules have it; answers whether the frame, and all behind it, is lost. Raises ConnectionBroken."""
        while True:
            changed = self._world.changed
            decision = self._world.book.decide(frame, Moment.now())
            match decision:
                case None:
                    return False
                case Struck(Reset(), _):
                    raise ConnectionBroken
                case Struck(_, fault):
                    self._severed_by.add(fault)
                    return True
                case Wait(until_s):
                    await _until(until_s, changed)

    async def _delivered(self, way: Way, writer: asyncio.StreamWriter, piece: bytes) -> bool:
        try:
            writer.write(piece)
            await writer.drain()
        except ConnectionError:
            # A client that is gone gets no answers, but what it has sent before is still to be delivered.
            if way is Way.REQUESTS:
                raise
            return False
        return True


def expects_answer(request: Request) -> bool:
    """False for a Produce that asks for no acknowledgement. Raises FrameError."""
    if request.api != Api.PRODUCE:
        return True
    body = request.body()
    body.string()  # transactional id
    return body.int16() != 0


async def _until(monotonic_s: float, changed: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(_seconds_left(monotonic_s)):
            await changed.wait()
    except TimeoutError:
        pass


def _seconds_left(monotonic_s: float) -> float | None:
    """None is for ever."""
    left_s = monotonic_s - Moment.now().monotonic_s
    return None if left_s == float("inf") else max(left_s, 0) + _TICK_S


async def _read_size(reader: asyncio.StreamReader) -> int:
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if not 0 <= size <= _FRAME_BYTES_MAX:
        raise FrameError(
            f"a frame of {size} bytes: this is not Kafka's framing. TLS cannot be read; proxy a plain listener"
        )
    return int(size)


async def _in_pieces(reader: asyncio.StreamReader, left: int, queue: asyncio.Queue[Frame | bytes | None]) -> None:
    while left:
        piece = await reader.read(min(left, _PIECE_BYTES))
        if not piece:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(piece)
        await queue.put(piece)


def close(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    """Close a connection now; with `reset` its other end learns of it by an RST rather than an orderly end."""
    if reset and (connection := writer.get_extra_info("socket")) is not None:
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            # It is closed already.
            pass
        writer.transport.abort()
        return
    writer.close()


async def closed(writer: asyncio.StreamWriter) -> None:
    """Wait until a connection that is being closed is closed; what cannot be written within a second is dropped."""
    try:
        async with asyncio.timeout(_FLUSH_S):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()
