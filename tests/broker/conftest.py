"""Fixtures of tests that need Kafka."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from outside import Outside

from millstream.connectors.kafka.pytest_broker import Broker


@pytest.fixture
def outside(broker: Broker, unique: Callable[[str], str]) -> Outside:
    """The test's cluster, seen by another client library."""
    return Outside(broker.bootstrap, unique)
