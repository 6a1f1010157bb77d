"""Whoever reads the ledger, from wherever it begins and in whatever pieces, knows the same as all others."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_histories import History, histories, join, moving, released

from millstream.processor.errors import RefusedError
from millstream.processor.ledger import (
    CreatedRecord,
    DeadRecord,
    LedgerRecord,
    LedgerState,
    ReadingRecord,
    SnapshotRecord,
    WorkerUpRecord,
    decode,
    encode,
    fold,
)
from millstream.processor.ledger_reader import LedgerReader, restore, snapshot
from millstream.processor.membership import Membership


def cuts(history: History) -> list[int]:
    """Where the ledger may begin: at its start, or behind all that a snapshot in it says."""
    return [0, *(record.through + 1 for record in history.records if isinstance(record, SnapshotRecord))]


def pages(order: random.Random, entries: list[tuple[int, bytes]]) -> list[list[tuple[int, bytes]]]:
    """The entries in pieces, of which some are empty and some say again how the one before ended."""
    result = []
    place = 0
    while place < len(entries):
        size = order.randint(0, 7)
        again = order.randint(0, min(2, place))
        result.append(entries[place - again : place + size])
        place += size
    return result


@settings(max_examples=200, deadline=None)
@given(histories(), st.integers(0))
def test_all_readers_agree_wherever_the_ledger_begins_and_in_whatever_pages_it_comes(
    history: History, seed: int
) -> None:
    order = random.Random(seed)
    start = order.choice(cuts(history))
    reader = LedgerReader()
    reader.read(start, [])
    for page in pages(order, history.entries(start)):
        reader.read(start, page)
        if reader.membership is not None:
            assert reader.membership == history.states[reader.membership.next_offset]
    assert reader.membership == history.now


@settings(max_examples=200, deadline=None)
@given(histories(), st.data())
def test_a_reader_that_is_overtaken_by_a_deletion_finds_its_way_back(history: History, data: st.DataObject) -> None:
    reader = LedgerReader()
    read = 0
    for offset, record in enumerate(history.records):
        if isinstance(record, SnapshotRecord) and data.draw(st.booleans()):
            start = record.through + 1
            until = data.draw(st.integers(start, offset + 1))
            reader.read(start, history.entries(max(read, start))[: max(0, until - max(read, start))])
            read = max(read, until)
    start = max((cut for cut in cuts(history) if cut <= read), default=0)
    assert reader.read(start, history.entries(max(read, start))) == history.now


@settings(max_examples=200, deadline=None)
@given(histories(min_size=1))
def test_a_snapshot_restores_what_it_was_made_of(history: History) -> None:
    for state in history.states[1:]:
        record = decode(encode(snapshot(state)))
        assert isinstance(record, SnapshotRecord)
        assert restore(record) == state
        assert record.through == state.next_offset - 1


@settings(max_examples=200, deadline=None)
@given(histories())
def test_the_facts_are_the_same_wherever_the_ledger_begins(history: History) -> None:
    for start in cuts(history):
        assert fold(history.records[start:]) == history.now.facts


def test_what_was_said_first_counts_also_where_only_the_snapshot_still_says_it() -> None:
    history = History()
    history.add(CreatedRecord(2), ReadingRecord("t", 3))
    record = snapshot(history.now)
    history.add(CreatedRecord(5), ReadingRecord("t", 7), ReadingRecord("u", 1), record)
    assert fold(history.records[2:]) == history.now.facts == LedgerState(2, {"t": 3, "u": 1})


def test_a_ledger_without_a_record_is_that_of_a_pipeline_that_nobody_runs() -> None:
    assert LedgerReader().read(0, []) == Membership()


def test_a_ledger_that_has_lost_its_beginning_without_a_snapshot_says_nothing() -> None:
    history = History()
    history.add(CreatedRecord(2), join("a-0"), WorkerUpRecord("a-0", 0, 0))
    assert LedgerReader().read(1, history.entries(1)) is None


def test_a_snapshot_that_says_less_than_what_is_missing_is_passed_over() -> None:
    """Two nodes write snapshots at the same time, and the later one has seen less."""
    history = History()
    history.add(CreatedRecord(2))
    early = snapshot(history.now)
    history.add(join("a-0"))
    late = snapshot(history.now)
    history.add(WorkerUpRecord("a-0", 0, 0), early, late)
    reader = LedgerReader()
    assert reader.read(2, history.entries(2)[:2]) is None
    assert reader.read(2, history.entries(2)) == history.now
    assert history.now.snapshot_through == late.through
    assert history.add(early).snapshot_through == late.through


def test_what_a_newer_millstream_wrote_is_refused() -> None:
    with pytest.raises(RefusedError, match="version 2"):
        LedgerReader().read(0, [(0, b'{"type":"created","shards":4,"version":2}')])


@pytest.mark.parametrize(
    "damage",
    [{"workers": []}, {"nodes": {}}, {"planned": {0: 5}}, {"holdings": {0: (1, 0)}}],
    ids=lambda damage: next(iter(damage)),
)
def test_a_snapshot_that_contradicts_itself_is_refused(damage: dict[str, object]) -> None:
    history = History()
    record = snapshot(history.add(CreatedRecord(2), join("a-0"), WorkerUpRecord("a-0", 0, 0)))
    damaged = SnapshotRecord(record.through, msgspec.structs.replace(record.state, **damage))
    with pytest.raises(RefusedError, match="through offset 2 names workers or nodes that it does not hold"):
        restore(damaged)


def test_a_snapshot_of_a_hundred_nodes_fits_into_one_record_with_room_to_spare() -> None:
    history = History()
    history.add(CreatedRecord(200))
    for number in range(120):
        node = f"a-long-name-of-a-host-{number:03}-0123abcd"
        joined: list[LedgerRecord] = [join(node), WorkerUpRecord(node, 0, 0)]
        history.add(*joined)
    for number in range(20):
        node = f"a-long-name-of-a-host-{number:03}-0123abcd"
        history.add(DeadRecord(node, f"a-long-name-of-a-host-{number + 1:03}-0123abcd", 280.0, 250.0, 200))
    while moving(history.now):
        history.add(released(history.now, moving(history.now)[0]))
    assert len(encode(snapshot(history.now))) < 100_000
