"""Looks into Python objects for numbers that JSON cannot carry.

Only objects whose encoded text is suspicious are looked into, so that clean batches pay nothing. The walk keeps its
own stack: objects that the encoder could follow are never too deep for it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from math import isfinite
from operator import attrgetter

import msgspec

_LEAVES = frozenset({str, bool, type(None), bytes})
_MIN_INT = -(2**63)
_MAX_INT = 2**64 - 1


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
