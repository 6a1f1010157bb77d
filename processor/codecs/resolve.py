"""From a stage's type and format to the codec for its values."""

from __future__ import annotations

import enum
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from millstream.processor.codecs.fidelity import Fidelity
from millstream.processor.codecs.fixed_width import FixedWidthCodec
from millstream.processor.codecs.json_values import JsonCodec
from millstream.processor.codecs.msgpack_values import MsgpackCodec
from millstream.processor.codecs.raw import RawCodec, TextCodec
from millstream.processor.codecs.unknown_fields import parts_of
from millstream.processor.interfaces import ValueCodec

_FORMATS = ("raw", "text", "json", "msgpack", "fixed")
_EXACT_DEFAULTS: dict[object, str] = {None: "raw", type(None): "raw", bytes: "raw", str: "text"}
_UNTYPED = (object, Any)
_DEFAULT_FIDELITY = Fidelity()


def codec_for(type_: object, format_: str | None = None, *, fidelity: Fidelity = _DEFAULT_FIDELITY) -> ValueCodec:
    """The codec for values of `type_`, in `format_` or, if that is None, in the type's usual format.

    ==============================================  =======================================================
    type                                            format (the first is the usual one)
    ==============================================  =======================================================
    `bytes`, None                                   "raw"
    `str`                                           "text" (UTF-8), "json", "msgpack"
    `object`, `Any`, `dict`, `list`                 "json", "msgpack", without a declared type of the fields
    `np.dtype`                                      "fixed"
    all other types that msgspec can check          "json", "msgpack"
    ==============================================  =======================================================

    Raises ValueError, saying what to write instead, for everything else.
    """
    if format_ is not None and format_ not in _FORMATS:
        raise ValueError(f"format {format_!r} is unknown; choose one of {', '.join(map(repr, _FORMATS))}")
    usual = _usual_format(type_)
    chosen = format_ or usual
    if chosen == "raw" and usual == "raw":
        return RawCodec()
    if chosen == "text" and usual == "text":
        return TextCodec(fidelity)
    if isinstance(type_, np.dtype) and chosen == "fixed":
        return FixedWidthCodec(type_)
    if chosen in ("json", "msgpack") and usual not in ("raw", "fixed"):
        return _structured(type_, chosen, fidelity)
    raise ValueError(f"values of type {_title(type_)} cannot be in format {chosen!r}: {_remedy(usual, chosen)}")


def _usual_format(type_: object) -> str:
    if isinstance(type_, np.dtype):
        return "fixed"
    return _EXACT_DEFAULTS.get(type_, "json") if _is_hashable(type_) else "json"


def _remedy(usual: str, chosen: str) -> str:
    needed = {
        "raw": "format 'raw' is for type bytes",
        "text": "format 'text' is for type str",
        "fixed": "format 'fixed' is for a NumPy dtype, such as np.dtype('<f8')",
    }
    if chosen in needed:
        return f"{needed[chosen]}; leave the format out, or change the type"
    if usual == "raw":
        return "bytes stay as they are; name a type, such as dict or a msgspec.Struct, or leave the format out"
    return "a NumPy dtype describes fixed-width records; name a msgspec.Struct, or leave the format out"


def _structured(type_: Any, chosen: str, fidelity: Fidelity) -> ValueCodec:
    title = "" if type_ in _UNTYPED else f" {_title(type_)}"
    checked = Any if type_ in _UNTYPED else type_
    _refuse_uncheckable(checked)
    if chosen == "json":
        return JsonCodec(checked, f"json{title}", fidelity)
    return MsgpackCodec(checked, f"msgpack{title}", fidelity)


def _refuse_uncheckable(type_: Any) -> None:
    try:
        info = msgspec.inspect.type_info(type_)
        msgspec.json.Decoder(type_)
    except Exception as error:  # TypeError for unsupported types, NameError for annotations that lead nowhere
        raise ValueError(
            f"type {_title(type_)} cannot be decoded: {error}. Use a msgspec.Struct, a dataclass, a TypedDict or"
            " built-in types; unions of Structs need tags (class A(msgspec.Struct, tag=True))"
        ) from error
    for part in _all_parts(info):
        if isinstance(part, msgspec.inspect.CustomType) and part.cls is not object:
            remedy = _scalar_remedy(part.cls) if part.cls is not type_ else f"{_scalar_remedy(part.cls)}, or bytes"
            raise ValueError(
                f"type {_title(type_)} cannot be decoded: msgspec has no way to make a {_title(part.cls)}; use {remedy}"
            )


def _scalar_remedy(cls: type) -> str:
    if issubclass(cls, np.generic):
        return f"np.dtype({np.dtype(cls).str!r}) for fixed-width records, or int or float"
    return "a msgspec.Struct, a dataclass, a TypedDict or built-in types"


def _all_parts(info: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """`info` and all types that it is made of; types that contain themselves once."""
    seen: set[int] = set()
    waiting = [info]
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            waiting.extend(parts_of(part))


def _is_hashable(type_: object) -> bool:
    try:
        hash(type_)
    except TypeError:
        return False
    return True


def _title(type_: Any) -> str:
    if isinstance(type_, (type, enum.EnumType)) and not typing.get_args(type_):
        return type_.__qualname__
    return str(type_)
