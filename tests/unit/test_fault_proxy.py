"""The fault proxy between a server and clients that speak Kafka's framing: what passes, what is held, lost, cut."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from fake_kafka import FakeClient, FakeKafka, fetch, frame

from millstream.connectors.kafka.settings import parse_address
from millstream.connectors.kafka.transaction_requests import ProduceRequest
from millstream.connectors.kafka.wire import Writer
from millstream.loadgen.fault_proxy import FaultProxy
from millstream.loadgen.fault_rules import Delay, Hold, Reset, Rule, Way, cut
from millstream.loadgen.kafka_frames import Api, Request
from millstream.loadgen.proxy_thread import ProxyThread
from millstream.processor.errors import UnavailableError
from millstream.processor.partitions import TopicPartition

END_TXN_V2 = (Api.END_TXN, 2)


@dataclass
class Scene:
    kafka: FakeKafka
    upstream: str
    proxy: FaultProxy
    clients: list[FakeClient]

    async def client(self) -> FakeClient:
        client = await FakeClient.open(self.proxy.bootstrap)
        self.clients.append(client)
        return client


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    kafka = FakeKafka()
    async with kafka.serving() as upstream, FaultProxy(upstream, seed=5) as proxy:
        made = Scene(kafka, upstream, proxy, [])
        try:
            yield made
        finally:
            for client in made.clients:
                client.close()


async def test_frames_of_every_size_pass_as_they_are_and_in_order() -> None:
    dice = random.Random(7)
    bodies = [dice.randbytes(size) for size in (0, 1, 100, 16_373, 16_374, 16_375, 70_000, 3_000_000, 5)]
    async with scene() as world:
        client = await world.client()
        for number, body in enumerate(bodies):
            client.send(number, body)
        for number, body in enumerate(bodies):
            # The fake answers with the client's name, which is empty, and the body.
            assert await client.receive() == (number, b"\0\0" + body)


async def test_held_answers_hold_up_those_behind_them_and_no_other_connection() -> None:
    async with scene() as world:
        fault = world.proxy.apply(Rule(Hold(), Way.ANSWERS, apis={Api.END_TXN}))
        held, free = await world.client(), await world.client()
        held.send(1, b"x", *END_TXN_V2)
        held.send(2)
        free.send(3)
        assert await free.receive() == (3, b"\0\0")
        await world.kafka.until(requests=3)
        assert await held.is_silent()
        world.proxy.lift(fault)
        assert [(await held.receive())[0] for _ in range(2)] == [1, 2]
        assert fault.hits == 1
        assert fault.first_hit is not None
        assert fault.ended is not None
        assert fault.began.ordered.monotonic_s <= fault.first_hit.monotonic_s <= fault.ended.ordered.monotonic_s


async def test_a_delay_is_a_delay_and_not_a_narrower_pipe() -> None:
    delay_s, count = 0.1, 20
    async with scene() as world:
        world.proxy.apply(Rule(Delay(delay_s), Way.REQUESTS))
        client = await world.client()
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        for number in range(count):
            client.send(number, bytes(1000))
        for number in range(count):
            assert (await client.receive())[0] == number
        assert all(arrival.at_s >= sent_s + delay_s for arrival in world.kafka.arrivals)
        # One after the other they would have taken so long at least.
        assert loop.time() - sent_s < delay_s * count


async def test_swallowed_requests_never_arrive_and_their_connection_is_reset_when_that_ends() -> None:
    async with scene() as world:
        before, idle = await world.client(), await world.client()
        for client in (before, idle):
            client.send(0)
            await client.receive()
        fault = world.proxy.apply(*cut(Way.REQUESTS))
        during = await world.client()
        before.send(1)
        during.send(2)
        assert await before.is_silent()
        assert await during.is_silent()
        assert world.kafka.correlations == [0, 0]
        world.proxy.lift(fault)
        assert await before.end() == "reset"
        assert await during.end() == "reset"
        # A connection of which nothing was lost goes on, as TCP would have it.
        idle.send(3)
        assert (await idle.receive())[0] == 3


async def test_swallowed_answers_are_answers_to_requests_that_did_arrive() -> None:
    async with scene() as world:
        fault = world.proxy.apply(*cut(Way.ANSWERS))
        client = await world.client()
        client.send(1)
        await world.kafka.until(requests=1)
        assert await client.is_silent()
        world.proxy.lift(fault)
        assert await client.end() == "reset"


async def test_a_cut_of_a_topic_swallows_also_the_answer_to_what_was_under_way() -> None:
    beats = uuid.uuid4()
    polled = frame(fetch(beats))
    produced = frame(ProduceRequest(None, {TopicPartition("out", 0): b"x"}, 1))
    async with scene() as world:
        learn_topic(world, beats)
        client, other = await world.client(), await world.client()
        client.send(0, b"\0", Api.METADATA, 12)
        await client.receive()
        # No topics, no throttling, no tags.
        world.kafka.answer = lambda request: None if request.api == Api.FETCH else b"\0\x01\0\0\0\0\0"
        client.send_raw(struct.pack(">i", polled.size) + polled.head)
        await world.kafka.until(requests=2)
        fault = world.proxy.apply(*cut(topics={"beats"}))
        other.send_raw(struct.pack(">i", produced.size) + produced.head)
        assert (await other.receive())[0] == produced.correlation_id
        world.kafka.arrivals[1].answer(b"records")
        assert await client.is_silent()
        assert fault.hits == 1
        world.proxy.lift(fault)
        assert await client.end() == "reset"


def learn_topic(world: Scene, topic_id: uuid.UUID) -> None:
    """Have the fake answer Metadata v12 with one topic, `beats`."""
    writer = Writer()
    writer.no_tags()
    writer.int32(0)
    writer.array_size(0)
    writer.string(None)
    writer.int32(1)
    writer.array_size(1)
    writer.int16(0)
    writer.string("beats")
    writer.uuid(topic_id)
    writer.boolean(False)
    writer.array_size(0)
    writer.int32(0)
    writer.no_tags()
    writer.no_tags()
    world.kafka.answer = lambda _: writer.finish()


async def test_a_request_larger_than_what_is_read_ahead_is_looked_through_for_topics() -> None:
    first, second = TopicPartition("big", 0), TopicPartition("beats", 0)
    request = frame(ProduceRequest(None, {first: bytes(1_000_000), second: b"x"}, 1))
    async with scene() as world:
        world.proxy.apply(*cut(topics={"beats"}))
        client = await world.client()
        client.send_raw(struct.pack(">i", request.size) + request.head)
        assert await client.is_silent()
        assert world.kafka.arrivals == []


async def test_a_reset_is_seen_by_both_sides() -> None:
    async with scene() as world:
        world.proxy.apply(Rule(Reset(), Way.ANSWERS, times=1))
        client = await world.client()
        client.send(1)
        assert await client.end() == "reset"
        await world.kafka.until(requests=1, ends=1)
        next_one = await world.client()
        next_one.send(2)
        assert (await next_one.receive())[0] == 2


async def test_what_a_client_has_sent_before_its_death_is_delivered_after_it() -> None:
    async with scene() as world:
        fault = world.proxy.apply(Rule(Hold(), Way.REQUESTS, apis={Api.END_TXN}))
        client = await world.client()
        client.send(1, b"x", *END_TXN_V2)
        client.send(2)
        await client.closed()
        assert world.kafka.arrivals == []
        world.proxy.lift(fault)
        await world.kafka.until(requests=2, ends=1)
        assert world.kafka.correlations == [1, 2]


async def test_new_connections_can_be_refused_and_accepted_again() -> None:
    async with scene() as world:
        open_one = await world.client()
        open_one.send(0)
        await open_one.receive()
        refused = await world.proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await world.client()
        open_one.send(1)
        assert (await open_one.receive())[0] == 1
        accepted = await world.proxy.accept()
        again = await world.client()
        again.send(2)
        assert (await again.receive())[0] == 2
        assert refused.done.monotonic_s <= accepted.ordered.monotonic_s
        assert accepted.as_json()["fault"] == "accept connections"


async def test_a_broker_that_is_gone_ends_its_clients_connections() -> None:
    async with scene() as world:
        client = await world.client()
        client.send(1)
        await client.receive()
        world.kafka.hang_up()
        assert await client.end() == "closed"


async def test_a_broker_that_cannot_be_reached_is_a_reset_for_its_clients() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        async with FaultProxy(f"127.0.0.1:{port}") as proxy:
            client = await FakeClient.open(proxy.bootstrap)
            assert await client.end() == "reset"
            client.close()


async def test_brokers_that_answers_name_are_reached_through_the_proxy() -> None:
    async with scene() as world:
        second = FakeKafka()
        async with second.serving() as second_address:
            name_brokers(world, [world.upstream, second_address])
            client = await world.client()
            client.send(1, b"", Api.METADATA, 0)
            brokers = read_brokers((await client.receive())[1])
            assert brokers[0] == world.proxy.bootstrap
            assert brokers[1] != second_address
            through = await FakeClient.open(brokers[1])
            world.clients.append(through)
            through.send(2)
            assert (await through.receive())[0] == 2
            assert second.correlations == [2]
            # Rules can now name the brokers by their numbers.
            world.proxy.apply(*cut(brokers={1}))
            through.send(3)
            client.send(4)
            assert (await client.receive())[0] == 4
            assert await through.is_silent()
            assert second.correlations == [2]


def name_brokers(world: Scene, addresses: list[str]) -> None:
    """Have the fake answer Metadata v0 with these as brokers 0, 1, ..."""
    parts = [struct.pack(">i", len(addresses))]
    for number, (host, port) in enumerate(map(parse_address, addresses)):
        parts.append(struct.pack(">ih", number, len(host)) + host.encode() + struct.pack(">i", port))
    answer = b"".join((*parts, struct.pack(">i", 0)))

    def answers(request: Request) -> bytes:
        return answer if request.api == Api.METADATA else b""

    world.kafka.answer = answers


def read_brokers(answer: bytes) -> list[str]:
    (count,) = struct.unpack_from(">i", answer)
    position, found = 4, []
    for _ in range(count):
        _, size = struct.unpack_from(">ih", answer, position)
        host = answer[position + 6 : position + 6 + size].decode()
        (port,) = struct.unpack_from(">i", answer, position + 6 + size)
        found.append(f"{host}:{port}")
        position += 10 + size
    return found


async def test_a_produce_without_acknowledgement_gets_no_answer_and_confuses_nobody() -> None:
    async with scene() as world:
        world.kafka.answer = lambda request: None if request.api == Api.PRODUCE else b""
        client = await world.client()
        # Produce v3: transactional id, acknowledgements, timeout, no topics.
        client.send(1, struct.pack(">hhii", -1, 0, 1000, 0), Api.PRODUCE, 3)
        client.send(2)
        assert (await client.receive())[0] == 2


async def test_an_answer_that_may_leak_an_address_is_an_error_with_the_remedy() -> None:
    kafka = FakeKafka()
    async with kafka.serving() as upstream:
        with pytest.raises(UnavailableError, match=r"request 1 version 16 may carry.*kafka_addresses\.py"):
            await fetch_in_a_version_that_leaks(upstream)
        assert kafka.arrivals == []


async def fetch_in_a_version_that_leaks(upstream: str) -> None:
    async with FaultProxy(upstream, name="in front of b") as proxy:
        client = await FakeClient.open(proxy.bootstrap)
        client.send(1, b"\0", Api.FETCH, 16)
        await client.end()
        client.close()


async def test_what_is_not_kafkas_framing_is_an_error_that_says_so() -> None:
    async with scene() as world:
        client = await world.client()
        client.send_raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100))
        await client.end()
        with pytest.raises(UnavailableError, match="TLS cannot be read"):
            world.proxy.check()
        world.proxy.mistakes.clear()


async def test_an_answer_that_nobody_asked_for_is_an_error() -> None:
    async with scene() as world:
        client = await world.client()
        world.kafka.answer = lambda _: None
        client.send(1)
        await world.kafka.until(requests=1)
        world.kafka.arrivals[0].answer(b"", correlation=99)
        await client.end()
        with pytest.raises(UnavailableError, match="request 99, which nobody made"):
            world.proxy.check()
        world.proxy.mistakes.clear()


async def test_several_faults_hold_side_by_side_and_end_one_by_one() -> None:
    async with scene() as world:
        first = world.proxy.apply(Rule(Hold(), Way.REQUESTS))
        second = world.proxy.apply(Rule(Hold(), Way.REQUESTS, apis={Api.OFFSET_FETCH}))
        client = await world.client()
        client.send(1)
        world.proxy.lift(first)
        assert await client.is_silent()
        assert world.proxy.faults == (second,)
        world.proxy.lift(second)
        assert (await client.receive())[0] == 1
        with pytest.raises(ValueError, match="not in list"):
            world.proxy.lift(second)


async def test_a_proxy_in_a_thread_is_the_same_for_callers_that_block() -> None:
    kafka = FakeKafka()
    async with kafka.serving() as upstream:
        with ProxyThread(upstream, name="threaded") as proxy:
            client = await FakeClient.open(proxy.bootstrap)
            client.send(1)
            assert (await client.receive())[0] == 1
            fault = proxy.apply(Rule(Hold(), Way.ANSWERS))
            client.send(2)
            await kafka.until(requests=2)
            assert await client.is_silent()
            proxy.lift(fault)
            assert (await client.receive())[0] == 2
            proxy.refuse()
            with pytest.raises(ConnectionRefusedError):
                await FakeClient.open(proxy.bootstrap)
            proxy.accept()
            proxy.check()
            client.close()


def test_a_thread_that_cannot_listen_says_why() -> None:
    proxy = ProxyThread("127.0.0.1:9", host="192.0.2.1")
    with pytest.raises(UnavailableError, match=r"cannot listen on 192\.0\.2\.1"), proxy:
        pass
