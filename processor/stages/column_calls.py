"""Calling a user's function for a whole batch of columns, and finding the rows at fault when it raises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from millstream.processor.columns import Index, Int32s, Int64s, Slices
from millstream.processor.stage_mark import StageMark
from millstream.processor.stages.batch import Batch, Failure, Identity

Column = np.ndarray[Any, Any] | Slices
R = TypeVar("R")


class Columns:
    """n rows as columns: `columns["amount"]` is a field's array, which cannot be changed in place.

    Fields that are text are `Slices`. `columns.valid("amount")` tells where an optional field (`float | None`) has a
    value; where not, the array holds 0. Of the records themselves there are `value` and `key` (their bytes, as
    `Slices`), `timestamp_ms` (-1 for none), `partition` and `offset`.
    """

    __slots__ = ("_fields", "_valid", "key", "offset", "partition", "timestamp_ms", "value")

    def __init__(
        self,
        fields: Mapping[str, Column],
        valid: Mapping[str, Any],
        value: Slices,
        key: Slices,
        timestamp_ms: Int64s,
        partition: Int32s,
        offset: Int64s,
    ) -> None:
        self._fields = {name: _read_only(column) for name, column in fields.items()}
        self._valid = valid
        self.value = value
        self.key = key
        self.timestamp_ms = timestamp_ms
        self.partition = partition
        self.offset = offset

    def __len__(self) -> int:
        return len(self.offset)

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __getitem__(self, name: str) -> Any:
        try:
            return self._fields[name]
        except KeyError:
            known = ", ".join(map(repr, self._fields)) or "none"
            raise KeyError(f"no column {name!r}; the stage reads {known}") from None

    def valid(self, name: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Where an optional field has a value. A required one has a value everywhere."""
        self[name]
        return self._valid[name] if name in self._valid else np.ones(len(self), np.bool_)

    def take(self, rows: Index) -> Columns:
        """The chosen rows."""
        return Columns(
            {name: column.take(rows) if isinstance(column, Slices) else column[rows] for name, column in self._items()},
            {name: mask[rows] for name, mask in self._valid.items()},
            self.value.take(rows),
            self.key.take(rows),
            self.timestamp_ms[rows],
            self.partition[rows],
            self.offset[rows],
        )

    def _items(self) -> Iterator[tuple[str, Column]]:
        return iter(self._fields.items())


def _read_only(column: Column) -> Column:
    # A function that changed its input would give another answer when it is asked again about a part of the rows.
    if isinstance(column, Slices) or not column.flags.writeable:
        return column
    view = column.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True)
class Piece(Generic[R]):
    """What a function answered for some rows at once."""

    rows: Index
    answer: R


@dataclass(frozen=True, slots=True)
class ColumnCaller(Generic[R]):
    """A user's column function with the rules for calling it. `check` makes an answer fit or raises."""

    function: Callable[[Columns], Any]
    check: Callable[[Any, int], R]
    identity: Identity

    async def call(
        self, columns: Columns, batch: Batch, input_rows: Index, portions: Sequence[Index] = ()
    ) -> tuple[list[Piece[R]], Index]:
        """The answers for all rows but those at fault, in the order of the rows, and the rows at fault.

        With `portions` only for the rows in them, and the function is called for one portion at a time.

        When the function raises, or answers what cannot be used, the rows are halved until those at fault stand
        alone: about `2 log2(n)` calls for each of them. So the function must depend on nothing but its columns, row by
        row.
        Raises StageError where the policy is to stop.
        """
        pieces: list[Piece[R]] = []
        policy = self.identity.policy
        errors = self._bisect(columns, portions or [np.arange(len(columns))], pieces, batch.mark)
        attempts = 1
        while errors and attempts <= policy.retries:
            batch.mark.rest()
            await asyncio.sleep(policy.wait_ms(attempts) / 1000)
            batch.mark.alive()
            again = np.array(sorted(errors), np.int64)
            batch.counts.retries += len(again)
            errors = self._bisect(columns, [again], pieces, batch.mark)
            attempts += 1
        for row in sorted(errors):
            batch.fail(Failure(self.identity, int(input_rows[row]), errors[row], attempts))
        return pieces, np.array(sorted(errors), np.int64)

    def _bisect(
        self, columns: Columns, portions: Sequence[Index], pieces: list[Piece[R]], mark: StageMark
    ) -> dict[int, Exception]:
        errors: dict[int, Exception] = {}
        waiting = list(reversed(portions))
        stops = self.identity.policy.action == "stop" and not self.identity.policy.retries
        while waiting and not (stops and errors):
            some = waiting.pop()
            part = columns if len(some) == len(columns) else columns.take(some)
            try:
                pieces.append(Piece(some, self.check(self.function(part), len(some))))
            except Exception as error:
                if len(some) == 1:
                    errors[int(some[0])] = error
                else:
                    middle = len(some) // 2
                    waiting += [some[middle:], some[:middle]]
            if waiting:
                mark.alive()
        return errors
