"""Brokers' addresses in Kafka's answers: where they stand, and other ones in their place. Pure.

Only the bytes of hosts and ports are replaced, the rest of an answer stays as it is, so that little of it has to be
understood. What carries addresses in a version that is not described here is refused when it is asked for. The answer
to ApiVersions is changed so that no client that negotiates asks for such a version.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from millstream.loadgen.kafka_frames import TOPIC_IDS_FROM, Api, Cursor, FrameError, is_flexible

# The highest version of each kind that is described here; -1 is none. Fetch names other brokers from version 16 on,
# at its very end: a version before that saves walking through all that was fetched.
NEWEST = {
    Api.PRODUCE: 13,
    Api.FETCH: 15,
    Api.METADATA: 13,
    Api.FIND_COORDINATOR: 6,
    Api.DESCRIBE_CLUSTER: 2,
    Api.DESCRIBE_QUORUM: 1,
    Api.FETCH_SNAPSHOT: 0,
    Api.SHARE_FETCH: -1,
    Api.SHARE_ACKNOWLEDGE: -1,
}
# Kinds up to here have been looked through for addresses (Apache Kafka 4.4).
_API_KEY_MAX = 92
_PRODUCE_ENDPOINTS_FROM = 10
_UNSUPPORTED_VERSION = 35
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_CORRELATION_ID_BYTES = 4
_METADATA_IDS_FROM = 10


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker says that it listens. `node_id` is -1 where nobody knows it."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Place:
    """An address in an answer: the bytes `start` to `end` hold its host and then its port."""

    address: Address
    start: int
    end: int


def check_version(api: int, version: int) -> None:
    """Raises FrameError where the answer may carry addresses that would not be found."""
    if api in NEWEST:
        newest = NEWEST[Api(api)]
    elif api <= _API_KEY_MAX:
        return
    else:
        newest = -1
    if version > newest:
        raise FrameError(
            f"the answer to request {api} version {version} may carry brokers' addresses in a form that is not "
            f"described (known up to {newest}); add it to kafka_addresses.py, or have the client negotiate versions"
        )


def carries_addresses(api: int) -> bool:
    """Whether `places` has to look at such an answer."""
    return api in _WALKS


def places(api: int, version: int, answer: bytes) -> list[Place]:
    """Every address in an answer (from its correlation id on). Raises FrameError where it is malformed.

    An answer that there is no such broker has an empty host; that is no address.
    """
    cursor = Cursor(answer, _CORRELATION_ID_BYTES, flexible=is_flexible(api, version))
    cursor.skip_tags()  # the header's
    found: list[Place] = []
    _WALKS[Api(api)](version, cursor, found)
    return [place for place in found if place.address.host]


def replaced(
    api: int, version: int, answer: bytes, found: Sequence[Place], new: Mapping[Address, tuple[str, int]]
) -> bytes:
    """The answer with the hosts and ports of `new` in the found places."""
    parts: list[bytes] = []
    end = 0
    for place in found:
        host, port = new[place.address]
        raw = host.encode()
        size = _varint(len(raw) + 1) if is_flexible(api, version) else _INT16.pack(len(raw))
        parts += (answer[end : place.start], size, raw, _INT32.pack(port))
        end = place.end
    parts.append(answer[end:])
    return b"".join(parts)


def without_endpoints(version: int, answer: bytes) -> bytes:
    """A Produce answer without the addresses of new leaders, which are a hint: a client without it asks for metadata.

    Raises FrameError where the answer is malformed.
    """
    if version < _PRODUCE_ENDPOINTS_FROM:
        return answer
    cursor = Cursor(answer, _CORRELATION_ID_BYTES, flexible=True)
    cursor.skip_tags()

    def skip_record_error(cursor: Cursor) -> None:
        cursor.skip(4)
        cursor.string()
        cursor.skip_tags()

    def skip_partition(cursor: Cursor) -> None:
        cursor.skip(4 + 2 + 8 + 8 + 8)  # partition, error, offset, append time, log start
        cursor.each(skip_record_error)
        cursor.string()
        cursor.skip_tags()

    def skip_topic(cursor: Cursor) -> None:
        if version < TOPIC_IDS_FROM:
            cursor.string()
        else:
            cursor.skip(16)
        cursor.each(skip_partition)
        cursor.skip_tags()

    cursor.each(skip_topic)
    cursor.skip(4)  # throttle time
    return answer[: cursor.position] + b"\x00"


def topic_names(version: int, answer: bytes) -> dict[bytes, str]:
    """The names behind topic ids, as a Metadata answer tells them; none before version 10. Raises FrameError."""
    names: dict[bytes, str] = {}
    if version < _METADATA_IDS_FROM:
        return names
    cursor = Cursor(answer, _CORRELATION_ID_BYTES, flexible=True)
    cursor.skip_tags()
    _walk_metadata(version, cursor, [])
    cursor.string()  # cluster
    cursor.skip(4)  # controller

    def skip_id(cursor: Cursor) -> None:
        cursor.skip(4)

    def skip_partition(cursor: Cursor) -> None:
        cursor.skip(2 + 4 + 4 + 4)  # error, partition, leader, its epoch
        for _ in range(3):  # replicas, in-sync ones, offline ones
            cursor.each(skip_id)
        cursor.skip_tags()

    def read_topic(cursor: Cursor) -> None:
        cursor.skip(2)
        name = cursor.string()
        start = cursor.skip(16)
        cursor.skip(1)
        if name is not None:
            names[answer[start : start + 16]] = name
        cursor.each(skip_partition)
        cursor.skip(4)
        cursor.skip_tags()

    cursor.each(read_topic)
    return names


def clamped(version: int, answer: bytes) -> bytes:
    """An ApiVersions answer in which nothing newer is offered than can be read here. Raises FrameError."""
    changed = bytearray(answer)
    cursor = Cursor(answer, _CORRELATION_ID_BYTES, flexible=False)  # its header has no tags in any version
    error = cursor.int16()
    # A version that the broker does not know is answered in the oldest form, so that clients of any age can read it.
    cursor.flexible = is_flexible(Api.API_VERSIONS, version) and error != _UNSUPPORTED_VERSION

    def clamp(cursor: Cursor) -> None:
        api = cursor.int16()
        oldest = cursor.int16()
        at = cursor.position
        newest = cursor.int16()
        wanted = min(newest, NEWEST[Api(api)]) if api in NEWEST else newest
        # What cannot be spoken at all is left as it is; `check_version` refuses it when it comes.
        if oldest <= wanted:
            _INT16.pack_into(changed, at, wanted)
        cursor.skip_tags()

    cursor.each(clamp)
    return bytes(changed)


def _walk_metadata(version: int, cursor: Cursor, found: list[Place]) -> None:
    cursor.skip(4 if version >= 3 else 0)  # throttle time

    def read_broker(cursor: Cursor) -> None:
        found.append(_place(cursor))
        if version >= 1:
            cursor.string()  # rack
        cursor.skip_tags()

    cursor.each(read_broker)


def _walk_coordinators(version: int, cursor: Cursor, found: list[Place]) -> None:
    cursor.skip(4 if version >= 1 else 0)  # throttle time
    if version < 4:
        cursor.skip(2)
        if version >= 1:
            cursor.string()
        found.append(_place(cursor))
        return

    def read_coordinator(cursor: Cursor) -> None:
        cursor.string()
        found.append(_place(cursor))
        cursor.skip(2)
        cursor.string()
        cursor.skip_tags()

    cursor.each(read_coordinator)


def _walk_cluster(version: int, cursor: Cursor, found: list[Place]) -> None:
    cursor.skip(4 + 2)  # throttle time, error
    cursor.string()
    cursor.skip(1 if version >= 1 else 0)  # what kind of servers these are
    cursor.string()
    cursor.skip(4)

    def read_broker(cursor: Cursor) -> None:
        found.append(_place(cursor))
        cursor.string()  # rack
        cursor.skip(1 if version >= 2 else 0)  # is it fenced?
        cursor.skip_tags()

    cursor.each(read_broker)


def _place(cursor: Cursor) -> Place:
    node_id = cursor.int32()
    start = cursor.position
    host = cursor.string() or ""
    port = cursor.int32()
    return Place(Address(node_id, host, port), start, cursor.position)


_WALKS: dict[Api, Callable[[int, Cursor, list[Place]], None]] = {
    Api.METADATA: _walk_metadata,
    Api.FIND_COORDINATOR: _walk_coordinators,
    Api.DESCRIBE_CLUSTER: _walk_cluster,
}


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
