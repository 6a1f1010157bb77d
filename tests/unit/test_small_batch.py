"""The small codec against the compiled one, in both directions, and both against bytes that lie."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from batch_making import ABORT, COMMIT, PARTITION, TRANSACTIONAL, Row, batch, built, marker, numbered, with_base_offset
from hostile_batches import mutated_batch, mutated_marker
from hypothesis import given
from hypothesis import strategies as st

from millstream.connectors.kafka.compression import Compression
from millstream.connectors.kafka.record_batch import decode_batches
from millstream.connectors.kafka.small_batch import Decoded, decode, encode, encode_all
from millstream.processor.errors import CorruptBatchError
from millstream.processor.membership_log import Entry

VALUES = st.lists(st.binary(max_size=300), min_size=1, max_size=40)
ROWS = st.lists(
    st.builds(
        Row,
        timestamp=st.integers(-1, 1 << 45),
        key=st.none() | st.binary(max_size=80),
        value=st.none() | st.binary(max_size=200),
        headers=st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=30,
).map(numbered)


def compiled(data: bytes, fetch_offset: int = 0, aborted: Sequence[tuple[int, int]] = ()) -> Decoded:
    """What the compiled codec makes of the same bytes."""
    fetched = decode_batches(data, PARTITION, fetch_offset=fetch_offset, aborted=aborted)
    if fetched.corrupt is not None and fetched.next_offset == fetch_offset:
        raise fetched.corrupt
    values = zip(fetched.records.offset.tolist(), fetched.records.value.to_list(), strict=True)
    return Decoded([Entry(offset, value) for offset, value in values if value is not None], fetched.next_offset)


def both(data: bytes, **arguments: Any) -> list[Decoded | None]:
    """What each codec makes of the bytes; None where it refuses them."""
    found: list[Decoded | None] = []
    for read in (decode, compiled):
        try:
            found.append(read(data, **arguments))
        except CorruptBatchError:
            found.append(None)
    return found


def entries_of(rows: Sequence[Row], base_offset: int = 0) -> list[Entry]:
    return [Entry(base_offset + row.delta, row.value) for row in rows if row.value is not None]


@given(VALUES, st.integers(0, 1 << 60))
def test_what_it_writes_is_read_by_both(values: list[bytes], base_offset: int) -> None:
    data = with_base_offset(encode(values), base_offset)
    expected = Decoded([Entry(base_offset + i, v) for i, v in enumerate(values)], base_offset + len(values))
    assert both(data, fetch_offset=base_offset) == [expected, expected]


def test_what_is_large_is_packed_and_many_records_become_several_batches() -> None:
    text = b'{"topic":"orders","partition":17},'
    values = [text, text * 60_000, *[b"x" * 1000] * 3000]
    batches = encode_all(values)
    assert all(len(data) < 1_000_000 for data in batches)
    found: list[bytes] = []
    for data in batches:
        read, other = both(data, fetch_offset=0)
        assert read == other
        assert read is not None
        found += [value for _, value in read.entries]
    assert found == values
    assert encode_all([]) == []
    assert encode_all([text, text]) == [encode([text, text])]


@given(ROWS, st.sampled_from(Compression), st.integers(0, 40))
def test_what_the_other_writes_is_read_from_any_offset(
    rows: list[Row], compression: Compression, fetch_offset: int
) -> None:
    data = built(rows, compression=compression, batch_bytes_max=2000)
    expected = [entry for entry in entries_of(rows) if entry.offset >= fetch_offset]
    assert decode(data, fetch_offset=fetch_offset) == Decoded(expected, max(len(rows), fetch_offset))


@given(st.data())
def test_an_answer_cut_anywhere_holds_its_whole_batches(data: st.DataObject) -> None:
    values = data.draw(VALUES)
    batches = [with_base_offset(encode([value]), offset) for offset, value in enumerate(values)]
    whole = data.draw(st.integers(0, len(batches) - 1))
    cut = data.draw(st.integers(0, len(batches[whole]) - 1))
    found = decode(b"".join(batches[:whole]) + batches[whole][:cut], fetch_offset=0)
    assert found == Decoded([Entry(i, value) for i, value in enumerate(values[:whole])], whole)


def test_gaps_and_emptied_batches_move_the_offset_on() -> None:
    data = batch([Row(delta=2, value=b"kept")], base_offset=10, last_delta=5) + batch([], base_offset=16, last_delta=3)
    assert decode(data, fetch_offset=10) == Decoded([Entry(12, b"kept")], 20)


def test_aborted_records_and_control_records_are_left_out() -> None:
    def sent(offset: int, value: bytes, producer: int, attributes: int = TRANSACTIONAL) -> bytes:
        return batch([Row(value=value)], base_offset=offset, attributes=attributes, producer_id=producer)

    data = (
        sent(0, b"aborted", 7)
        + sent(1, b"committed", 8)
        + sent(2, b"of none", 7, 0)
        + marker(ABORT, base_offset=3, producer_id=7)
        + sent(4, b"the next one", 7)
        + marker(COMMIT, base_offset=5, producer_id=8)
        + marker(COMMIT, base_offset=6, producer_id=7)
    )
    expected = Decoded([Entry(1, b"committed"), Entry(2, b"of none"), Entry(4, b"the next one")], 7)
    assert both(data, fetch_offset=0, aborted=[(7, 0)]) == [expected, expected]


@given(VALUES, st.data())
def test_any_damage_is_found(values: list[bytes], data: st.DataObject) -> None:
    batch_bytes = bytearray(encode(values))
    # The base offset is the broker's, the leader's epoch too: no CRC covers them.
    place = data.draw(st.integers(17, len(batch_bytes) - 1))
    batch_bytes[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptBatchError, match="record batch at offset 0: its CRC does not match"):
        decode(bytes(batch_bytes), fetch_offset=0)


def test_what_stands_before_a_damaged_batch_is_read_and_the_next_fetch_names_it() -> None:
    good, bad = encode([b"a", b"b"]), bytearray(with_base_offset(encode([b"c"]), 2))
    bad[-2] ^= 1
    assert decode(good + bytes(bad), fetch_offset=0) == Decoded([Entry(0, b"a"), Entry(1, b"b")], 2)
    with pytest.raises(CorruptBatchError) as caught:
        decode(bytes(bad), fetch_offset=2)
    assert caught.value.base_offset == 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (batch([Row()])[:16] + b"\1" + batch([Row()])[17:], "format 1"),
        (struct.pack(">qi", 0, 40) + batch([Row()])[12:], "length is impossible"),
        (struct.pack(">qi", 0, -1) + batch([Row()])[12:], "length is impossible"),
        (batch([Row()], base_offset=-1), "offsets are impossible"),
        (batch([Row()], last_delta=-1), "offsets are impossible"),
        (batch([Row()], attributes=5), "compression is unknown"),
        (batch([Row()], count=9), "more records than its bytes"),
        (batch([Row()], count=-1), "more records than its bytes"),
        (batch([Row()], count=0), "left over"),
        (batch([Row(delta=1), Row(delta=1)], last_delta=3), "out of order"),
        (batch([Row()], attributes=2, payload=b"nothing packed"), "damaged"),
        (batch([Row(value=b"0" * (17 << 20))], compression=Compression.ZSTD), "unpacks to too much"),
    ],
)
def test_a_batch_that_lies_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptBatchError, match=reason):
        decode(data, fetch_offset=0)


@pytest.mark.parametrize("make", [mutated_batch, mutated_marker])
def test_both_make_the_same_of_hostile_batches(make: Callable[[random.Random], bytes]) -> None:
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    accepted = 0
    for turn in range(500):
        aborted = dice.choice([[], [(7, 100)], [(7, 150)]])
        # A transaction's records on either side of what may end it.
        data = batch([Row()], base_offset=90, attributes=TRANSACTIONAL, producer_id=7) + make(dice)
        data += batch([Row()], base_offset=300, attributes=TRANSACTIONAL, producer_id=7)
        mine, theirs = both(data, fetch_offset=90, aborted=aborted)
        assert mine == theirs, f"seed {seed}, turn {turn}"
        accepted += mine is not None and mine.next_offset == 301
    assert 0 < accepted < 500, f"seed {seed}"


@given(st.binary(max_size=200))
def test_noise_is_refused_or_read_by_neither(data: bytes) -> None:
    mine, theirs = both(data, fetch_offset=0)
    assert mine == theirs
