"""MessagePack values as Python objects, untyped or of a declared type, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.processor.codecs.fidelity import Fidelity
from millstream.processor.codecs.json_lines import encode_singly
from millstream.processor.codecs.messages import undecodable
from millstream.processor.codecs.unknown_fields import refuses_all_by_itself
from millstream.processor.columns import Slices
from millstream.processor.errors import DecodeError, EncodeError
from millstream.processor.interfaces import Decoded, Encoded

_NULL_DOCUMENT = (
    "the value is MessagePack's nil, which cannot be told from a tombstone"
    ' (Fidelity(null_documents="tombstone") reads it as one)'
)


class MsgpackCodec:
    """MessagePack values of one type; `Any` takes every MessagePack value.

    Raises ValueError for a type, or a combination of a type and a fidelity, that cannot work.
    """

    format = "msgpack"

    def __init__(self, type_: Any, name: str, fidelity: Fidelity) -> None:
        self._name = name
        self._fidelity = fidelity
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(type_)
        self._encoder = msgspec.msgpack.Encoder()
        if fidelity.unknown_fields == "keep" and type_ is not Any:
            raise ValueError(
                f'{name}: unknown_fields="keep" works for JSON only; use format="json", the type object, or "drop"'
            )
        if fidelity.unknown_fields == "refuse" and not refuses_all_by_itself(type_):
            raise ValueError(
                f'{name}: unknown_fields="refuse" with MessagePack needs a type that refuses them itself: msgspec'
                ' Structs declared with forbid_unknown_fields=True, at every depth; or use format="json"'
            )

    @property
    def name(self) -> str:
        return self._name

    def decode(self, values: Slices) -> Decoded:
        """Objects for all rows; see `ValueCodec.decode`."""
        decoded: list[object] = []
        errors: dict[int, DecodeError] = {}
        whole = values.buffer.data
        decode = self._decoder.decode
        nil_is_refused = self._fidelity.null_documents == "refuse"
        for start, size in zip(values.start.tolist(), values.size.tolist(), strict=True):
            value = None
            if size >= 0:
                try:
                    value = decode(whole[start : start + size])
                except MemoryError:
                    raise
                except Exception as error:  # msgspec's errors, and whatever a type's own checks raise
                    errors[len(decoded)] = undecodable(self._name, error)
                else:
                    if value is None and nil_is_refused:
                        errors[len(decoded)] = DecodeError(f"{self._name}: {_NULL_DOCUMENT}")
            decoded.append(value)
        return Decoded(decoded, errors)

    def encode(self, values: Sequence[object]) -> Encoded:
        """MessagePack for all objects; see `ValueCodec.encode`."""
        rows: list[bytes | None] = []
        errors: dict[int, EncodeError] = {}
        encode_singly(self._encoder.encode, values, self._name, rows, errors)
        return Encoded(Slices.from_list(rows), errors)
