"""Values as they are: bytes, or UTF-8 text."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.processor.codecs.fidelity import Fidelity
from millstream.processor.columns import Slices
from millstream.processor.errors import DecodeError, EncodeError
from millstream.processor.interfaces import Decoded, Encoded

_BYTES_OR_NULL = {bytes, type(None)}
_ASCII_END = 128


class RawCodec:
    """Values as `bytes`, untouched."""

    format = "raw"

    @property
    def name(self) -> str:
        return "raw"

    def decode(self, values: Slices) -> Decoded:
        """`bytes` for each row, None for null; never an error."""
        return Decoded(list(values.to_list()))

    def encode(self, values: Sequence[object]) -> Encoded:
        """Rows for bytes-like objects and None; an EncodeError for everything else."""
        rows: list[bytes | None] = []
        errors: dict[int, EncodeError] = {}
        if {*map(type, values)} <= _BYTES_OR_NULL:
            rows.extend(values)  # type: ignore[arg-type]  # just checked, all at once
            return Encoded(Slices.from_list(rows))
        for value in values:
            if value is None or isinstance(value, (bytes, bytearray, memoryview)):
                rows.append(None if value is None else bytes(value))
                continue
            remedy = (
                '.encode() it, or write with format="text"' if isinstance(value, str) else 'write with format="json"'
            )
            errors[len(rows)] = EncodeError(
                f"raw: a value of type {type(value).__qualname__} is not bytes; return bytes or None, or {remedy}"
            )
            rows.append(None)
        return Encoded(Slices.from_list(rows), errors)


class TextCodec:
    """Values as `str`, written as UTF-8."""

    format = "text"

    def __init__(self, fidelity: Fidelity) -> None:
        self._on_invalid = "surrogateescape" if fidelity.invalid_utf8 == "preserve" else "strict"

    @property
    def name(self) -> str:
        return "text"

    def decode(self, values: Slices) -> Decoded:
        """`str` for each row, None for null."""
        joined = values.gathered()
        texts: list[object] = []
        errors: dict[int, DecodeError] = {}
        borders = zip(joined.start.tolist(), joined.size.tolist(), strict=True)
        if not len(joined.buffer) or int(joined.buffer.max()) < _ASCII_END:
            # One decode for all rows: in ASCII a position in bytes is a position in characters.
            text = str(joined.buffer.data, "ascii")
            return Decoded([None if size < 0 else text[start : start + size] for start, size in borders])
        whole = joined.buffer.data
        for start, size in borders:
            value = None
            if size >= 0:
                try:
                    value = str(whole[start : start + size], "utf-8", self._on_invalid)
                except UnicodeDecodeError as error:
                    errors[len(texts)] = DecodeError(
                        f"text: no UTF-8 at byte {error.start} ({error.reason});"
                        ' read it as bytes, or with Fidelity(invalid_utf8="preserve")'
                    )
            texts.append(value)
        return Decoded(texts, errors)

    def encode(self, values: Sequence[object]) -> Encoded:
        """UTF-8 for each `str`, null for None; an EncodeError for everything else."""
        rows: list[bytes | None] = []
        errors: dict[int, EncodeError] = {}
        for value in values:
            row = None
            if isinstance(value, str):
                try:
                    row = value.encode("utf-8", self._on_invalid)
                except UnicodeEncodeError as error:
                    errors[len(rows)] = EncodeError(
                        f"text: half of a surrogate pair at character {error.start}, which UTF-8 cannot express"
                    )
            elif value is not None:
                errors[len(rows)] = EncodeError(
                    f"text: a value of type {type(value).__qualname__} is not str; return str or None,"
                    ' or write with format="json"'
                )
            rows.append(row)
        return Encoded(Slices.from_list(rows), errors)
