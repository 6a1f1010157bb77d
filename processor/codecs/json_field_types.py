"""What a column stage declares about the JSON fields that it reads or writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

_UNSUPPORTED_IN_NAMES = frozenset('"\\') | {chr(code) for code in range(32)}


class FieldType(Enum):
    """The type of a field's column. The value is the name used in messages."""

    INT64 = "int64"
    FLOAT64 = "float64"
    BOOL = "bool"
    STRING = "string"

    @staticmethod
    def from_annotation(annotation: object) -> FieldType:
        """The type meant by `int`, `float`, `bool`, `str` or a NumPy dtype such as `np.float64` or `"f8"`.

        Raises ValueError for anything else.
        """
        if annotation is str or annotation is np.str_:
            return FieldType.STRING
        try:
            # None is left out by hand: NumPy takes it for float64.
            found = None if annotation is None else _FOR_DTYPE.get(np.dtype(annotation))  # type: ignore[call-overload]
        except TypeError:
            found = None
        if found is None:
            raise ValueError(
                f"no column type for {annotation!r}: a JSON field is read as int, float, bool or str, "
                'or as a NumPy dtype of the same width ("i8", "f8", "?")'
            )
        return found


_FOR_DTYPE = {
    np.dtype(np.int64): FieldType.INT64,
    np.dtype(np.float64): FieldType.FLOAT64,
    np.dtype(np.bool_): FieldType.BOOL,
}


@dataclass(frozen=True, slots=True)
class Field:
    """A top-level field of a JSON object. One that is not `required` may be missing or null.

    Raises ValueError for a name that is empty, is not Unicode text, or has quotes, backslashes or control characters.
    """

    name: str
    type: FieldType
    required: bool = True

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a field's name is empty")
        if not _UNSUPPORTED_IN_NAMES.isdisjoint(self.name) or any("\ud800" <= c <= "\udfff" for c in self.name):
            raise ValueError(
                f"field {self.name!r}: names with quotes, backslashes, control characters or lone surrogates "
                "cannot be columns; read the field in an event stage"
            )


def check_distinct(names: Sequence[str]) -> None:
    """Raises ValueError where a name stands twice."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"declared more than once: {', '.join(twice)}")
