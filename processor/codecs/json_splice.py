"""Puts new field values into one JSON object: the slow way, for objects that the scanner is not sure of.

msgspec decides whether it is an object at all; what is left is to find its top-level members in text that is known
to be well formed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from millstream.processor.errors import EncodeError

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{},:]|[^][{},:"\s]+', re.DOTALL)


class _AnyObject(msgspec.Struct):
    """Any JSON object: every field is one that the Struct does not name, which is checked and passed over."""


_any_object = msgspec.json.Decoder(_AnyObject)


def spliced(document: bytes, new: Mapping[str, bytes]) -> bytes:
    """`document` with the fields in `new`, given as JSON text, replaced wherever they stand, or appended.

    Raises EncodeError where it is not a JSON object.
    """
    try:
        _any_object.decode(document)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise EncodeError(f"the original is not a JSON object: {reason}") from error
    by_key = {name.encode(): text for name, text in new.items()}
    missing = dict.fromkeys(new)
    pieces = []
    position = 0
    for key, start, end in _members(document):
        text = by_key.get(key)
        if text is not None:
            missing.pop(key.decode(), None)
            pieces += [document[position:start], text]
            position = end
    closing = document.rindex(b"}")
    separator = b"" if document[:closing].strip() == b"{" else b","
    pieces.append(document[position:closing])
    for name in missing:
        pieces += [separator, msgspec.json.encode(name), b":", new[name]]
        separator = b","
    return b"".join([*pieces, document[closing:]])


def _members(document: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The top-level members of a well-formed object: key, and where its value starts and ends."""
    depth = 0
    key: bytes | None = None
    start = 0
    for token in _TOKEN.finditer(document):
        text = token.group()
        if depth == 1 and text == b",":
            key = None
        elif depth == 1 and key is None and text[:1] == b'"':
            key = _unescaped(text)
        elif text in (b"{", b"["):
            depth += 1
            start = token.start() if depth == 2 else start
        elif text in (b"}", b"]"):
            depth -= 1
            if depth == 1 and key is not None:
                yield key, start, token.end()
        elif depth == 1 and key is not None and text != b":":
            yield key, token.start(), token.end()


def _unescaped(literal: bytes) -> bytes:
    """The bytes that a key spells. One that is not UTF-8 stays as it is, and so is no field's name."""
    if b"\\" not in literal:
        return literal[1:-1]
    try:
        return msgspec.json.decode(literal, type=str).encode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return literal
