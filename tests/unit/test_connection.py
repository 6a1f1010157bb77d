"""One connection, against a broker that speaks just enough, and does what brokers and networks do on bad days."""

from __future__ import annotations

import asyncio
import gc
import struct
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from millstream.connectors.kafka.connection import Connection
from millstream.connectors.kafka.requests import (
    CoordinatorType,
    FindCoordinatorRequest,
    MetadataRequest,
)
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.processor.errors import RefusedError, UnavailableError

API_VERSIONS, METADATA, FIND_COORDINATOR = 18, 3, 10
VERSIONS = {API_VERSIONS: (0, 4), METADATA: (0, 13), FIND_COORDINATOR: (0, 6)}
# The body of a metadata answer about nothing: throttle time, brokers, cluster, controller, topics, tags.
NOTHING = b"\0\0\0\0" + b"\x01" + b"\0" + b"\xff\xff\xff\xff" + b"\x01" + b"\0"

Answer = Callable[[int], Awaitable[bytes | None]]


async def nothing(correlation: int) -> bytes | None:
    return struct.pack(">i", correlation) + b"\0" + NOTHING


class Broker:
    """Answers the versions that it speaks, and every other request by `answer`, one after the other."""

    def __init__(self) -> None:
        self.answer: Answer = nothing
        self.asked: list[int] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[KafkaSettings]:
        server = await asyncio.start_server(self._serve, "127.0.0.1")
        host, port = server.sockets[0].getsockname()
        try:
            yield KafkaSettings(brokers=(f"{host}:{port}",))
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                key, _, correlation = struct.unpack(">hhi", (await reader.readexactly(size))[:8])
                self.asked.append(key)
                answer = _versions(correlation) if key == API_VERSIONS else await self.answer(correlation)
                if answer is None:
                    break
                writer.write(struct.pack(">i", len(answer)) + answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


def _versions(correlation: int) -> bytes:
    apis = b"".join(struct.pack(">hhh", key, *span) for key, span in VERSIONS.items())
    return struct.pack(">ihi", correlation, 0, len(VERSIONS)) + apis


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[Connection]:
    async with broker.serving() as kafka:
        ((host, port),) = kafka.addresses
        connection = await Connection.open(host, port, kafka)
        try:
            yield connection
        finally:
            connection.close()
            # The broker's side ends when it reads the end.
            await asyncio.sleep(0.01)


ASK = MetadataRequest([])


class Topics(list[str]):
    """A list of which it can be told whether somebody holds it."""


async def test_an_answer_is_read_and_the_connection_serves_again() -> None:
    async with connected(Broker()) as connection:
        for _ in range(3):
            assert (await connection.call(ASK, timeout_s=5)).topics == {}
        assert connection.usable


async def test_an_answered_call_leaves_nothing_of_its_request_for_a_garbage_collection() -> None:
    """A batch in a request would stay in memory until one comes, with hundreds of others."""
    async with connected(Broker()) as connection:
        await connection.call(ASK, timeout_s=5)
        gc.collect()
        gc.disable()
        try:
            topics = Topics()
            await connection.call(MetadataRequest(topics), timeout_s=5)
            held = weakref.ref(topics)
            del topics
            assert held() is None
        finally:
            gc.enable()


async def test_a_transport_that_is_closed_already_is_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop says so by a RuntimeError, between the other side's close and the end of aiokafka's reader."""
    async with connected(Broker()) as connection:

        def send(call: object) -> None:
            raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

        monkeypatch.setattr(connection._connection, "send", send)
        with pytest.raises(UnavailableError, match=r"lost: .*the handler is closed"):
            await connection.call(ASK, timeout_s=5)
        assert not connection.usable


async def test_calls_side_by_side_are_sent_and_answered_in_order() -> None:
    broker = Broker()
    async with connected(broker) as connection:
        await asyncio.gather(*(connection.call(ASK, timeout_s=5) for _ in range(20)))
        assert broker.asked.count(METADATA) == 20


async def test_a_broker_that_lacks_a_version_is_refused_with_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERSIONS, FIND_COORDINATOR, (0, 3))
    async with connected(Broker()) as connection:
        with pytest.raises(RefusedError, match=r"version 4 of request 10 .*Apache Kafka 4\.0 or later"):
            await connection.call(FindCoordinatorRequest(CoordinatorType.GROUP, "p"), timeout_s=5)


async def test_no_broker_is_unavailable_and_named() -> None:
    async with Broker().serving() as kafka:
        ((host, port),) = kafka.addresses
    with pytest.raises(UnavailableError, match=f"no connection to {host}:{port}"):
        await Connection.open(host, port, kafka)


async def test_a_silent_broker_is_given_up_in_time_and_not_used_again() -> None:
    broker = Broker()

    async def never(correlation: int) -> bytes | None:
        await asyncio.sleep(60)
        return None

    broker.answer = never
    async with connected(broker) as connection:
        with pytest.raises(UnavailableError, match=r"did not answer MetadataRequest within 0\.05 s"):
            await connection.call(ASK, timeout_s=0.05)
        assert not connection.usable
        with pytest.raises(UnavailableError):
            await connection.call(ASK, timeout_s=5)


async def test_a_connection_that_breaks_fails_everything_under_way() -> None:
    broker = Broker()

    async def hang_up(correlation: int) -> bytes | None:
        await asyncio.sleep(0.01)
        return None

    broker.answer = hang_up
    async with connected(broker) as connection:
        outcomes = await asyncio.gather(*(connection.call(ASK, timeout_s=5) for _ in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [UnavailableError] * 3
        assert not connection.usable


@pytest.mark.parametrize(
    "rest",
    [b"", b"\0", b"\0\0\0", b"\0" + NOTHING[:-2], b"\0\0\0\0\0" + b"\xff\xff\xff\xff\x0f", b"\xff" * 40],
    ids=["nothing", "no body", "cut short", "cut at the end", "a count that lies", "noise"],
)
async def test_an_answer_that_is_none_is_unavailable_and_closes_the_connection(rest: bytes) -> None:
    broker = Broker()

    async def nonsense(correlation: int) -> bytes | None:
        return struct.pack(">i", correlation) + rest

    broker.answer = nonsense
    async with connected(broker) as connection:
        with pytest.raises(UnavailableError, match="answered MetadataRequest with something else"):
            await connection.call(ASK, timeout_s=5)
        assert not connection.usable


async def test_the_answer_to_another_question_is_not_taken() -> None:
    broker = Broker()

    async def confused(correlation: int) -> bytes | None:
        return struct.pack(">i", correlation + 1) + b"\0" + NOTHING

    broker.answer = confused
    async with connected(broker) as connection:
        with pytest.raises(UnavailableError):
            await connection.call(ASK, timeout_s=5)
        assert not connection.usable


async def test_a_cancelled_call_closes_the_connection_since_its_answer_would_hold_up_others() -> None:
    broker = Broker()
    asked = asyncio.Event()

    async def slow(correlation: int) -> bytes | None:
        asked.set()
        await asyncio.sleep(60)
        return None

    broker.answer = slow
    async with connected(broker) as connection:
        call = asyncio.create_task(connection.call(ASK, timeout_s=5))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not connection.usable


async def test_a_cancellation_that_meets_the_answer_is_not_swallowed() -> None:
    """`asyncio.wait_for` before Python 3.12 answers then as if nothing had been asked of it."""
    for turns in range(6):
        async with connected(Broker()) as connection:
            call = asyncio.create_task(connection.call(ASK, timeout_s=5))
            await asyncio.sleep(0)
            while connection._connection._requests:  # noqa: ASYNC110 - the moment counts, and nobody announces it
                await asyncio.sleep(0)
            # The answer has been read, and the call has not been woken yet.
            for _ in range(turns):
                await asyncio.sleep(0)
            cancelled = call.cancel()
            await asyncio.wait([call])
            assert call.cancelled() == cancelled
