"""Fixtures for all tests; `broker` starts a real Apache Kafka when the first test asks for it."""

import pytest

pytest_plugins = ["millstream.connectors.kafka.pytest_broker"]
# Suites that several test modules share should say as much when they fail as they do.
pytest.register_assert_rewrite("log_contract", "membership_contract")
