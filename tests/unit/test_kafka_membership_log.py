"""Kafka's ledger and beats where brokers move, hang and refuse: everything is bounded, and goes on by itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from membership_contract import beats_until, following, read_all
from two_topic_kafka import DELETE_RECORDS, FETCH, METADATA, TwoTopicKafka

from millstream.connectors.kafka import membership_log
from millstream.connectors.kafka.membership_log import KafkaMembershipLog, MembershipTimeouts
from millstream.connectors.kafka.requests import MetadataRequest
from millstream.processor.errors import RefusedError, UnavailableError

BUSY = MembershipTimeouts(request_s=30, append_s=30, beat_s=30)
SHORT = MembershipTimeouts(follow_wait_s=0.05, request_s=0.3, append_s=0.3, beat_s=0.3)

CALLS: dict[str, Callable[[KafkaMembershipLog], Awaitable[object]]] = {
    "follow": lambda log: log.follow(None),
    "append": lambda log: log.append([b"a"]),
    "delete": lambda log: log.delete_before(0),
    "beat": lambda log: log.send_beat(b"b"),
    "beats": lambda log: log.read_beats(),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@asynccontextmanager
async def member_of(kafka: TwoTopicKafka, timeouts: MembershipTimeouts = BUSY) -> AsyncIterator[KafkaMembershipLog]:
    async with kafka.serving() as settings:
        log = KafkaMembershipLog(settings, ledger="ledger", beats="beats", timeouts=timeouts)
        await log.connect()
        try:
            yield log
        finally:
            log.close()
            await asyncio.sleep(0.01)


async def until_done(call: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await call()
            break
        except UnavailableError:
            pass


async def test_a_follower_that_waits_holds_nobody_up() -> None:
    async with member_of(TwoTopicKafka(), MembershipTimeouts(follow_wait_s=20, request_s=30)) as log:
        end = (await log.follow(0) if await log.append([b"first"]) else await log.follow(None)).next_offset
        news = asyncio.create_task(following(log, end))
        await asyncio.sleep(0.05)
        await log.send_beat(b"beat")
        await log.delete_before(0)
        assert not news.done()
        await log.append([b"news"])
        assert [value for _, value in await news] == [b"news"]


@every_call
async def test_when_leaders_move_the_new_one_is_found(call: Callable[[KafkaMembershipLog], Awaitable[object]]) -> None:
    kafka = TwoTopicKafka(brokers=2)
    async with member_of(kafka) as log:
        await call(log)
        kafka.leader = 1
        await until_done(lambda: call(log))
        assert kafka.count(METADATA) <= 6


@every_call
async def test_a_broker_that_never_answers_costs_no_more_than_the_bound(
    call: Callable[[KafkaMembershipLog], Awaitable[object]],
) -> None:
    kafka = TwoTopicKafka()
    async with member_of(kafka, SHORT) as log:
        await until_done(lambda: call(log))
        kafka.deaf.add(0)
        async with asyncio.timeout(20):
            for _ in range(3):
                with pytest.raises(UnavailableError):
                    await call(log)
        kafka.deaf.clear()
        await until_done(lambda: call(log))


async def test_of_two_brokers_one_that_hangs_is_not_asked_for_the_way_again_and_again() -> None:
    kafka = TwoTopicKafka(brokers=2)
    async with member_of(kafka, SHORT) as log:
        await log.send_beat(b"by the first")
        kafka.deaf.add(0)
        kafka.leader = 1
        await until_done(lambda: log.send_beat(b"by the second"))
        before = kafka.count(METADATA, node=0)
        for _ in range(4):
            await log._cluster.refresh()
        assert kafka.count(METADATA, node=0) == before


async def test_many_may_ask_any_broker_at_once() -> None:
    kafka = TwoTopicKafka(brokers=2)
    async with member_of(kafka) as log:
        await asyncio.gather(*(log._cluster.call_any(MetadataRequest([])) for _ in range(10)))


@pytest.mark.parametrize("beats", [1, 20], ids=["few", "many"])
async def test_beats_are_fetched_25_ms_apart_however_many_come(beats: int) -> None:
    kafka = TwoTopicKafka()
    async with member_of(kafka) as log:
        await log.read_beats()
        loop = asyncio.get_running_loop()
        began, fetches, seen = loop.time(), kafka.count(FETCH), 0
        for _ in range(10):
            for number in range(beats):
                await log.send_beat(b"%d" % number)
            seen += len((await log.read_beats()).values)
        seen += len((await log.read_beats()).values)
        assert seen == 10 * beats
        assert kafka.count(FETCH) - fetches == 11
        # The last one may still be within its first 25 ms, and a timer may be a little early.
        assert loop.time() - began >= 10 * 0.024


async def test_unread_beats_are_told_by_the_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_log, "_BEATS_BYTES", 200)
    kafka = TwoTopicKafka()
    async with member_of(kafka) as log:
        await log.read_beats()
        for number in range(4):
            await log.send_beat(b"%d" % number * 50)
        pages = [await log.read_beats() for _ in range(4)]
        assert [len(page.values) for page in pages] == [1, 1, 1, 1]
        assert [page.is_behind for page in pages] == [True, True, True, False]


async def test_beats_that_are_gone_or_damaged_are_left_out_and_reading_goes_on_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = TwoTopicKafka()
    async with member_of(kafka) as log:
        await log.read_beats()
        await log.send_beat(b"lost")
        kafka.starts["beats"] = 1
        assert (await log.read_beats()).is_behind
        assert not (await log.read_beats()).is_behind
        monkeypatch.setattr(TwoTopicKafka, "batches", lambda *_: b"\0" * 100)
        await log.send_beat(b"damaged")
        assert (await log.read_beats()).is_behind
        monkeypatch.undo()
        await log.read_beats()
        await log.send_beat(b"later")
        assert await beats_until(log, b"later") == [b"later"]


async def test_who_may_not_delete_is_told_and_reads_on() -> None:
    kafka = TwoTopicKafka()
    kafka.denied.add(DELETE_RECORDS)
    async with member_of(kafka) as log:
        await log.append([b"a", b"b"])
        with pytest.raises(RefusedError, match=r"deleting records of ledger-0: .*TOPIC_AUTHORIZATION_FAILED"):
            await log.delete_before(1)
        assert [value for _, value in await read_all(log)] == [b"a", b"b"]


def test_what_an_agent_imports_of_kafka_is_light() -> None:
    program = (
        "import sys\n"
        "import millstream.connectors.kafka.membership_log, millstream.connectors.kafka.ledger_topic\n"
        "import millstream.connectors.kafka.admin, millstream.processor.preparation\n"
        "print(sorted({'numpy', 'numba', 'orjson', 'confluent_kafka', 'rich'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"[]\n"
