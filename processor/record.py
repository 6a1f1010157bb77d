"""One record as a user's function sees it: where it stands, and everything beside its decoded value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

Headers: TypeAlias = list[tuple[str, bytes | None]]


class Record:
    """A record as it was read from Kafka. It cannot be changed.

    A function with a second required parameter is given the record of its value. `value` and `key` are the original
    bytes, None where Kafka holds null; `timestamp_ms` is milliseconds since 1970, or None for none.
    """

    __slots__ = ("_headers", "key", "offset", "partition", "timestamp_ms", "topic", "value")

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    _headers: Headers | Callable[[], Headers]

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] | Callable[[], Headers] = (),
    ) -> None:
        place = object.__setattr__
        place(self, "topic", topic)
        place(self, "partition", partition)
        place(self, "offset", offset)
        place(self, "timestamp_ms", timestamp_ms)
        place(self, "key", key)
        place(self, "value", value)
        place(self, "_headers", headers if callable(headers) else list(headers))

    @property
    def headers(self) -> Headers:
        """Names and values in their order; a name may come twice. Decoded when first asked for."""
        if callable(self._headers):
            object.__setattr__(self, "_headers", self._headers())
        headers: Headers = list(self._headers)  # type: ignore[arg-type]  # decoded in the line above
        return headers

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Record cannot be changed: {name}")

    def __repr__(self) -> str:
        # Keys and values stay out of it, because what is printed ends up in logs.
        return f"Record({self.topic}-{self.partition}@{self.offset})"
