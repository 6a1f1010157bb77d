"""Kafka's framing, read by hand: what a request is, which topics and transactional ids it names. Pure.

Written apart from the client's own codec: what a fault does to the client must not depend on the client being right.
Old request versions are read too, since other clients speak them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_HEADER = struct.Struct(">hhi")


class FrameError(ValueError):
    """Bytes that are no Kafka frame, or that end too early."""


class Api(IntEnum):
    """The kinds of requests that the fault tools speak of, by their API keys."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_QUORUM = 55
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_TRANSACTIONS = 65
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79


TO_TRANSACTION_COORDINATOR = frozenset(
    {Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, Api.END_TXN, Api.DESCRIBE_TRANSACTIONS}
)
NAMING_TOPICS = frozenset({Api.PRODUCE, Api.FETCH})
# The first field of their bodies is the transactional id. (AddPartitionsToTxn carries several from version 4 on, which
# only brokers send.)
NAMING_TRANSACTIONAL_ID = frozenset(
    {
        Api.PRODUCE,
        Api.INIT_PRODUCER_ID,
        Api.ADD_PARTITIONS_TO_TXN,
        Api.ADD_OFFSETS_TO_TXN,
        Api.END_TXN,
        Api.TXN_OFFSET_COMMIT,
    }
)
# From these versions on strings are compact and structures end in tagged fields. Only of what is looked into here.
_FLEXIBLE_FROM = {
    Api.PRODUCE: 9,
    Api.FETCH: 12,
    Api.METADATA: 9,
    Api.FIND_COORDINATOR: 3,
    Api.API_VERSIONS: 3,
    Api.INIT_PRODUCER_ID: 2,
    Api.ADD_PARTITIONS_TO_TXN: 3,
    Api.ADD_OFFSETS_TO_TXN: 3,
    Api.END_TXN: 3,
    Api.TXN_OFFSET_COMMIT: 3,
    Api.DESCRIBE_CLUSTER: 0,
}
_PRODUCE_VERSIONS = range(3, 14)
_FETCH_VERSIONS = range(4, 18)
TOPIC_IDS_FROM = 13


def is_flexible(api: int, version: int) -> bool:
    """Whether this version has compact strings and tagged fields; asked only of what `_FLEXIBLE_FROM` lists."""
    return version >= _FLEXIBLE_FROM[Api(api)]


class Cursor:
    """Reads a frame from a position on. Every method raises FrameError rather than read past the end."""

    __slots__ = ("data", "flexible", "position")

    def __init__(self, data: bytes | memoryview, position: int, *, flexible: bool) -> None:
        self.data = data
        self.position = position
        self.flexible = flexible

    def skip(self, size: int) -> int:
        """Pass over so many bytes; answers where they begin."""
        start = self.position
        if size < 0 or start + size > len(self.data):
            raise FrameError(f"{size} bytes wanted at {start} of a frame of which there are {len(self.data)}")
        self.position = start + size
        return start

    def int16(self) -> int:
        value: int = _INT16.unpack_from(self.data, self.skip(2))[0]
        return value

    def int32(self) -> int:
        value: int = _INT32.unpack_from(self.data, self.skip(4))[0]
        return value

    def varint(self) -> int:
        """An unsigned one of at most five bytes."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.data[self.skip(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise FrameError(f"a varint of more than five bytes at {self.position}")

    def string(self) -> str | None:
        """A string, compact or with its two-byte length; None where it is null."""
        size = self.varint() - 1 if self.flexible else self.int16()
        if size < 0:
            return None
        start = self.skip(size)
        return str(self.data[start : start + size], "utf-8", "replace")

    def skip_blob(self) -> None:
        """Bytes of any length, null ones included."""
        size = self.varint() - 1 if self.flexible else self.int32()
        self.skip(max(size, 0))

    def count(self) -> int:
        """The number of elements of an array; a null one has none. Each takes a byte at least."""
        count = max(self.varint() - 1 if self.flexible else self.int32(), 0)
        if count > len(self.data) - self.position:
            raise FrameError(f"an array of {count} at {self.position} of a frame of {len(self.data)} bytes")
        return count

    def each(self, read: Callable[[Cursor], None]) -> None:
        """Read every element of an array."""
        for _ in range(self.count()):
            read(self)

    def skip_tags(self) -> None:
        """The tagged fields at the end of a structure; versions that are not flexible have none."""
        if self.flexible:
            for _ in range(self.varint()):
                self.varint()
                self.skip(self.varint())


@dataclass(frozen=True, slots=True)
class Request:
    """A request as its header tells it. `head` is the frame from its API key on, or the first part of a large one."""

    api: int
    version: int
    correlation_id: int
    head: bytes
    size: int

    @property
    def is_whole(self) -> bool:
        """Whether `head` is all of it."""
        return len(self.head) == self.size

    def body(self) -> Cursor:
        """The body's beginning. Raises FrameError where the header is malformed."""
        flexible = is_flexible(self.api, self.version)
        cursor = Cursor(self.head, _HEADER.size, flexible=False)
        cursor.string()  # the client's name keeps the old form in every version
        cursor.flexible = flexible
        cursor.skip_tags()
        return cursor


