"""A server and a client that speak Kafka's framing and nothing else, for the fault proxy's tests."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from millstream.connectors.kafka.read_requests import FetchPartition, FetchRequest
from millstream.connectors.kafka.settings import parse_address
from millstream.connectors.kafka.wire import Writer
from millstream.loadgen.kafka_frames import Api, Request, read_request

# Nothing here takes long by itself: whoever waits longer waits for something that does not come.
PATIENCE_S = 20


def frame(request: Any, *, head: int | None = None) -> Request:
    """A request of our own client as it comes over the wire, or only its first bytes."""
    writer = Writer()
    for write, value in ((writer.int16, request.API_KEY), (writer.int16, request.API_VERSION), (writer.int32, 5)):
        write(value)
    writer.plain_string("a client")
    writer.no_tags()
    request.write(writer)
    data = writer.finish()
    return read_request(data[:head], len(data))


def fetch(*topic_ids: uuid.UUID) -> FetchRequest:
    partitions = [FetchPartition(topic_id, p, 10, 1000) for topic_id in topic_ids for p in range(2)]
    return FetchRequest(partitions, 20, 1, 1000)


@dataclass(frozen=True)
class Arrival:
    """A request as the server got it, and how to answer it later than at once."""

    request: Request
    at_s: float
    writer: asyncio.StreamWriter

    def answer(self, answer: bytes, *, correlation: int | None = None) -> None:
        correlation = self.request.correlation_id if correlation is None else correlation
        self.writer.write(struct.pack(">ii", len(answer) + 4, correlation) + answer)


class FakeKafka:
    """Answers each request with its own bytes, from the correlation id on, unless told otherwise."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.ends = 0
        self.answer: Callable[[Request], bytes | None] = lambda request: request.head[8:]
        self._news = asyncio.Condition()
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1")
        host, port = server.sockets[0].getsockname()
        try:
            yield f"{host}:{port}"
        finally:
            server.close()
            self.hang_up()
            await asyncio.sleep(0)

    def hang_up(self) -> None:
        """Close every connection."""
        for writer in self._writers:
            writer.close()

    async def until(self, *, requests: int = 0, ends: int = 0) -> None:
        """Wait until so many requests have come, and so many connections have ended."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: len(self.arrivals) >= requests and self.ends >= ends)

    @property
    def correlations(self) -> list[int]:
        return [arrival.request.correlation_id for arrival in self.arrivals]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = read_request(await reader.readexactly(size), size)
                arrival = Arrival(request, asyncio.get_running_loop().time(), writer)
                async with self._news:
                    self.arrivals.append(arrival)
                    self._news.notify_all()
                answer = self.answer(request)
                if answer is not None:
                    arrival.answer(answer)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            async with self._news:
                self.ends += 1
                self._news.notify_all()


class FakeClient:
    """One connection; requests go out at once, answers are read one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def open(bootstrap: str) -> FakeClient:
        return FakeClient(*await asyncio.open_connection(*parse_address(bootstrap)))

    def send(self, correlation: int, body: bytes = b"", api: int = Api.OFFSET_FETCH, version: int = 1) -> None:
        """A request with a header that has no tags; versions with tags bring theirs in `body`."""
        frame = struct.pack(">hhih", api, version, correlation, 0) + body
        self._writer.write(struct.pack(">i", len(frame)) + frame)

    def send_raw(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> tuple[int, bytes]:
        """The next answer's correlation id and what follows it."""
        async with asyncio.timeout(PATIENCE_S):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            answer = await self._reader.readexactly(size)
        return struct.unpack(">i", answer[:4])[0], answer[4:]

    async def end(self) -> str:
        """Wait for the connection's end; answers how it ended."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return "closed" if await self._reader.read(1) == b"" else "more data"
            except ConnectionResetError:
                return "reset"

    async def is_silent(self) -> bool:
        """Whether nothing has come although there was time for it."""
        try:
            async with asyncio.timeout(0.05):
                await self._reader.read(1)
        except TimeoutError:
            return True
        return False

    def close(self) -> None:
        self._writer.close()

    async def closed(self) -> None:
        """Close, and wait until everything has left."""
        self._writer.close()
        await self._writer.wait_closed()
