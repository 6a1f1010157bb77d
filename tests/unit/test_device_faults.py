"""Devices that die, hang, lie or run out of memory, while they compute: the answer is none, and never a wrong one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from device_functions import TOTAL
from device_world import device_world, expected_total, ready, rows, settings, until

from millstream.gpu_offload.device_client import DeviceClient
from millstream.gpu_offload.simulated_faults import Fault, FaultKind


async def readmitted(client: DeviceClient) -> None:
    """Show with shadows that the device is well again."""
    await until(lambda: client.state(TOTAL.name) == "half-open")
    columns = rows(20)
    assert await client.compute(TOTAL.name, columns) is None
    while client.state(TOTAL.name) == "half-open":
        shadow = await client.shadow(TOTAL.name, columns, {"total": expected_total(columns)})
        assert shadow is not None
        assert shadow.equal
    answer = await client.compute(TOTAL.name, columns)
    assert answer is not None
    np.testing.assert_array_equal(answer["total"], expected_total(columns))


@pytest.mark.parametrize("kind", [FaultKind.KILLED, FaultKind.HANG, FaultKind.STICKY])
async def test_a_device_that_dies_or_hangs_with_a_batch_is_replaced_and_admitted_again(kind: FaultKind) -> None:
    async with device_world() as world:
        client, news = world.client(with_settings=settings(cool_down_s=0.2, detection_s=0.3))
        await ready(client)
        pid = world.child.pid
        world.fault(Fault(kind=kind, batches=1))
        assert await client.compute(TOTAL.name, rows(100)) is None
        assert client.state(TOTAL.name) == "open"
        await until(lambda: world.child.pid not in (None, pid))
        await readmitted(client)
        ends = [state.text for state in world.states if state.state == "gone"]
        assert ends == ["the device was lost" if kind is FaultKind.STICKY else "its process was ended by signal 9"]
        assert news.states[:3] == ["warming", "ready", "open"]


async def test_a_device_that_is_killed_without_a_batch_is_not_used_before_it_has_shown_that_it_works() -> None:
    async with device_world() as world:
        client, _ = world.client(with_settings=settings(cool_down_s=0.1))
        await ready(client)
        world.child.kill()
        await until(lambda: client.state(TOTAL.name) == "open")
        await readmitted(client)


async def test_the_killed_ones_other_batches_are_answered_with_none_at_once() -> None:
    async with device_world("simulated:fixed_us=100000,event_us=0") as world:
        client, _ = world.client(with_settings=settings(detection_s=60.0))
        await ready(client)
        world.fault(Fault(kind=FaultKind.KILLED, batches=1))
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*(client.compute(TOTAL.name, rows(5)) for _ in range(4)))
        assert answers == [None] * 4


async def test_a_slow_device_is_left_but_not_killed_and_its_late_answer_is_dropped() -> None:
    async with device_world("simulated:fixed_us=20000,event_us=0") as world:
        slow, _ = world.client(with_settings=settings(cool_down_s=0.2, detection_s=1.4, slots=1))
        patient, _ = world.client(with_settings=settings(detection_s=60.0))
        await ready(slow)
        await ready(patient)
        pid = world.child.pid
        world.fault(Fault(kind=FaultKind.SLOW, factor=50, batches=2))
        # Both runs take 1 s; the second batch waits for the first run, so that one is finished meanwhile.
        first = asyncio.create_task(patient.compute(TOTAL.name, rows(5)))
        await asyncio.sleep(0.05)
        assert await slow.compute(TOTAL.name, rows(7, 700)) is None
        assert slow.state(TOTAL.name) == "open"
        assert await first is not None
        await readmitted(slow)
        assert world.child.pid == pid


async def test_a_wrong_device_is_not_admitted() -> None:
    async with device_world() as world:
        world.fault(Fault(kind=FaultKind.WRONG))
        client, news = world.client()
        await until(lambda: client.state(TOTAL.name) == "open")
        assert "the device's answer is not the CPU's" in news.reason
        assert await client.compute(TOTAL.name, rows(5)) is None


async def test_a_device_that_becomes_wrong_is_found_by_a_shadow_and_kept_out() -> None:
    async with device_world() as world:
        client, news = world.client()
        await ready(client)
        world.fault(Fault(kind=FaultKind.WRONG))
        columns = rows(50)
        shadow = await client.shadow(TOTAL.name, columns, {"total": expected_total(columns)})
        assert shadow is not None
        assert not shadow.equal
        assert client.state(TOTAL.name) == "open"
        assert news.reason == "wrong answer: column 'total' differs in 50 of 50 rows"
        assert await client.compute(TOTAL.name, columns) is None


async def test_made_up_rows_keep_a_wrong_device_out_after_its_cool_down() -> None:
    async with device_world() as world:
        client, news = world.client(with_settings=settings(cool_down_s=0.05))
        await ready(client)
        world.fault(Fault(kind=FaultKind.WRONG))
        columns = rows(50)
        await client.shadow(TOTAL.name, columns, {"total": expected_total(columns)})
        # The longest cool-down is over twice.
        await asyncio.sleep(0.5)
        assert "half-open" not in news.states
        world.fault(None)
        await readmitted(client)


async def test_a_batch_that_is_too_large_for_the_memory_goes_through_in_halves_and_the_next_are_smaller() -> None:
    async with device_world() as world:
        client, news = world.client()
        await ready(client)
        world.fault(Fault(kind=FaultKind.OUT_OF_MEMORY, rows=600))
        columns = rows(1000)
        answer = await client.compute(TOTAL.name, columns)
        assert answer is not None
        np.testing.assert_array_equal(answer["total"], expected_total(columns))
        assert news.caps == [("gpu0", "total", 500, 600.0)]
        assert client.state(TOTAL.name) == "ready"


async def test_where_not_even_halves_fit_the_answer_is_none_and_the_cap_smaller() -> None:
    async with device_world() as world:
        client, news = world.client()
        await ready(client)
        world.fault(Fault(kind=FaultKind.OUT_OF_MEMORY, rows=10))
        assert await client.compute(TOTAL.name, rows(1000)) is None
        assert news.caps == [("gpu0", "total", 250, 600.0)]
        # It is the size, not the device.
        assert client.state(TOTAL.name) == "ready"
        assert await client.compute(TOTAL.name, rows(10)) is not None


async def test_one_workers_batch_of_a_run_that_was_split_can_fail_and_the_others_not() -> None:
    async with device_world("simulated:fixed_us=50000,event_us=0") as world:
        client, _ = world.client(with_settings=settings(detection_s=10.0))
        await ready(client)
        busy = asyncio.create_task(client.compute(TOTAL.name, rows(3)))
        await asyncio.sleep(0.02)
        world.fault(Fault(kind=FaultKind.OUT_OF_MEMORY, rows=600))
        both = await asyncio.gather(*(client.compute(TOTAL.name, rows(count, count)) for count in (500, 501)))
        await busy
        for count, answer in zip((500, 501), both, strict=True):
            assert answer is not None
            np.testing.assert_array_equal(answer["total"], expected_total(rows(count, count)))


async def test_a_device_that_always_dies_while_it_warms_up_is_never_ready_and_harms_nobody() -> None:
    async with device_world() as world:
        world.fault(Fault(kind=FaultKind.KILLED))
        client, _ = world.client()
        await until(lambda: [state.state for state in world.states].count("gone") >= 3)
        assert client.state(TOTAL.name) in ("absent", "warming")
        assert await client.compute(TOTAL.name, rows(5)) is None
        world.fault(None)
        await ready(client)


async def test_a_stage_that_does_not_become_ready_in_time_is_said_to_be_absent() -> None:
    async with device_world() as world:
        world.fault(Fault(kind=FaultKind.HANG))
        client, news = world.client(with_settings=replace(settings(), warm_up_s=0.3))
        await until(lambda: "not ready within" in news.reason)
        assert client.state(TOTAL.name) == "absent"
