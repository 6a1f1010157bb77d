"""A pipeline that requires a device: a node offers its workers to the ledger when its device is up, and not before."""

# ruff: noqa: ARG002  # what stands in for others takes what they take

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_agent import HERE, Ledger, eventually

from millstream.processor.agent import Agent, HostFactory
from millstream.processor.node_settings import NodeSettings
from millstream.processor.participation import NodePlace


class Devices:
    """A node's devices, whose process comes up when the test wants it."""

    def __init__(self) -> None:
        self.is_up = False
        self.trouble = "sim0: starting"
        self.when_up: Callable[[], None] | None = None

    def start_one(self, when_up: Callable[[], None]) -> None:
        self.when_up = when_up

    async def run(self, tell: Any) -> None:
        await asyncio.Event().wait()

    def heard(self, worker: int, message: Any) -> None:
        raise AssertionError("no stage asks for one here")

    def gone(self, worker: int) -> None:
        pass

    def status(self) -> list[dict[str, Any]]:
        return []


@pytest.fixture(autouse=True)
def workers_find_the_fake_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))


async def test_no_shard_comes_before_a_device_is_up_and_readiness_says_why(tmp_path: Path) -> None:
    devices = Devices()
    factory = HostFactory(
        "fake_shard_host:make", {"directory": str(tmp_path), "shards": 2, "prepare": "requires-device"}
    )
    agent = Agent(NodeSettings(workers=1), factory, NodePlace(name="n"), Ledger(2).logs, devices=devices)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(agent.run())
        try:
            await eventually(lambda: devices.when_up is not None, "the node wants its device started")
            await asyncio.sleep(0.3)
            status = agent.status()
            assert (status["ready"], status["reason"]) == (False, "no-device")
            assert "sim0: starting" in status["detail"]
            assert status["workers"][0]["shards"] == []
            devices.is_up = True
            assert devices.when_up is not None
            devices.when_up()
            await eventually(lambda: len(agent.status()["workers"][0]["shards"]) == 2, "the shards come")
            await eventually(lambda: agent.status()["ready"], "the node is ready")
        finally:
            agent.request_stop()
            await running
