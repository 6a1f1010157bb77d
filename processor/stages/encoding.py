"""From values back to bytes, with what a format alone would get wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millstream.processor.codecs.json_values import JsonCodec, merge_unknown_fields
from millstream.processor.columns import NULL_SIZE, Slices
from millstream.processor.errors import EncodeError
from millstream.processor.interfaces import Encoded, ValueCodec
from millstream.processor.stages.flow import Flow

_BYTES = (bytes, bytearray, memoryview)


@dataclass(frozen=True, slots=True)
class Encoder:
    """Encodes the values of a flow; values of the same codec that no stage has changed keep their bytes."""

    codec: ValueCodec

    def as_they_are(self, flow: Flow) -> bool:
        """Whether the flow's bytes will do, so that nobody need decode them."""
        return not flow.changed and flow.stored.codec is self.codec

    def encode(self, flow: Flow) -> Encoded:
        """A row for each value. A flow that is not `as_they_are` has been decoded."""
        if self.as_they_are(flow):
            return Encoded(flow.bytes_column())
        values = flow.objects or []
        encoded = self.codec.encode(values)
        if self.codec.format == "json":
            if flow.may_have(_BYTES):
                encoded = self._without_bytes(values, encoded)
            encoded = self._with_unknown_fields(flow, encoded)
        return encoded

    def _without_bytes(self, values: list[object], encoded: Encoded) -> Encoded:
        """Bytes in JSON would be written as base64, which nobody who returns JSON of their own making expects."""
        error = EncodeError(
            f"{self.codec.name}: the value is bytes, and JSON has no bytes. If they are the value to be written, say "
            'write(..., format="raw") or annotate the function with "-> bytes"; if they are text, .decode() them'
        )
        rows = [row for row, value in enumerate(values) if isinstance(value, _BYTES)]
        return _refused(encoded.values, {**encoded.errors, **dict.fromkeys(rows, error)})

    def _with_unknown_fields(self, flow: Flow, encoded: Encoded) -> Encoded:
        source = flow.stored.codec
        named = source.named_fields if isinstance(source, JsonCodec) else None
        if not named:
            return encoded
        merged = merge_unknown_fields(flow.bytes_column(), encoded.values, named)
        return Encoded(merged.values, {**merged.errors, **encoded.errors})


def _refused(values: Slices, errors: dict[int, Exception]) -> Encoded:
    size = values.size.copy()
    size[np.fromiter(errors, np.int64, len(errors))] = NULL_SIZE
    return Encoded(Slices(values.buffer, values.start, size), errors)
