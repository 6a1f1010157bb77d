"""Pytest fixtures for tests that need Kafka. Activate them in the top `conftest.py`:

    pytest_plugins = ["millstream.connectors.kafka.pytest_broker"]

`broker` is one development broker for the whole session, started by the first test that asks for it. With
`MILLSTREAM_TEST_BROKERS=host:port,...` in the environment the tests use that cluster instead.

`three_brokers` is a `DevelopmentCluster` whose nodes a test may stop, kill and pause: it is whole again when the next
test gets it. It is started by the first test of a module that asks for it, and gone after that module, since it takes
about 13 s and 1 GiB of memory. It is always one of its own.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pytest

from millstream.connectors.kafka.development_broker import DevelopmentBroker
from millstream.connectors.kafka.development_cluster import DevelopmentCluster


class Broker(Protocol):
    """What a test may rely on, whichever cluster it runs against."""

    @property
    def bootstrap(self) -> str:
        """`host:port`, or several with commas between them."""


@dataclass(frozen=True)
class ExistingBroker:
    """A cluster that somebody else runs."""

    bootstrap: str


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    if brokers := os.environ.get("MILLSTREAM_TEST_BROKERS"):
        yield ExistingBroker(brokers)
        return
    with DevelopmentBroker() as started:
        yield started


@pytest.fixture(scope="module")
def three_brokers_of_module() -> Iterator[DevelopmentCluster]:
    """Not for tests: use `three_brokers`."""
    with DevelopmentCluster() as started:
        yield started


@pytest.fixture
def three_brokers(three_brokers_of_module: DevelopmentCluster) -> DevelopmentCluster:
    three_brokers_of_module.start()
    three_brokers_of_module.await_in_sync()
    return three_brokers_of_module


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """`unique("input")` is a topic, group or pipeline name that belongs to this test and this run alone."""
    test = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:80].strip("-")
    run = uuid.uuid4().hex[:8]
    return lambda purpose: f"{test}-{run}-{purpose}"
