"""A real NVIDIA device in its process; skipped where there is none."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cuda_functions import ILLEGAL_PRICE, doubled, endless, greedy, illegal
from device_functions import LENGTHS, PICKY, SCALED, TOTAL
from device_world import LIVENESS_S, device_world, expected_total, rows, settings, until

from millstream.gpu_offload.canary import difference, made_up_rows
from millstream.gpu_offload.device_client import DeviceClient
from millstream.processor.offloading import ArrayColumns, Offloadable, StageDefinition

cupy = pytest.importorskip("cupy", reason="CuPy is in the extras gpu-cu12 and gpu-cu13")
pytestmark = pytest.mark.skipif(not cupy.is_available(), reason="there is no NVIDIA device here")

CUDA = "cuda:0"


def prices(*values: float) -> ArrayColumns:
    return ArrayColumns({"price": np.array(values)}, {}, len(values))


def stage(**forms: Any) -> StageDefinition:
    return replace(PICKY, name="own", offloadable=Offloadable(cpu=doubled, **forms))


async def usable(client: DeviceClient, name: str) -> None:
    # The first start of all compiles every kernel.
    async with asyncio.timeout(4 * LIVENESS_S):
        await until(lambda: client.state(name) in ("ready", "half-open"))


@pytest.mark.parametrize("definition", [TOTAL, LENGTHS, SCALED], ids=lambda definition: definition.name)
async def test_the_answers_are_the_cpus(definition: StageDefinition) -> None:
    make = definition.offloadable.resident
    async with device_world(CUDA) as world:
        client, _ = world.client([definition])
        await usable(client, definition.name)
        for count in (1, 300, 4096):
            columns = made_up_rows(definition, count, seed=count)
            answer = await client.compute(definition.name, columns)
            assert answer is not None
            expected = definition.offloadable.compute(columns, [] if make is None else [make()])
            assert difference(definition, expected, answer, definition.offloadable.equality) is None


async def test_workers_that_share_the_device_get_their_own_rows() -> None:
    async with device_world(CUDA) as world:
        clients = [world.client()[0] for _ in range(3)]
        for client in clients:
            await usable(client, TOTAL.name)

        async def many(client: DeviceClient, first: int) -> None:
            for number in range(200):
                columns = rows(10 + number, first)
                answer = await client.compute(TOTAL.name, columns)
                assert answer is not None
                np.testing.assert_array_equal(answer["total"], expected_total(columns))

        await asyncio.gather(*(many(client, 1000 * place) for place, client in enumerate(clients)))


async def test_a_batch_that_the_memory_does_not_hold_goes_through_in_halves() -> None:
    async with device_world(CUDA) as world:
        client, news = world.client([stage(array=greedy)])
        await usable(client, "own")
        answer = await client.compute("own", prices(*range(1500)))
        assert answer is not None
        assert answer["total"].tolist() == [2.0 * price for price in range(1500)]
        assert [cap[2] for cap in news.caps] == [750]


@pytest.mark.parametrize("form", [illegal, endless], ids=["illegal-address", "endless-kernel"])
async def test_a_lost_device_answers_nothing_and_is_replaced(form: Any) -> None:
    async with device_world(CUDA) as world:
        client, _ = world.client([stage(gpu=form)], settings(cool_down_s=0.2, detection_s=0.5))
        await usable(client, "own")
        pid = world.child.pid
        assert await client.compute("own", prices(ILLEGAL_PRICE, 2.0)) is None
        assert client.state("own") == "open"
        await until(lambda: world.child.pid not in (None, pid))
        await until(lambda: client.state("own") == "half-open")
        shadow = await client.shadow("own", prices(1.0, 2.0), {"total": np.array([2.0, 4.0])})
        assert shadow is not None
        assert shadow.equal
