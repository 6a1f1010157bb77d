"""Brokers that know two topics of one partition each, for what a real cluster cannot be made to do at will.

They speak by aiokafka's types, one request after the other for each connection, and hold a fetch back while there is
nothing new, as brokers do.
"""

from __future__ import annotations

import asyncio
import io
import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiokafka.protocol.types as t
from request_cases import BOOL, NO_TAGS, STRING, Uuid, array, struct_

from millstream.connectors.kafka.settings import KafkaSettings
from millstream.connectors.kafka.small_batch import decode, encode

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, DELETE_RECORDS = 0, 1, 2, 3, 18, 21
NOT_LEADER, OUT_OF_RANGE, DENIED = 6, 1, 29
EARLIEST = -2
IDS = {"ledger": uuid.UUID(int=1), "beats": uuid.UUID(int=2)}

_HEADER = t.Schema(("key", t.Int16), ("version", t.Int16), ("correlation", t.Int32), ("client", t.String("utf-8")))
_ASKS = {
    PRODUCE: struct_(STRING, t.Int16, t.Int32, array(STRING, array(t.Int32, t.CompactBytes))),
    FETCH: struct_(
        *(t.Int32, t.Int32, t.Int32, t.Int32, t.Int8, t.Int32, t.Int32),
        array(Uuid, array(t.Int32, t.Int32, t.Int64, t.Int32, t.Int64, t.Int32)),
    ),
    LIST_OFFSETS: struct_(t.Int32, t.Int8, array(STRING, array(t.Int32, t.Int32, t.Int64))),
    DELETE_RECORDS: struct_(array(STRING, array(t.Int32, t.Int64)), t.Int32),
}
_PRODUCED = struct_(
    array(STRING, array(t.Int32, t.Int16, t.Int64, t.Int64, t.Int64, array(t.Int32, STRING), STRING)), t.Int32
)
_FETCHED = struct_(
    *(t.Int32, t.Int16, t.Int32),
    array(
        Uuid,
        array(t.Int32, t.Int16, t.Int64, t.Int64, t.Int64, array(t.Int64, t.Int64), t.Int32, t.CompactBytes),
    ),
)
_LISTED = struct_(t.Int32, array(STRING, array(t.Int32, t.Int16, t.Int64, t.Int64, t.Int32)))
_DELETED = struct_(t.Int32, array(STRING, array(t.Int32, t.Int64, t.Int16)))
_VERSIONS = struct_(t.Int16, array(t.Int16, t.Int16, t.Int16), t.Int32)
_FEATURES = array(STRING, t.Int16, t.Int16).encode([("transaction.version", 2, 1, NO_TAGS)])
_PARTITION = array(t.Int16, t.Int32, t.Int32, t.Int32, array(t.Int32), array(t.Int32), array(t.Int32))
_METADATA = struct_(
    t.Int32,
    array(t.Int32, STRING, t.Int32, STRING),
    *(STRING, t.Int32),
    array(t.Int16, STRING, Uuid, BOOL, _PARTITION, t.Int32),
)


