"""The control channel delivers messages whole and in order, and refuses what it cannot trust."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.processor import control
from millstream.processor.control import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    TO_AGENT,
    TO_WORKER,
    Assign,
    Channel,
    ControlError,
    Done,
    Failed,
    Leaving,
    Progress,
    Ready,
    ShardFinished,
    Start,
    Stop,
    ToAgent,
    ToWorker,
    Trouble,
)
from millstream.processor.counts import Counts
from millstream.processor.shard_host import ShardCommitted, ShardReleased, ShardRestarted, ShardStarted

START = Start(0, 1, "module:function", {"password": "s3cret", "nested": {"a": [1, None]}}, 20.0, "info")
SAID_BY_AGENTS: list[ToWorker] = [START, Assign([0, 5]), Stop(1.5)]
SAID_BY_WORKERS: list[ToAgent] = [
    Ready("fraud", 8),
    Progress(Counts(records_in=2**60, retries=1), 0.25),
    Leaving(),
    ShardFinished(2),
    Done(),
    Failed(Trouble.FINAL, "topic 'päyments' is missing\n\x00", 2),
    ShardStarted(3),
    ShardReleased(3),
    ShardCommitted(3),
    ShardRestarted(3, "fenced"),
]


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Channel[ToWorker], Channel[ToAgent]]]:
    ours, theirs = socket.socketpair()
    worker, agent = await Channel.over(ours, TO_WORKER), await Channel.over(theirs, TO_AGENT)
    try:
        yield worker, agent
    finally:
        await worker.close()
        await agent.close()


@asynccontextmanager
async def raw_peer() -> AsyncIterator[tuple[socket.socket, Channel[ToWorker]]]:
    ours, theirs = socket.socketpair()
    channel = await Channel.over(ours, TO_WORKER)
    try:
        yield theirs, channel
    finally:
        theirs.close()
        await channel.close()


async def test_every_message_arrives_as_it_was_sent_and_in_order() -> None:
    async with pair() as (worker, agent):
        for said_by_agent in SAID_BY_AGENTS:
            agent.send_nowait(said_by_agent)
        for said_by_worker in SAID_BY_WORKERS:
            worker.send_nowait(said_by_worker)
        assert [await worker.receive() for _ in SAID_BY_AGENTS] == SAID_BY_AGENTS
        assert [await agent.receive() for _ in SAID_BY_WORKERS] == SAID_BY_WORKERS


async def test_messages_arrive_whole_however_their_bytes_are_cut() -> None:
    async with raw_peer() as (peer, channel):
        for byte in control.frame(START):
            peer.send(bytes([byte]))
            await asyncio.sleep(0)
        assert await channel.receive() == START


async def test_what_was_sent_before_the_end_is_received_before_the_end() -> None:
    async with pair() as (worker, agent):
        worker.send_nowait(Leaving())
        await worker.close()
        assert await agent.receive() == Leaving()
        assert await agent.receive() is None


async def test_an_end_in_the_middle_of_a_message_is_an_end() -> None:
    async with raw_peer() as (peer, channel):
        peer.send(control.frame(START)[:-1])
        peer.close()
        assert await channel.receive() is None


async def test_another_protocol_version_is_refused_with_both_versions_and_the_remedy() -> None:
    async with raw_peer() as (peer, channel):
        peer.send(struct.pack("!BI", PROTOCOL + 1, 2) + b"{}")
        with pytest.raises(ControlError, match=rf"version {PROTOCOL + 1} .* version {PROTOCOL}: .* restart the node"):
            await channel.receive()


async def test_an_absurd_length_is_refused_before_anything_is_read_for_it() -> None:
    async with raw_peer() as (peer, channel):
        peer.send(struct.pack("!BI", PROTOCOL, FRAME_BYTES_MAX + 1))
        with pytest.raises(ControlError, match=f"claims {FRAME_BYTES_MAX + 1} bytes"):
            await channel.receive()


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"type":"dance"}', b'{"type":"stop","timeout_s":"soon"}', b"[" * 100_000, b"\xff\xfe"]
)
async def test_a_message_that_is_not_one_of_ours_is_refused(body: bytes) -> None:
    async with raw_peer() as (peer, channel):
        peer.send(struct.pack("!BI", PROTOCOL, len(body)) + body)
        with pytest.raises(ControlError, match="cannot be understood"):
            await channel.receive()


async def test_a_message_that_is_too_long_is_refused_where_it_is_sent() -> None:
    async with pair() as (worker, _):
        with pytest.raises(ControlError, match=r"\(Failed\) has \d+ bytes"):
            worker.send_nowait(Failed(Trouble.DEFECT, "x" * FRAME_BYTES_MAX))


async def test_a_peer_that_does_not_read_is_noticed_and_does_not_fill_the_memory() -> None:
    async with raw_peer() as (_, channel):
        large = Failed(Trouble.DEFECT, "x" * (FRAME_BYTES_MAX // 8))
        while channel.backlog_bytes() <= control.BACKLOG_BYTES_MAX:
            channel.send_nowait(large)
        with pytest.raises(ControlError, match="has not read"):
            channel.send_nowait(large)
        assert channel.backlog_bytes() <= control.BACKLOG_BYTES_MAX + FRAME_BYTES_MAX


async def test_telling_a_peer_that_is_gone_is_no_error() -> None:
    async with pair() as (worker, agent):
        await agent.close()
        assert await worker.receive() is None
        for _ in range(3):
            worker.send_nowait(Leaving())
            await asyncio.sleep(0)


@given(st.binary(max_size=64))
def test_no_bytes_at_all_make_receiving_do_anything_but_answer_or_refuse(data: bytes) -> None:
    async def receive_all() -> None:
        async with raw_peer() as (peer, channel):
            peer.send(data)
            peer.close()
            try:
                while await channel.receive() is not None:
                    pass
            except ControlError:
                pass

    asyncio.run(receive_all())
