"""What travels between two stages: values with their lineage, decoded no earlier than needed and no more than once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np

from millstream.processor.columns import Bools, Index, Slices
from millstream.processor.interfaces import ValueCodec
from millstream.processor.stages.batch import Batch, Failure, Identity


class Stored:
    """A column of encoded values, and their objects as far as any branch has asked for them.

    `rows[i]` is the input row that value i comes from. Bytes that do not decode are a failure of `owner`, once,
    however many branches ask.
    """

    def __init__(self, slices: Slices, rows: Index, codec: ValueCodec, owner: Identity) -> None:
        self.slices = slices
        self.rows = rows
        self.codec = codec
        self._owner = owner
        self._objects: list[object] = []
        self._asked: Bools | None = None
        self._bad: Bools = np.zeros(len(slices), np.bool_)
        # A flow that nothing was filtered from carries this very array, and its bytes then need no copy.
        self.order: Index = np.arange(len(slices), dtype=np.int64)

    def is_null(self, positions: Index) -> Bools:
        """Which of these are tombstones."""
        null: Bools = self.slices.size[positions] < 0
        return null

    def has_nulls(self) -> bool:
        """Whether any value at all is a tombstone."""
        return bool(len(self.slices)) and int(self.slices.size.min()) < 0

    def decode(self, positions: Index, batch: Batch) -> tuple[list[object], Bools | None]:
        """The objects at these positions, and which of them could not be decoded (None: all could)."""
        whole = positions is self.order
        if self._asked is None and whole:
            self._asked = np.ones(len(self.slices), np.bool_)
            self._take_in(self.slices, positions, batch)
        elif self._asked is None or not self._asked[positions].all():
            self._decode_missing(positions, batch)
        objects = self._objects if whole else [self._objects[i] for i in positions.tolist()]
        bad = self._bad[positions]
        return objects, bad if bad.any() else None

    def _decode_missing(self, positions: Index, batch: Batch) -> None:
        if self._asked is None:
            self._asked = np.zeros(len(self.slices), np.bool_)
            self._objects = [None] * len(self.slices)
        missing = np.unique(positions[~self._asked[positions]])
        self._asked[missing] = True
        self._take_in(self.slices.take(missing), missing, batch)

    def _take_in(self, slices: Slices, positions: Index, batch: Batch) -> None:
        decoded = self.codec.decode(slices)
        if positions is self.order:
            self._objects = decoded.values
        else:
            for position, value in zip(positions.tolist(), decoded.values, strict=True):
                self._objects[position] = value
        for i in sorted(decoded.errors):
            self._bad[positions[i]] = True
            batch.fail(Failure(self._owner, int(self.rows[positions[i]]), decoded.errors[i], 1))


@dataclass(frozen=True, slots=True)
class Flow:
    """n values between two stages.

    `rows[i]` is the input row of value i; rows never go down, since stages keep the order. While `changed` is false,
    value i *is* the bytes at `positions[i]` of `stored`, and `objects`, where there, is what they decode to. Once true,
    `objects` holds the values, and `stored` the bytes that they were made from.
    """

    rows: Index
    stored: Stored
    positions: Index
    objects: list[object] | None = None
    changed: bool = False
    #: The types among `objects`, and maybe more; None where nobody has looked yet.
    known_kinds: frozenset[type] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def kept(self, mask: Bools) -> Flow:
        """The values for which the mask is true."""
        if mask.all():
            return self
        objects = None if self.objects is None else list(compress(self.objects, mask.tolist()))
        return replace(self, rows=self.rows[mask], positions=self.positions[mask], objects=objects)

    def decoded(self, batch: Batch) -> Flow:
        """The same values with their objects at hand, less those that do not decode."""
        if self.objects is not None:
            return self
        objects, bad = self.stored.decode(self.positions, batch)
        flow = replace(self, objects=objects)
        return flow if bad is None else flow.kept(~bad)

    def with_objects(self, objects: list[object]) -> Flow:
        """New values in place of the old, one for one."""
        return replace(self, objects=objects, changed=True, known_kinds=frozenset(map(type, objects)))

    def may_have(self, kinds: Iterable[type]) -> bool:
        """Whether values of these types may be among the objects; a no is certain."""
        known = self.known_kinds
        if known is None:
            known = frozenset(map(type, self.objects or []))
        return not known.isdisjoint(kinds)

    def may_have_awaitables(self) -> bool:
        """Whether there are coroutines and the like, which means that an `async` was forgotten somewhere."""
        return any(hasattr(kind, "__await__") for kind in self.known_kinds or ())

    def null_mask(self) -> Bools | None:
        """Which values are tombstones; None where there are none."""
        if not self.changed:
            if not self.stored.has_nulls():
                return None
            null = self.stored.is_null(self.positions)
        else:
            objects = self.objects or []
            if not self.may_have((type(None),)):
                return None
            null = np.fromiter((value is None for value in objects), np.bool_, len(objects))
        return null if null.any() else None

    def bytes_column(self) -> Slices:
        """The bytes of unchanged values."""
        stored = self.stored
        return stored.slices if self.positions is stored.order else stored.slices.take(self.positions)