class TwoTopicKafka:
    """`leader` leads both topics; `deaf` brokers take requests and never answer; `denied` requests are not allowed."""

    def __init__(self, brokers: int = 1) -> None:
        self.leader = 0
        self.deaf: set[int] = set()
        self.denied: set[int] = set()
        self.asked: list[tuple[int, int]] = []
        self.logs: dict[str, list[bytes]] = {name: [] for name in IDS}
        self.starts = dict.fromkeys(IDS, 0)
        self._ports: list[int] = []
        self._brokers = brokers
        self._grown = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    def count(self, key: int, node: int | None = None) -> int:
        """How often that was asked, of one broker or of all."""
        return sum(asked == key and node in (None, at) for at, asked in self.asked)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[KafkaSettings]:
        servers = []
        for node in range(self._brokers):
            server = await asyncio.start_server(lambda r, w, node=node: self._serve(node, r, w), "127.0.0.1")
            servers.append(server)
            self._ports.append(server.sockets[0].getsockname()[1])
        try:
            yield KafkaSettings(brokers=tuple(f"127.0.0.1:{port}" for port in self._ports), connect_timeout_ms=3000)
        finally:
            for server in servers:
                server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                data = io.BytesIO(await reader.readexactly(size))
                key, version, correlation, _ = _HEADER.decode(data)
                self.asked.append((node, key))
                if node in self.deaf:
                    continue
                if key != API_VERSIONS:
                    data.read(1)  # the header's tags
                answer = struct.pack(">i", correlation) + await self._answer(node, key, version, data)
                writer.write(struct.pack(">i", len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, node: int, key: int, version: int, data: io.BytesIO) -> bytes:
        if key == API_VERSIONS:
            return self._versions(version)
        if key == METADATA:
            return b"\0" + self._metadata()
        error = NOT_LEADER if node != self.leader else DENIED if key in self.denied else 0
        answers = {
            PRODUCE: self._produce,
            FETCH: self._fetch,
            LIST_OFFSETS: self._list,
            DELETE_RECORDS: self._delete,
        }
        return b"\0" + await answers[key](_ASKS[key].decode(data), error)

    def _versions(self, version: int) -> bytes:
        if version == 0:
            spans = b"".join(struct.pack(">hhh", key, 0, 20) for key in (*_ASKS, METADATA, API_VERSIONS))
            return struct.pack(">hi", 0, len(_ASKS) + 2) + spans
        return bytes(_VERSIONS.encode((0, [], 0, {2: _FEATURES})))

    def _metadata(self) -> bytes:
        brokers = [(node, "127.0.0.1", port, None, NO_TAGS) for node, port in enumerate(self._ports)]
        partition = (0, 0, self.leader, 0, [0], [0], [], NO_TAGS)
        topics = [(0, name, topic_id, False, [partition], 0, NO_TAGS) for name, topic_id in IDS.items()]
        return bytes(_METADATA.encode((0, brokers, "fake", 0, topics, NO_TAGS)))

    async def _produce(self, asked: Any, error: int) -> bytes:
        ((topic, ((_, batch, _),), _),) = asked[3]
        if not error:
            self.logs[topic] += [value for _, value in decode(batch, fetch_offset=0).entries]
            self._grown.set()
            self._grown = asyncio.Event()
        part = (0, error, 0, -1, 0, [], None, NO_TAGS)
        return bytes(_PRODUCED.encode(([(topic, [part], NO_TAGS)], 0, NO_TAGS)))

    async def _fetch(self, asked: Any, error: int) -> bytes:
        ((topic_id, ((_, _, offset, _, _, bytes_max, _),), _),) = asked[7]
        topic = next(name for name, known in IDS.items() if known == topic_id)
        log, wait_s, bytes_min = self.logs[topic], asked[1] / 1000, asked[2]
        if not error:
            try:
                async with asyncio.timeout(wait_s):
                    while len(self.batches(topic, offset, bytes_min)) < bytes_min:
                        await self._grown.wait()
            except TimeoutError:
                pass
        if not error and not self.starts[topic] <= offset <= len(log):
            error = OUT_OF_RANGE
        data = b"" if error else self.batches(topic, offset, bytes_max)
        part = (0, error, len(log), len(log), self.starts[topic], [], -1, data, NO_TAGS)
        return bytes(_FETCHED.encode((0, 0, 0, [(topic_id, [part], NO_TAGS)], NO_TAGS)))

    def batches(self, topic: str, offset: int, bytes_max: int) -> bytes:
        """What a fetch answers: a batch for each record, and one at least however small the limit is."""
        data = b""
        for at, value in enumerate(self.logs[topic][offset:], offset):
            batch = struct.pack(">q", at) + encode([value])[8:]
            if data and len(data) + len(batch) > bytes_max:
                break
            data += batch
        return data

    async def _list(self, asked: Any, error: int) -> bytes:
        ((topic, ((_, _, timestamp, _),), _),) = asked[2]
        offset = self.starts[topic] if timestamp == EARLIEST else len(self.logs[topic])
        part = (0, error, -1, -1 if error else offset, 0, NO_TAGS)
        return bytes(_LISTED.encode((0, [(topic, [part], NO_TAGS)], NO_TAGS)))

    async def _delete(self, asked: Any, error: int) -> bytes:
        ((topic, ((_, offset, _),), _),) = asked[0]
        if not error:
            self.starts[topic] = max(self.starts[topic], offset)
        part = (0, self.starts[topic], error, NO_TAGS)
        return bytes(_DELETED.encode((0, [(topic, [part], NO_TAGS)], NO_TAGS)))
