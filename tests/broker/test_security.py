"""The same settings log both client libraries in to a real broker, over TLS and with every SASL mechanism."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka.admin import AdminClient

from millstream.connectors.kafka.connection import Connection
from millstream.connectors.kafka.development_broker import BrokerSecurity, DevelopmentBroker
from millstream.connectors.kafka.settings import PASSWORD_MECHANISMS, KafkaSettings
from millstream.processor.errors import RefusedError, SettingsError, WorldError

pytestmark = pytest.mark.broker

CERTIFICATES = Path(__file__).parent / "certificates"
ANSWER_S = 20
CLIENT_CERTIFICATE = {
    "ssl_ca_file": CERTIFICATES / "ca.pem",
    "ssl_certificate_file": CERTIFICATES / "client.pem",
    "ssl_key_file": CERTIFICATES / "client.key.pem",
}


class UnsecuredToken(AbstractTokenProvider):  # type: ignore[misc]
    """A token that only a broker for tests accepts: it is signed by nobody."""

    async def token(self) -> str:
        now = time.time()
        parts = ({"alg": "none"}, {"sub": "ada", "iat": now, "exp": now + 600})
        return (
            ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."
        )


@pytest.fixture(scope="module")
def secured() -> Iterator[DevelopmentBroker]:
    security = BrokerSecurity(
        sasl_users={"ada": "hunter2"},
        ssl_certificate_file=CERTIFICATES / "broker.pem",
        ssl_key_file=CERTIFICATES / "broker.key.pem",
        ssl_client_ca_file=CERTIFICATES / "ca.pem",
    )
    with DevelopmentBroker(heap_mb=256, security=security) as broker:
        yield broker


def sasl_settings(broker: DevelopmentBroker, **login: Any) -> KafkaSettings:
    return KafkaSettings(brokers=(broker.sasl_bootstrap,), security_protocol="SASL_PLAINTEXT", **login)


def ssl_settings(broker: DevelopmentBroker, **files: Any) -> KafkaSettings:
    return KafkaSettings(brokers=(broker.ssl_bootstrap,), security_protocol="SSL", **files)


async def connect_as_aiokafka(settings: KafkaSettings) -> None:
    ((host, port),) = settings.addresses
    connection = await Connection.open(host, port, settings)
    assert connection.usable
    connection.close()


def connect_as_confluent(settings: KafkaSettings) -> None:
    admin = AdminClient(settings.confluent_arguments())
    # Token callbacks of librdkafka are served by poll alone.
    admin.poll(0.5)
    assert len(admin.list_topics(timeout=ANSWER_S).brokers) == 1


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
async def test_both_clients_log_in_with_a_password(secured: DevelopmentBroker, mechanism: str) -> None:
    settings = sasl_settings(secured, sasl_mechanism=mechanism, sasl_username="ada", sasl_password="hunter2")
    await connect_as_aiokafka(settings)
    connect_as_confluent(settings)


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
async def test_a_wrong_password_is_refused_and_not_repeated_in_the_message(
    secured: DevelopmentBroker, mechanism: str
) -> None:
    settings = sasl_settings(secured, sasl_mechanism=mechanism, sasl_username="ada", sasl_password="letmein")
    with pytest.raises(RefusedError) as caught:
        await connect_as_aiokafka(settings)
    assert "letmein" not in str(caught.value)


async def test_both_clients_log_in_with_a_token(secured: DevelopmentBroker) -> None:
    settings = sasl_settings(secured, sasl_mechanism="OAUTHBEARER", sasl_token_provider=UnsecuredToken())
    await connect_as_aiokafka(settings)
    connect_as_confluent(settings)


async def test_both_clients_show_their_certificate(secured: DevelopmentBroker) -> None:
    settings = ssl_settings(secured, **CLIENT_CERTIFICATE)
    await connect_as_aiokafka(settings)
    connect_as_confluent(settings)


async def test_an_encrypted_key_opens_with_its_password(secured: DevelopmentBroker) -> None:
    encrypted = {**CLIENT_CERTIFICATE, "ssl_key_file": CERTIFICATES / "client.encrypted.key.pem"}
    settings = ssl_settings(secured, **encrypted, ssl_key_password="opensesame")
    await connect_as_aiokafka(settings)
    connect_as_confluent(settings)


@pytest.mark.parametrize("password", [None, "wrong"])
async def test_an_encrypted_key_without_its_password_is_reported_and_nobody_is_asked(
    secured: DevelopmentBroker, password: str | None
) -> None:
    encrypted = {**CLIENT_CERTIFICATE, "ssl_key_file": CERTIFICATES / "client.encrypted.key.pem"}
    with pytest.raises(SettingsError, match=r"client\.encrypted\.key\.pem"):
        await connect_as_aiokafka(ssl_settings(secured, **encrypted, ssl_key_password=password))


async def test_a_broker_of_an_unknown_authority_is_not_trusted(secured: DevelopmentBroker) -> None:
    with pytest.raises(WorldError, match="certificate"):
        await connect_as_aiokafka(ssl_settings(secured))


async def test_a_plain_connection_to_a_tls_port_fails_instead_of_waiting(secured: DevelopmentBroker) -> None:
    with pytest.raises(WorldError):
        await connect_as_aiokafka(KafkaSettings(brokers=(secured.ssl_bootstrap,), request_timeout_ms=2_000))


def test_security_settings_that_contradict_each_other_are_reported_together() -> None:
    security = BrokerSecurity(sasl_users={"a b": "c"}, ssl_key_file=Path("key"), ssl_client_ca_file=Path("ca"))
    with pytest.raises(SettingsError) as caught:
        DevelopmentBroker(security=security)
    assert len(caught.value.mistakes) == 3
