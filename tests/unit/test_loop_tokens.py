"""A user's token provider is asked in its own event loop, whoever needs the token."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka.abc import AbstractTokenProvider

from millstream.connectors.kafka.loop_tokens import with_tokens_from
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.connectors.kafka.token_file import TokenFile


class Provider(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, error: Exception | None = None) -> None:
        self.asked_in: list[asyncio.AbstractEventLoop] = []
        self._error = error

    async def token(self) -> str:
        self.asked_in.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        if self._error is not None:
            raise self._error
        return "secret"

    def extensions(self) -> dict[str, str]:
        return {"logicalCluster": "lkc-1"}


def settings(provider: AbstractTokenProvider) -> KafkaSettings:
    return KafkaSettings(
        brokers=("127.0.0.1:1",),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_token_provider=provider,
    )


def token_of(kafka: KafkaSettings) -> str:
    """Asked as a thread with a loop of its own would."""
    assert kafka.sasl_token_provider is not None
    return asyncio.run(kafka.sasl_token_provider.token())


async def test_a_provider_is_asked_in_its_own_loop() -> None:
    provider, loop = Provider(), asyncio.get_running_loop()
    elsewhere = with_tokens_from(loop, settings(provider))
    assert await asyncio.to_thread(token_of, elsewhere) == "secret"
    assert provider.asked_in == [loop]
    assert elsewhere.sasl_token_provider is not None
    assert elsewhere.sasl_token_provider.extensions() == {"logicalCluster": "lkc-1"}


async def test_its_error_is_raised_where_the_token_is_needed() -> None:
    elsewhere = with_tokens_from(asyncio.get_running_loop(), settings(Provider(OSError("no vault"))))
    with pytest.raises(OSError, match="no vault"):
        await asyncio.to_thread(token_of, elsewhere)


async def test_a_file_can_be_read_in_any_loop(tmp_path: Path) -> None:
    kafka = settings(TokenFile(tmp_path / "token"))
    assert with_tokens_from(asyncio.get_running_loop(), kafka) is kafka
