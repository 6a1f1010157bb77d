"""The ledger: everyone who reads it derives the same, however often something was said."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.processor.errors import RefusedError
from millstream.processor.ledger import (
    CreatedRecord,
    DeadRecord,
    JoinRecord,
    LeaveRecord,
    LeavingRecord,
    LedgerRecord,
    LedgerState,
    ReadingRecord,
    ReleasedRecord,
    SeizedRecord,
    Stalled,
    StartedRecord,
    WorkerDownRecord,
    WorkerUpRecord,
    decode,
    encode,
    fold,
)
from millstream.processor.partitions import TopicPartition

topics = st.text(min_size=1, max_size=10)
nodes = st.text(min_size=1, max_size=10)
numbers = st.integers(0, 100)
stalls = st.builds(Stalled, numbers, topics, topics, numbers, numbers, numbers)
facts = st.one_of(
    st.builds(CreatedRecord, st.integers(1, 100)),
    st.builds(StartedRecord, topics, st.integers(0, 100)),
    st.builds(ReadingRecord, topics, st.integers(1, 100)),
)
records = st.one_of(
    facts,
    st.builds(JoinRecord, nodes, topics, st.text(max_size=5), st.lists(topics, max_size=3), numbers),
    st.builds(WorkerUpRecord, nodes, numbers, numbers, st.booleans()),
    st.builds(WorkerDownRecord, nodes, numbers, numbers, topics, st.lists(stalls, max_size=3)),
    st.builds(LeavingRecord, nodes, st.none() | numbers, st.none() | numbers),
    st.builds(LeaveRecord, nodes),
    st.builds(DeadRecord, nodes, nodes, st.floats(0, 1e6), st.floats(0, 1e6), numbers, numbers),
    st.builds(ReleasedRecord, numbers, nodes, numbers, numbers, numbers),
    st.builds(SeizedRecord, numbers, nodes, numbers, numbers, numbers),
)


@settings(max_examples=100, deadline=None)
@given(records)
def test_a_record_is_read_as_it_was_written(record: LedgerRecord) -> None:
    assert decode(encode(record)) == record


@settings(max_examples=100, deadline=None)
@given(st.lists(records), st.lists(records))
def test_saying_it_all_again_changes_nothing(said: list[LedgerRecord], more: list[LedgerRecord]) -> None:
    """An append whose answer got lost is repeated."""
    assert fold([*said, *said, *more, *said]) == fold([*said, *more])


def test_the_first_word_on_shards_and_widths_counts_and_every_start_is_remembered() -> None:
    state = fold(
        [
            CreatedRecord(4),
            ReadingRecord("a", 3),
            CreatedRecord(8),
            ReadingRecord("a", 6),
            StartedRecord("a", 0),
            StartedRecord("b", 2),
        ]
    )
    assert state == LedgerState(4, {"a": 3}, frozenset({TopicPartition("a", 0), TopicPartition("b", 2)}))


def test_an_empty_ledger_is_that_of_a_pipeline_that_was_never_started() -> None:
    assert fold([]) == LedgerState(None, {}, frozenset())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[1]",
        b"{}",
        b'{"type":"created","shards":4}',
        b'{"type":"unknown","version":1}',
        b'{"type":"created","version":1}',
        b'{"type":"created","shards":"4","version":1}',
        b'{"type":"created","shards":0,"version":1}',
        b'{"type":"created","shards":-1,"version":1}',
        b'{"type":"started","topic":"a","partition":-1,"version":1}',
        b'{"type":"join","node":"","name":"a","version":1}',
        b'{"type":"released","shard":0,"node":"a-0","worker":0,"incarnation":0,"version":1}',
        b'{"type":"snapshot","through":3,"state":{},"version":1}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_ledger_record_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedError, match="not a ledger record"):
        decode(data)


def test_what_is_not_known_is_refused_with_the_remedy() -> None:
    with pytest.raises(RefusedError, match=r"'unknown'.*upgrade millstream if a newer one wrote it, or use another"):
        decode(b'{"type":"unknown","version":1}')


def test_what_speaks_of_nodes_says_nothing_about_the_facts() -> None:
    assert fold([JoinRecord("a-0", "a"), WorkerUpRecord("a-0", 0, 0), LeaveRecord("a-0")]) == LedgerState()


def test_a_record_of_a_later_version_is_refused_with_the_remedy() -> None:
    with pytest.raises(RefusedError, match=r"version 2; this millstream knows version 1: upgrade"):
        decode(b'{"type":"created","shards":4,"version":2,"something":"new"}')
