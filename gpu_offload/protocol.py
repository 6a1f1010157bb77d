"""What workers and a device's process say to each other over a Unix socket. The batches are in shared memory.

A frame is four bytes of length and a MessagePack message with its type in it. A worker's first one, `Hello`, carries
the descriptor of its memory. A batch has a number that its worker never uses again, so that an answer which comes too
late is known for what it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, TypeAlias

import msgspec

from millstream.processor.errors import MillstreamError

PROTOCOL: Final = 1
FRAME_BYTES_MAX: Final = 1 << 20
# How a device's process ends where there is no such device, and when its device is lost.
UNAVAILABLE_EXIT_CODE: Final = 69
STICKY_EXIT_CODE: Final = 70
_LENGTH: Final = struct.Struct("!I")


class ProtocolError(MillstreamError):
    """The other end says what cannot be understood."""


class DeviceNews(msgspec.Struct, frozen=True):
    """What a device's process says to whoever started it, as a line of JSON. `is_up` False: there is no such device."""

    is_up: bool
    text: str


class FunctionReference(msgspec.Struct, frozen=True):
    """A function by name: in a module that can be imported, or in `file`, loaded under the name `module`."""

    module: str
    file: str
    name: str


class ColumnOrder(msgspec.Struct, frozen=True):
    """A `ColumnSchema` in words; `dtype` is NumPy's text of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_text: bool
    is_optional: bool


class StageOrder(msgspec.Struct, frozen=True):
    """A `StageDefinition` in words. `path` is where modules are to be looked for, beside the usual places."""

    name: str
    cpu: FunctionReference | None
    array: FunctionReference | None
    gpu: FunctionReference | None
    resident: FunctionReference | None
    version: str
    relative: float
    absolute: float
    reads: tuple[ColumnOrder, ...]
    adds: tuple[ColumnOrder, ...]
    memory_mb: int
    path: tuple[str, ...]


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A worker's first words; the descriptor of its slots comes with them."""

    protocol: int
    worker: str
    slots: int
    slot_bytes: int


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Make the stage ready. Where it is, it is only tested once more."""

    stage: int
    order: StageOrder


class Compute(msgspec.Struct, frozen=True, tag="compute"):
    """Compute what is in a slot: so many rows, and for each text column so many bytes.

    `deadline_s` is on the machine's monotonic clock. After it nobody waits for the answer.
    """

    batch: int
    stage: int
    slot: int
    rows: int
    texts: tuple[int, ...]
    deadline_s: float


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The device's first words."""

    pid: int
    device: str


class Timing(msgspec.Struct, frozen=True):
    """What a batch of so many rows took in the device's process while it warmed up."""

    rows: int
    p50_s: float
    p99_s: float


class StageReady(msgspec.Struct, frozen=True, tag="ready"):
    """The stage can be computed. `is_proven`: an answer for made-up rows was that of the reference."""

    stage: int
    is_proven: bool
    timings: tuple[Timing, ...]


class StageUnavailable(msgspec.Struct, frozen=True, tag="unavailable"):
    """The stage cannot be computed here, and why, in one line. `is_wrong`: its answer was not the reference's."""

    stage: int
    why: str
    is_wrong: bool = False


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The answer is in the slot. `rows_max` is not 0 where the device's memory held no more rows than that at once."""

    batch: int
    seconds: float
    rows_max: int = 0


class Trouble(Enum):
    """Why a batch was not computed."""

    EXPIRED = "expired"
    OUT_OF_MEMORY = "out-of-memory"
    FUNCTION = "function"


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The batch was not computed; nothing of the device's writes into its slot any more."""

    batch: int
    trouble: Trouble
    text: str
    rows_max: int = 0


ToDevice: TypeAlias = Hello | Load | Compute
ToWorker: TypeAlias = Welcome | StageReady | StageUnavailable | Done | Refused
Message: TypeAlias = ToDevice | ToWorker

_DECODER: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(
    Hello | Load | Compute | Welcome | StageReady | StageUnavailable | Done | Refused
)
_ENCODER: Final = msgspec.msgpack.Encoder()


def frame(message: Message) -> bytes:
    """The message's bytes on the wire. Raises ProtocolError where it is too long to be sent."""
    body = _ENCODER.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise ProtocolError(f"a {type(message).__name__} has {len(body)} bytes; at most {FRAME_BYTES_MAX} may be sent")
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Bytes as they come, cut into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that are complete with `data`. Raises ProtocolError for what is not one of ours."""
        self._bytes += data
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > FRAME_BYTES_MAX:
                raise ProtocolError(f"a message claims {length} bytes; at most {FRAME_BYTES_MAX} are allowed")
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[_LENGTH.size : end])
            del self._bytes[:end]
            yield decoded(body)


def decoded(body: bytes) -> Message:
    """The message of a frame's body. Raises ProtocolError."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"a message cannot be understood: {error}") from error
