"""Kafka's log keeps the contract that the log in memory keeps."""

from __future__ import annotations

import asyncio

import pytest
from log_contract import LogContract
from outside import Outside

from millstream.connectors.kafka.kafka_log import KafkaLog, LogSettings
from millstream.connectors.kafka.settings import KafkaSettings, split_brokers
from millstream.processor.log import Log

pytestmark = pytest.mark.broker


class KafkaWorld:
    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._names = 0

    def log(self, group: str) -> Log:
        settings = KafkaSettings(brokers=split_brokers(self._outside.bootstrap))
        return KafkaLog(settings, LogSettings(group=group, exactly_once=True))

    def unique(self, name: str) -> str:
        self._names += 1
        return self._outside.unique(f"{name}-{self._names}")

    async def delete(self, topic: str) -> None:
        await asyncio.to_thread(self._outside.delete, topic)


class TestKafkaLog(LogContract):
    @pytest.fixture
    def world(self, outside: Outside) -> KafkaWorld:
        return KafkaWorld(outside)
