"""A check for users' own tests: an offloadable function has to treat each row by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from millstream.processor.offloading import ArrayColumns, Offloadable
from millstream.processor.stages.array_columns import rows_of


def assert_row_independent(offloadable: Offloadable, columns: ArrayColumns | Mapping[str, Any]) -> None:
    """Raise AssertionError unless f(x ++ y) equals f(x) ++ f(y), for cuts all over the rows, by `equality`.

    `columns` are at least two rows, as arrays (and `Text`) by name. Tried are the forms for NumPy, `cpu` and `array`:
    the first row alone, the last one alone, halves, and thirds.
    """
    given = columns if isinstance(columns, ArrayColumns) else ArrayColumns(columns, {}, _row_count(columns))
    if given.rows < 2:
        raise AssertionError(f"row independence needs at least two rows; there are {given.rows}")
    resident = () if offloadable.resident is None else (offloadable.resident(),)
    for form in ("cpu", "array"):
        if getattr(offloadable, form) is not None:
            _check(form, offloadable, given, resident)


def _row_count(columns: Mapping[str, Any]) -> int:
    counts = {len(column) for column in columns.values()}
    if len(counts) != 1:
        raise AssertionError(f"the columns have different numbers of rows: {sorted(counts)}")
    return counts.pop()


def _check(form: str, offloadable: Offloadable, columns: ArrayColumns, resident: tuple[Any, ...]) -> None:
    whole = _call(form, offloadable, columns, resident)
    count = columns.rows
    for cut in sorted({1, count // 3, count // 2, count - 1} - {0}):
        head = _call(form, offloadable, rows_of(columns, 0, cut), resident)
        tail = _call(form, offloadable, rows_of(columns, cut, count), resident)
        for name, expected in whole.items():
            expected = np.asarray(expected)
            found = np.concatenate([np.asarray(head[name]), np.asarray(tail[name])])
            if not offloadable.equality.holds(expected, found):
                raise AssertionError(
                    f"{form}: column {name!r} of {count} rows is another when they come as {cut} and "
                    f"{count - cut}: {_difference(expected, found)}. The function must treat each row by itself; "
                    "where rounding alone differs, say how much of it may: equality=Equality(relative=...)"
                )


def _call(form: str, offloadable: Offloadable, columns: ArrayColumns, resident: tuple[Any, ...]) -> Mapping[str, Any]:
    if form == "cpu":
        assert offloadable.cpu is not None
        return offloadable.cpu(columns, *resident)
    assert offloadable.array is not None
    return offloadable.array(np, columns, *resident)


def _difference(expected: Any, found: Any) -> str:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return f"{expected.dtype}{list(expected.shape)} became {found.dtype}{list(found.shape)}"
    differing = np.flatnonzero((expected != found).reshape(len(expected), -1).any(axis=1))
    return (
        f"row {differing[0]}: {expected[differing[0]]} became {found[differing[0]]}" if len(differing) else "its bits"
    )
