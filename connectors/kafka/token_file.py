"""An OAUTHBEARER token that something else keeps fresh in a file, as Kubernetes does for service accounts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aiokafka.abc import AbstractTokenProvider

from millstream.processor.errors import RefusedError


@dataclass(frozen=True)
class TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """Reads the file for every login, so that a renewed token is used by the next connection."""

    file: Path

    async def token(self) -> str:
        # A few hundred bytes from a local file; a thread would cost more than the read.
        try:
            token = self.file.read_text().strip()
        except OSError as error:
            raise RefusedError(f"the token file {self.file} cannot be read: {error.strerror}") from error
        if not token:
            raise RefusedError(f"the token file {self.file} is empty")
        return token
