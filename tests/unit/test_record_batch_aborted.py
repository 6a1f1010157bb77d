"""Records of aborted transactions are never seen; everyone else's always are."""

from __future__ import annotations

import struct

import pytest
from batch_making import ABORT, COMMIT, CONTROL, PARTITION, TRANSACTIONAL, Row, batch, marker, numbered
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.connectors.kafka.compression import Compression
from millstream.connectors.kafka.record_batch import FetchedRecords, decode_batches


def written(value: bytes, *, base_offset: int, producer_id: int, transactional: bool = True, count: int = 2) -> bytes:
    return batch(
        numbered([Row(value=value)] * count),
        base_offset=base_offset,
        producer_id=producer_id,
        attributes=TRANSACTIONAL if transactional else 0,
    )


def values(fetched: FetchedRecords) -> list[bytes | None]:
    assert fetched.corrupt is None
    return fetched.records.value.to_list()


def test_an_aborted_transaction_is_skipped_until_its_marker() -> None:
    data = written(b"gone", base_offset=0, producer_id=7)
    data += marker(ABORT, base_offset=2, producer_id=7)
    data += written(b"kept", base_offset=3, producer_id=7)
    data += marker(COMMIT, base_offset=5, producer_id=7)

    fetched = decode_batches(data, PARTITION, fetch_offset=0, aborted=[(7, 0)])

    assert values(fetched) == [b"kept", b"kept"]
    assert fetched.next_offset == 6


def test_a_commit_marker_of_the_producer_before_does_not_end_the_aborted_one() -> None:
    data = written(b"kept", base_offset=0, producer_id=7)
    data += marker(COMMIT, base_offset=2, producer_id=7)
    data += written(b"gone", base_offset=3, producer_id=7)
    data += marker(ABORT, base_offset=5, producer_id=7)

    assert values(decode_batches(data, PARTITION, fetch_offset=0, aborted=[(7, 3)])) == [b"kept", b"kept"]


def test_other_producers_and_batches_outside_transactions_are_kept() -> None:
    data = written(b"gone", base_offset=0, producer_id=7)
    data += written(b"other", base_offset=2, producer_id=8)
    data += written(b"plain", base_offset=4, producer_id=7, transactional=False)
    data += written(b"nobody", base_offset=6, producer_id=-1, transactional=False)
    data += marker(ABORT, base_offset=8, producer_id=7)

    fetched = decode_batches(data, PARTITION, fetch_offset=0, aborted=[(7, 0)])

    assert values(fetched) == [b"other"] * 2 + [b"plain"] * 2 + [b"nobody"] * 2


def test_a_response_of_aborted_records_alone_still_moves_on() -> None:
    data = written(b"gone", base_offset=10, producer_id=7)

    fetched = decode_batches(data, PARTITION, fetch_offset=10, aborted=[(7, 2)])

    assert values(fetched) == []
    assert fetched.next_offset == 12


def test_without_a_list_of_aborted_transactions_everything_is_read() -> None:
    data = written(b"seen", base_offset=0, producer_id=7) + marker(ABORT, base_offset=2, producer_id=7)

    assert values(decode_batches(data, PARTITION, fetch_offset=0)) == [b"seen", b"seen"]


@pytest.mark.parametrize(
    "control",
    [
        batch([Row(key=b"\0\0\0")], base_offset=2, attributes=TRANSACTIONAL | CONTROL, producer_id=7),
        batch([Row(key=None)], base_offset=2, attributes=TRANSACTIONAL | CONTROL, producer_id=7),
        batch([Row()], base_offset=2, attributes=TRANSACTIONAL | CONTROL, producer_id=7, payload=b"\x7f" * 9),
        batch(
            [Row(key=struct.pack(">hh", 0, 0))],
            base_offset=2,
            attributes=TRANSACTIONAL | CONTROL,
            producer_id=7,
            compression=Compression.ZSTD,
        ),
    ],
    ids=["short key", "no key", "malformed", "packed"],
)
def test_a_control_batch_without_a_readable_type_is_damaged(control: bytes) -> None:
    data = written(b"kept", base_offset=0, producer_id=8) + control + written(b"later", base_offset=3, producer_id=8)

    fetched = decode_batches(data, PARTITION, fetch_offset=0, aborted=[(7, 0)])

    assert fetched.records.value.to_list() == [b"kept", b"kept"]
    assert fetched.corrupt is not None
    assert fetched.corrupt.base_offset == 2
    assert fetched.corrupt.next_offset == 3
    assert fetched.next_offset == 2


steps = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["write", "write", "commit", "abort"])), max_size=40)


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(0, 40))
def test_of_any_interleaving_the_committed_records_are_read(steps: list[tuple[int, str]], cut: int) -> None:
    """A log as a partition leader writes it, read from any batch on with the list that a leader would send."""
    log: list[tuple[int, bytes]] = []
    open_since: dict[int, int] = {}
    pending: dict[int, list[int]] = {}
    aborted: list[tuple[int, int, int]] = []
    committed: set[int] = set()
    for offset, (producer, step) in enumerate([*steps, *((producer, "abort") for producer in range(4))]):
        if step == "write":
            open_since.setdefault(producer, offset)
            pending.setdefault(producer, []).append(offset)
            value = b"%d" % offset
            log.append((offset, written(value, base_offset=offset, producer_id=producer, count=1)))
            continue
        log.append((offset, marker(COMMIT if step == "commit" else ABORT, base_offset=offset, producer_id=producer)))
        written_here = pending.pop(producer, [])
        if step == "commit":
            committed.update(written_here)
        elif producer in open_since:
            aborted.append((producer, open_since[producer], offset))
        open_since.pop(producer, None)
    first = min(cut, len(log) - 1)
    named = [(producer, since) for producer, since, ended in aborted if ended >= first]

    fetched = decode_batches(b"".join(data for _, data in log[first:]), PARTITION, fetch_offset=first, aborted=named)

    assert values(fetched) == [b"%d" % offset for offset in sorted(committed) if offset >= first]
    assert fetched.next_offset == len(log)