def read_request(head: bytes, size: int) -> Request:
    """The request that begins with `head`, of `size` bytes in all. Raises FrameError where it is too short."""
    if len(head) < _HEADER.size:
        raise FrameError(f"a request of {size} bytes is shorter than its header")
    api, version, correlation_id = _HEADER.unpack_from(head)
    return Request(api, version, correlation_id, head, size)


def transactional_id(request: Request) -> str | None:
    """The transactional id that a request carries, None where it has none or is of a kind without.

    Raises FrameError where the request is malformed.
    """
    if request.api not in NAMING_TRANSACTIONAL_ID:
        return None
    return request.body().string()


def topics(request: Request, names: Mapping[bytes, str]) -> frozenset[str]:
    """The topics that a Produce or Fetch names, as far as `head` reaches; ids are looked up in `names`.

    Raises FrameError for versions that are not known, for ids that are not, and for incremental fetch sessions: what
    such a request reads cannot be told from itself.
    """
    if request.api not in NAMING_TOPICS:
        return frozenset()
    found: list[str] = []
    cursor = request.body()
    before_topics = _before_produced if request.api == Api.PRODUCE else _before_fetched
    skip_partition = _skip_produced if request.api == Api.PRODUCE else _fetched_skipper(request.version)

    def read_topic(cursor: Cursor) -> None:
        found.append(_topic(request, cursor, names))
        cursor.each(skip_partition)
        cursor.skip_tags()

    before_topics(request, cursor)
    try:
        cursor.each(read_topic)
    except FrameError:
        # A large request ends in the middle of a topic's records; the names up to there are known.
        if request.is_whole or not found:
            raise
    return frozenset(found)


def _topic(request: Request, cursor: Cursor, names: Mapping[bytes, str]) -> str:
    if request.version < TOPIC_IDS_FROM:
        return cursor.string() or ""
    start = cursor.skip(16)
    topic_id = bytes(cursor.data[start : start + 16])
    if topic_id not in names:
        raise FrameError(
            f"the topic id {topic_id.hex()} was in no Metadata answer that passed here; "
            "let the client ask for its topics through this proxy"
        )
    return names[topic_id]


def _before_produced(request: Request, cursor: Cursor) -> None:
    _expect(request, _PRODUCE_VERSIONS)
    cursor.string()  # transactional id
    cursor.skip(2 + 4)  # acknowledgements, timeout


def _skip_produced(cursor: Cursor) -> None:
    cursor.skip(4)
    cursor.skip_blob()
    cursor.skip_tags()


def _before_fetched(request: Request, cursor: Cursor) -> None:
    _expect(request, _FETCH_VERSIONS)
    cursor.skip(4 if request.version < 15 else 0)  # replica
    cursor.skip(4 + 4 + 4 + 1)  # wait, least, most, isolation
    if request.version >= 7:
        cursor.skip(4)
        epoch = cursor.int32()
        if epoch > 0:
            raise FrameError(
                f"a Fetch of session epoch {epoch} does not name all that it reads; rules with topics need a client "
                "without fetch sessions"
            )


def _fetched_skipper(version: int) -> Callable[[Cursor], None]:
    # Partition, leader epoch (9+), offset, last fetched epoch (12+), log start (5+), most bytes.
    size = 4 + 4 * (version >= 9) + 8 + 4 * (version >= 12) + 8 * (version >= 5) + 4

    def skip(cursor: Cursor) -> None:
        cursor.skip(size)
        cursor.skip_tags()

    return skip


def _expect(request: Request, versions: range) -> None:
    if request.version not in versions:
        raise FrameError(
            f"{Api(request.api).name} version {request.version} cannot be looked into, only {versions.start} to "
            f"{versions.stop - 1}; describe it in kafka_frames.py"
        )
