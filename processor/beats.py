"""Beats: how a node says, twenty times a second, that it is there."""

from __future__ import annotations

from typing import Final

import msgspec

VERSION: Final = 1


class Beat(msgspec.Struct, frozen=True, array_like=True):
    """One beat. `seq` counts a node's beats from 0, so that a late one is told from a new one.

    Other versions may add fields at the end and never change these: the beats of a newer node in a rolling upgrade
    are heard like any other, since refusing them would look like its death.
    """

    version: int
    node: str
    seq: int


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Beat] = msgspec.msgpack.Decoder(Beat)


def encode_beat(node: str, seq: int) -> bytes:
    """The bytes of a node's beat."""
    return _encoder.encode(Beat(VERSION, node, seq))


def decode_beat(data: bytes) -> Beat | None:
    """The beat in the bytes; None where there is none: what else somebody writes there is no reason to stop."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
