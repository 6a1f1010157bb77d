"""Fixtures for all tests; `broker` starts a real Apache Kafka when the first test asks for it."""

pytest_plugins = ["millstream.connectors.kafka.pytest_broker"]
