"""The log in memory keeps the contract that Kafka's keeps."""

from __future__ import annotations

from itertools import count

import pytest
from log_contract import LogContract
from memory_broker import MemoryBroker
from memory_log import MemoryLog

from millstream.processor.log import Log


class MemoryWorld:
    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self._numbers = count()

    def log(self, group: str) -> Log:
        return MemoryLog(self.broker, group)

    def unique(self, name: str) -> str:
        return f"{name}-{next(self._numbers)}"

    async def delete(self, topic: str) -> None:
        self.broker.delete(topic)


class TestMemoryLog(LogContract):
    @pytest.fixture
    def world(self) -> MemoryWorld:
        return MemoryWorld()
