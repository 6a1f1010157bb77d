"""A user's token provider for connections that live in another event loop than the provider's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

from aiokafka.abc import AbstractTokenProvider

from millstream.connectors.kafka.settings import KafkaSettings
from millstream.connectors.kafka.token_file import TokenFile


class LoopTokens(AbstractTokenProvider):  # type: ignore[misc]
    """Asks the provider in its own loop: it may use clients that belong there."""

    def __init__(self, provider: AbstractTokenProvider, loop: asyncio.AbstractEventLoop) -> None:
        self._provider = provider
        self._loop = loop

    async def token(self) -> str:
        """What the provider says."""
        asked = asyncio.run_coroutine_threadsafe(self._provider.token(), self._loop)
        return cast(str, await asyncio.wrap_future(asked))

    def extensions(self) -> dict[str, str]:
        """What the provider says."""
        return cast(dict[str, str], self._provider.extensions())


def with_tokens_from(loop: asyncio.AbstractEventLoop, kafka: KafkaSettings) -> KafkaSettings:
    """The settings for use in another loop than `loop`, in which a provider of the user's is asked all the same."""
    provider = kafka.sasl_token_provider
    if provider is None or isinstance(provider, TokenFile):
        return kafka
    return replace(kafka, sasl_token_provider=LoopTokens(provider, loop))
