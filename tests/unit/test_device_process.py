"""A device in a process of its own: batches there and back, several workers, several devices, ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

import numpy as np
import psutil
from device_functions import LENGTHS, PICKY, SCALED, TOTAL
from device_world import FAST, LIVENESS_S, device_world, expected_total, ready, rows, settings, until

from millstream.gpu_offload.device_client import DeviceClient
from millstream.processor.offloading import ArrayColumns, Offloadable, Text


async def test_batches_are_computed_in_the_devices_process() -> None:
    async with device_world() as world:
        client, news = world.client()
        await ready(client)
        for count in (1, 7, 4096, 0):
            columns = rows(count)
            answer = await client.compute(TOTAL.name, columns)
            assert answer is not None
            np.testing.assert_array_equal(answer["total"], expected_total(columns))
        assert news.states == ["warming", "ready"]
        assert [timing.rows for timing in news.timings["gpu0", "total"]] == [1, 8, 64, 512, 4096, 32768]


async def test_texts_and_optional_fields_come_across_and_resident_arrays_are_there() -> None:
    async with device_world() as world:
        client, _ = world.client([LENGTHS, SCALED])
        await ready(client, LENGTHS)
        await ready(client, SCALED)
        text = Text(np.array([0, 2, 2, 5], np.int32), np.frombuffer(b"abcde", np.uint8))
        valid = np.array([True, False, True])
        answer = await client.compute("lengths", ArrayColumns({"text": text}, {"text": valid}, 3))
        assert answer is not None
        assert answer["length"].tolist() == [2, -1, 3]
        answer = await client.compute("scaled", ArrayColumns({"price": np.array([1.0, 2.0])}, {}, 2))
        assert answer is not None
        assert answer["scaled"].tolist() == [3.0, 6.0]


async def test_batches_of_two_workers_are_run_together_and_each_gets_its_own() -> None:
    # Each run takes so long that what comes meanwhile has to wait.
    async with device_world("simulated:fixed_us=50000,event_us=0") as world:
        first, _ = world.client([LENGTHS, TOTAL], settings(detection_s=10.0))
        second, _ = world.client([TOTAL], settings(detection_s=10.0))
        await ready(first)
        await ready(second)
        runs = runs_of(first)
        busy = asyncio.create_task(first.compute(TOTAL.name, rows(3)))
        await asyncio.sleep(0.02)
        batches = [(first, rows(5, 100)), (second, rows(6, 200)), (second, rows(7, 300))]
        answers = await asyncio.gather(*(client.compute(TOTAL.name, columns) for client, columns in batches))
        assert await busy is not None
        for (_, columns), answer in zip(batches, answers, strict=True):
            assert answer is not None
            np.testing.assert_array_equal(answer["total"], expected_total(columns))
        assert runs_of(first) - runs == 2


async def test_of_two_devices_one_goes_on_when_the_other_is_killed() -> None:
    async with device_world() as one, device_world() as other:
        client, _ = one.client()
        unharmed, other_news = other.client()
        await ready(client)
        await ready(unharmed)
        one.child.kill()
        await until(lambda: client.state(TOTAL.name) == "open")
        assert await client.compute(TOTAL.name, rows(5)) is None
        assert await unharmed.compute(TOTAL.name, rows(5)) is not None
        assert other_news.states == ["warming", "ready"]


async def test_with_all_slots_taken_the_answer_is_no_at_once() -> None:
    async with device_world("simulated:fixed_us=200000,event_us=0") as world:
        client, _ = world.client(with_settings=settings(slots=2, detection_s=10.0))
        await ready(client)
        taken = [asyncio.create_task(client.compute(TOTAL.name, rows(5))) for _ in range(2)]
        await asyncio.sleep(0)
        assert await client.compute(TOTAL.name, rows(5)) is None
        assert not any(task.done() for task in taken)
        assert None not in await asyncio.gather(*taken)
        # Being busy is no fault of the device's.
        assert client.state(TOTAL.name) == "ready"


async def test_a_batch_that_does_not_fit_into_a_slot_is_refused_at_once() -> None:
    async with device_world() as world:
        client, _ = world.client()
        await ready(client)
        assert await client.compute(TOTAL.name, rows(100_000)) is None
        assert client.state(TOTAL.name) == "ready"
        assert await client.compute(TOTAL.name, rows(10)) is not None


async def test_a_caller_that_is_cancelled_leaves_its_slot_to_the_device_until_the_answer() -> None:
    async with device_world("simulated:fixed_us=100000,event_us=0") as world:
        client, _ = world.client(with_settings=settings(slots=1, detection_s=10.0))
        await ready(client)
        task = asyncio.create_task(client.compute(TOTAL.name, rows(5)))
        await asyncio.sleep(0.02)
        task.cancel()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
        assert await client.compute(TOTAL.name, rows(5)) is None
        await until(lambda: client._link is not None and bool(client._link._free))
        assert await client.compute(TOTAL.name, rows(5)) is not None


async def test_functions_without_a_name_leave_the_stage_to_the_cpu_with_one_clear_line() -> None:
    nameless = replace(TOTAL, offloadable=Offloadable(array=lambda xp, columns: {xp: columns}))
    async with device_world() as world:
        client, _ = world.client([nameless])
        assert client.state(TOTAL.name) == "absent"
        told = client._stages[TOTAL.name].told[1]
        assert "'total'" in told
        assert "top level of a module" in told
        assert await client.compute(TOTAL.name, rows(5)) is None


async def test_a_stage_without_a_form_for_devices_is_not_loaded() -> None:
    without = replace(TOTAL, offloadable=Offloadable(cpu=expected_total))  # type: ignore[arg-type]
    async with device_world() as world:
        client, news = world.client([without])
        await until(lambda: bool(news.reason))
        assert client.state(TOTAL.name) == "absent"
        assert "has no form for a device" in news.reason


async def test_a_function_that_takes_no_made_up_rows_has_to_show_with_shadows_that_it_works() -> None:
    async with device_world() as world:
        client, _ = world.client([PICKY], settings(shadows=2))
        await until(lambda: client.state("picky") == "half-open")
        columns = ArrayColumns({"price": np.arange(1000.0, 1010.0)}, {}, 10)
        assert await client.compute("picky", columns) is None
        for _ in range(2):
            shadow = await client.shadow("picky", columns, {"total": columns["price"] * 2})
            assert shadow is not None
            assert shadow.equal
        assert await client.compute("picky", columns) is not None


async def test_a_function_that_fails_for_some_rows_is_left_after_three_times_in_a_row() -> None:
    async with device_world() as world:
        client, news = world.client([PICKY], settings(shadows=1))
        await until(lambda: client.state("picky") == "half-open")
        good, bad = ({"price": np.full(5, price)} for price in (2000.0, 1.0))
        await client.shadow("picky", ArrayColumns(good, {}, 5), {"total": good["price"] * 2})
        assert await client.compute("picky", ArrayColumns(bad, {}, 5)) is None
        assert client.state("picky") == "suspect"
        assert await client.compute("picky", ArrayColumns(good, {}, 5)) is not None
        assert client.state("picky") == "ready"
        for _ in range(3):
            assert await client.compute("picky", ArrayColumns(bad, {}, 5)) is None
        assert client.state("picky") == "open"
        # The name of the error, and nothing that it says: that may be a record's.
        assert news.reason == "stage 'picky': its function raised ValueError"


async def test_a_device_that_is_not_there_is_said_once_and_not_started_again() -> None:
    async with device_world("cuda:0") as world:
        await until(lambda: bool(world.states) and world.states[-1].state == "unavailable")
        assert [state.state for state in world.states] == ["starting", "unavailable"]
        assert "\n" not in world.states[-1].text
        await world.running[0]


def test_a_device_dies_with_whoever_started_it() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="millstream-") as directory,
        subprocess.Popen([sys.executable, "-c", ORPHAN, directory], stdout=subprocess.PIPE, text=True) as parent,
    ):
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        # As one that hangs would, it cannot see by itself that its parent is gone.
        child.suspend()
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + LIVENESS_S
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_process_loads_neither_cuda_nor_the_engine() -> None:
    code = (
        "import sys, millstream.gpu_offload.device_process, millstream.gpu_offload.simulated_backend;"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "numpy" in loaded
    assert not {"cupy", "numba", "aiokafka", "millstream.processor.pipeline"} & loaded


def runs_of(client: DeviceClient) -> int:
    assert client._link is not None
    return client._link._memory.runs


ORPHAN = f"""
import asyncio, sys
from pathlib import Path
from millstream.gpu_offload.device_child import DeviceChild

async def main():
    def heard(state):
        if state.state == "up":
            print(child.pid, flush=True)
    child = DeviceChild("gpu0", {FAST!r}, Path(sys.argv[1]), heard)
    async with asyncio.timeout({LIVENESS_S}):
        await child.run()

asyncio.run(main())
"""
