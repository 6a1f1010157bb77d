"""Looks into Python objects for numbers that JSON cannot carry.

Only objects whose encoded text is suspicious are looked into, so that most batches pay nothing. The walk keeps its
own stack: objects that the encoder could follow are never too deep for it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from math import isfinite
from operator import attrgetter

import msgspec
import numpy as np

_ENCODER = msgspec.msgpack.Encoder()
# MessagePack writes a float as this byte, then sign, exponent and fraction, the most significant first.
_FLOAT64 = 0xCB
_WALKED_ONE_BY_ONE = 16
_LEAVES = frozenset({str, bool, type(None), bytes})
_MIN_INT = -(2**63)
_MAX_INT = 2**64 - 1


def _may_hold_non_finite(values: Sequence[object]) -> bool:
    """False only if NaN and infinity stand nowhere in `values`, at any depth; costs less than encoding them as JSON.

    The objects are written as MessagePack, which has NaN and infinity: where their bytes stand nowhere, no number is
    one. Bytes that look like them by chance make the answer True.
    """
    try:
        written = np.frombuffer(_ENCODER.encode(values), np.uint8)
    except MemoryError:
        raise
    except Exception:  # what JSON can write and MessagePack cannot, such as integers beyond 64 bits
        return True
    # All bits of the exponent are set: 0x7F or 0xFF, then 0xF0 or more.
    exponents = (written[1:-1] & 0x7F == 0x7F) & (written[2:] >= 0xF0)
    return bool((exponents & (written[:-2] == _FLOAT64)).any())


def places_of_non_finite(values: Sequence[object]) -> list[int]:
    """Where in `values` NaN or an infinity stands, at any depth; ascending.

    A walk through every object in Python would cost ten times what encoding it did, so whole halves
    are ruled out first.
    """
    if len(values) <= _WALKED_ONE_BY_ONE:
        return [place for place, value in enumerate(values) if holds_non_finite(value)]
    if not _may_hold_non_finite(values):
        return []
    middle = len(values) // 2
    later = places_of_non_finite(values[middle:])
    return [*places_of_non_finite(values[:middle]), *(middle + place for place in later)]


def holds_non_finite(value: object) -> bool:
    """Whether NaN or an infinity stands anywhere in `value`, the keys of dicts left out (they are written as text)."""
    return _any_number(value, _is_non_finite)


def holds_big_integer(value: object) -> bool:
    """Whether an integer outside of 64 bits stands anywhere in `value`, as a key of a dict too."""
    return _any_number(value, _is_big)


def _is_non_finite(value: object) -> bool:
    return isinstance(value, float) and not isfinite(value)


def _is_big(value: object) -> bool:
    return isinstance(value, int) and not _MIN_INT <= value <= _MAX_INT


def _any_number(value: object, wrong: Callable[[object], bool]) -> bool:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        kind = item.__class__
        if kind in _LEAVES:
            continue
        if isinstance(item, (int, float)):
            if wrong(item):
                return True
            continue
        waiting.extend(_parts(item))
    return False


def _parts(item: object) -> Iterable[object]:
    if isinstance(item, dict):
        return [*item.values(), *(key for key in item if isinstance(key, int))]
    if isinstance(item, (list, tuple, set, frozenset)):
        return item
    if isinstance(item, msgspec.Struct):
        return _attributes(item, item.__struct_fields__)
    if isinstance(item, enum.Enum):
        return (item.value,)
    if is_dataclass(item):
        return _attributes(item, tuple(f.name for f in fields(item)))
    if hasattr(item, "__attrs_attrs__"):
        return _attributes(item, tuple(a.name for a in item.__attrs_attrs__))
    return ()


def _attributes(item: object, names: tuple[str, ...]) -> Iterable[object]:
    try:
        got = attrgetter(*names)(item)
    except (AttributeError, TypeError):  # a field that was never set, which the encoder leaves out; or no fields
        return [getattr(item, name, None) for name in names]
    return got if len(names) > 1 else (got,)
