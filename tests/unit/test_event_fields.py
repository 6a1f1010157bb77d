"""The judge's reading of events: a compiled scan that may only be faster than msgspec, never of another opinion."""

from __future__ import annotations

import json
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.loadgen import event_fields as module
from millstream.loadgen.event_fields import event_fields
from millstream.loadgen.workload import Workload, WorkloadSettings
from millstream.processor.columns import Slices


def _by_msgspec(value: bytes | None) -> tuple[int, int, int] | None:
    event = module._decoded_alone(value)
    return None if event is None else (event.id, event.seq, event.sent_us)


def _found(values: list[bytes | None]) -> list[tuple[int, int, int] | None]:
    fields = event_fields(values)
    columns = zip(fields.event_id.tolist(), fields.seq.tolist(), fields.sent_us.tolist(), strict=True)
    return [row if is_event else None for row, is_event in zip(columns, fields.is_event.tolist(), strict=True)]


def _scanned(values: list[bytes]) -> list[tuple[int, int, int] | None]:
    """What the compiled scan alone finds."""
    column = Slices.from_list(values)
    found, plain = np.zeros((3, len(values)), np.int64), np.zeros(len(values), np.bool_)
    module._scan(column.buffer, column.start.astype(np.int64), column.size.astype(np.int64), found, plain)
    return [tuple(row) if is_plain else None for row, is_plain in zip(found.T.tolist(), plain.tolist(), strict=True)]


def test_the_generators_events_are_read_by_the_scan_alone() -> None:
    times = np.arange(500, dtype=np.int64) + 1_730_000_000_000_000
    values = [value or b"" for value in Workload(WorkloadSettings(payload_bytes=200)).next_events(times).values]
    scanned = _scanned(values)
    assert None not in scanned
    assert scanned == [_by_msgspec(value) for value in values]


@pytest.mark.parametrize(
    "value",
    [
        b'{"id":1,"seq":2,"sent_us":3}',
        b'{ "id": 1, "seq": 2, "sent_us": -3, "fee": 1.25 }',
        b'{"nested":{"id":9},"id":1,"seq":2,"sent_us":3}',
        b'{"id":1,"seq":2,"sent_us":3,"note":"\\"id\\":7"}',
        b'{"note":"\\u00e4","id":1,"seq":2,"sent_us":3}',
        b'{"id":1,"id":5,"seq":2,"sent_us":3}',
        b'{"id":1.0,"seq":2,"sent_us":3}',
        b'{"id":1.5,"seq":2,"sent_us":3}',
        b'{"id":"1","seq":2,"sent_us":3}',
        b'{"id":01,"seq":2,"sent_us":3}',
        b'{"id":-0,"seq":2,"sent_us":3}',
        b'{"id":9223372036854775807,"seq":2,"sent_us":3}',
        b'{"id":9223372036854775808,"seq":2,"sent_us":3}',
        b'{"id":1,"seq":2}',
        b'{"id":1,"seq":2,"sent_us":3,"x":foo}',
        b'{"id":1,"seq":2,"sent_us":3,"x":1..2}',
        b'{"id":1,"seq":2,"sent_us":3,"x":1.}',
        b'{"id":1,"seq":2,"sent_us":3,"x":1e400}',
        b'{"id":1,"seq":2,"sent_us":3,}',
        b'{"id":1,"seq":2,"sent_us":3}}',
        b'{"id":1,"seq":2,"sent_us":3} ',
        b'{"id":1,"seq":2,"sent_us":3',
        b'{"id":1,"seq":2,"sent_us":',
        b'{"id"',
        b"{",
        b"{}",
        b"",
        b"\xff",
        None,
    ],
)
def test_every_value_is_what_msgspec_says(value: bytes | None) -> None:
    whole = b'{"id":7,"seq":8,"sent_us":9}'
    assert _found([whole, value, whole]) == [(7, 8, 9), _by_msgspec(value), (7, 8, 9)]


_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
_values = st.recursive(_scalars, lambda inner: st.lists(inner, max_size=2), max_leaves=3)
_names = st.sampled_from(["id", "seq", "sent_us", "se", "sent_ut", "", "id "])


@given(st.lists(st.tuples(_names, _values), max_size=6), st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_objects_and_damaged_objects_are_what_msgspec_says(
    pairs: list[tuple[str, object]], is_spaced: bool, chance: random.Random
) -> None:
    separators = (", ", ": ") if is_spaced else (",", ":")
    base = {"id": chance.randrange(10**6), "seq": chance.randrange(100), "sent_us": chance.randrange(10**17)}
    value = json.dumps({**base, **dict(pairs)}, separators=separators, ensure_ascii=is_spaced).encode()
    cut = value[: chance.randrange(len(value) + 1)]
    damaged = bytearray(value)
    damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    cases = [value, cut, bytes(damaged)]
    expected = [_by_msgspec(case) for case in cases]
    assert _found([*cases]) == expected
    assert all(scan in (None, wanted) for scan, wanted in zip(_scanned(cases), expected, strict=True))


def test_msgspec_takes_no_number_that_the_books_cannot_hold() -> None:
    with pytest.raises(msgspec.ValidationError):
        module._decoder.decode(b'{"id":9223372036854775808,"seq":2,"sent_us":3}')
