"""One record as a user's function sees it: where it stands, and everything beside its decoded value."""

from __future__ import annotations

from typing import NamedTuple

from millstream.processor.headers import NO_HEADERS, decode_headers


class Record(NamedTuple):
    """A record as it was read from Kafka. It cannot be changed.

    A function with a second required parameter is given the record of its value. `value` and `key` are the original
    bytes, None where Kafka holds null; `timestamp_ms` is milliseconds since 1970, or None for none.
    `header_section` is what `headers` decodes.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None = None
    key: bytes | None = None
    value: bytes | None = None
    header_section: bytes = NO_HEADERS

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """Names and values in their order; a name may come twice. Decoded each time that they are asked for.

        Raises ValueError where they are damaged.
        """
        return decode_headers(self.header_section)

    def __repr__(self) -> str:
        # Keys and values stay out of it, because what is printed ends up in logs.
        return f"Record({self.topic}-{self.partition}@{self.offset})"
