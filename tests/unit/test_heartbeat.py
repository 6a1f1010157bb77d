"""Beats come at their interval, together with what wakes the node anyway, and wait for no answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from virtual_time import simulated

from millstream.processor.alarm import Alarm
from millstream.processor.heartbeat import Heartbeat

INTERVAL_S = 0.05
EARLY_S = 0.0125


class Beats:
    def __init__(self) -> None:
        self.sent: list[float] = []
        self.answers = True
        self.is_silent = False
        self.interval_s = INTERVAL_S
        self.heart = Heartbeat(lambda: self.interval_s, EARLY_S, self._beat)

    def _beat(self, now: float) -> Coroutine[Any, Any, None] | None:
        return None if self.is_silent else self._send(now)

    async def _send(self, now: float) -> None:
        self.sent.append(now)
        if not self.answers:
            await asyncio.Event().wait()

    def gaps(self) -> list[float]:
        return [later - sooner for sooner, later in zip(self.sent, self.sent[1:], strict=False)]


@asynccontextmanager
async def beating() -> AsyncIterator[Beats]:
    beats = Beats()
    running = asyncio.create_task(beats.heart.run())
    try:
        yield beats
    finally:
        running.cancel()
        await asyncio.wait({running})


async def wake(beats: Beats, every_s: float, times: int) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(times):
        await asyncio.sleep(every_s)
        beats.heart.forestall(loop.time())


@simulated
async def test_with_nothing_else_to_wake_it_a_beat_is_as_late_as_it_may_be_and_never_more() -> None:
    async with beating() as beats:
        await asyncio.sleep(10)
        assert max(beats.gaps()) <= INTERVAL_S + EARLY_S + 0.001
        assert len(beats.sent) >= 10 / (INTERVAL_S + EARLY_S)


@simulated
async def test_beats_are_sent_with_what_wakes_the_node_and_keep_their_interval() -> None:
    async with beating() as beats:
        await wake(beats, INTERVAL_S / 2, 400)
        settled = beats.gaps()[20:]
        assert all(gap == pytest.approx(INTERVAL_S, abs=0.001) for gap in settled)


@simulated
async def test_whatever_the_rhythm_of_the_pages_the_rate_stays() -> None:
    for every_s in (0.004, 0.02, 0.027, 0.033):
        async with beating() as beats:
            await wake(beats, every_s, int(20 / every_s))
            assert len(beats.sent) == pytest.approx(400, rel=0.03)
            assert max(beats.gaps()) <= INTERVAL_S + 2 * EARLY_S + 0.001


@simulated
async def test_beats_that_get_no_answer_are_bounded_and_hold_up_nothing() -> None:
    async with beating() as beats:
        beats.answers = False
        await asyncio.sleep(5)
        assert len(beats.sent) == 8


@simulated
async def test_silence_ends_when_there_is_something_to_say_and_the_interval_may_change() -> None:
    async with beating() as beats:
        beats.is_silent = True
        await asyncio.sleep(1)
        assert not beats.sent
        beats.is_silent, beats.interval_s = False, INTERVAL_S / 5
        await asyncio.sleep(1)
        assert len(beats.sent) >= 75


@simulated
async def test_an_error_of_a_beat_ends_the_beating() -> None:
    async def failing() -> None:
        raise ValueError("refused")

    with pytest.raises(ExceptionGroup) as raised:
        await Heartbeat(lambda: INTERVAL_S, EARLY_S, lambda _: failing()).run()
    assert raised.group_contains(ValueError, match="refused")


@simulated
async def test_an_alarm_that_is_put_off_before_anyone_heard_it_goes_off_later() -> None:
    loop = asyncio.get_running_loop()
    alarm = Alarm()
    alarm.set(loop.time())
    waiting = asyncio.create_task(alarm.wait())
    await asyncio.sleep(0.01)
    assert waiting.done()

    alarm.set(loop.time() + 1)
    waiting = asyncio.create_task(alarm.wait())
    loop.call_at(loop.time() + 1, alarm.set, loop.time() + 3)
    await asyncio.sleep(2)
    assert not waiting.done()
    await asyncio.sleep(1.1)
    assert waiting.done()
    alarm.set(float("inf"))
    assert alarm.due == float("inf")
