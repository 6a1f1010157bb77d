"""Dead letters: the original bytes of a record that a stage gave up on, with headers that say where, why, how often.

Of a batch that cannot be read there are no records, so that its letter is all headers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from millstream.processor.columns import NO_TIMESTAMP, OutputRecords, Slices
from millstream.processor.errors import CorruptBatchError, RecordTooLargeError
from millstream.processor.headers import NO_HEADERS, encode_headers
from millstream.processor.partitions import TopicPartition
from millstream.processor.stages.batch import Batch, Failure, Identity, error_text
from millstream.processor.stages.sizes import too_large

HEADER_PREFIX = "millstream.error."


def dead_letters(topic: str, batch: Batch, record_bytes_max: Mapping[str, int]) -> OutputRecords | None:
    """All dead letters of a batch in the order of their records; None where there are none.

    Raises StageError where a dead letter is larger than its topic allows: it can neither go on nor be kept.
    """
    failures = sorted(batch.dead.values(), key=lambda failure: failure.row)
    if not failures:
        return None
    rows = np.fromiter((failure.row for failure in failures), np.int64, len(failures))
    letters = batch.records.take(rows)
    headers = Slices.from_list([_headers(batch, failure) for failure in failures])
    limit = record_bytes_max.get(topic)
    large = [] if limit is None else too_large(letters.key, letters.value, headers, limit).tolist()
    if large:
        failure = failures[large[0]]
        error = RecordTooLargeError(
            f"as a dead letter, with its error headers, it does not fit into topic {topic!r}, whose max.message.bytes "
            f"is {limit}; raise that setting (the error: {type(failure.error).__name__}: {error_text(failure.error)})"
        )
        raise batch.stopped(Failure(failure.stage, failure.row, error, failure.attempts)) from failure.error
    return OutputRecords(
        topic,
        letters.key,
        letters.value,
        headers,
        letters.timestamp,
        batch.partitions(rows),
        rows.astype(np.int32),
    )


def corrupt_batch_letter(
    topic: str, partition: TopicPartition, error: CorruptBatchError, stage: Identity
) -> OutputRecords:
    """The letter of a whole batch: no key and no value, and the batch's first offset."""
    headers = _error_headers(stage, partition, error.base_offset, NO_TIMESTAMP, error, error.reads)
    return OutputRecords(
        topic,
        Slices.repeated(None, 1),
        Slices.repeated(None, 1),
        Slices.from_list([headers]),
        np.array([NO_TIMESTAMP], np.int64),
        np.array([partition.partition], np.int32),
        np.zeros(1, np.int32),
    )


def _headers(batch: Batch, failure: Failure) -> bytes:
    """The record's headers as they stand, to the byte, and behind them what happened to it."""
    records, row = batch.records, failure.row
    added = _error_headers(
        failure.stage,
        records.origins[records.origin[row]],
        int(records.offset[row]),
        int(records.timestamp[row]),
        failure.error,
        failure.attempts,
    )
    section = batch.records.headers[failure.row] or NO_HEADERS
    try:
        count, rest = _split_count(section)
    except IndexError:
        return added  # what the record has is no header section at all, and would make the dead letter unreadable
    return _count(count + added[0] // 2) + rest + added[1:]


def _error_headers(
    stage: Identity, origin: TopicPartition, offset: int, timestamp: int, error: Exception, attempts: int
) -> bytes:
    told = {
        "pipeline": stage.pipeline,
        "stage": stage.stage,
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": offset,
        "timestamp": timestamp,
        "type": type(error).__name__,
        "message": error_text(error),
        "attempts": attempts,
    }
    # A lone surrogate in an error's text must not turn one bad record into a crash.
    return encode_headers(
        [(HEADER_PREFIX + name, str(value).encode(errors="backslashreplace")) for name, value in told.items()]
    )


def _split_count(section: bytes) -> tuple[int, bytes]:
    """The number of headers, a zigzag varint, and all that follows. The headers themselves need not be readable."""
    number = 0
    for i in range(5):
        number |= (section[i] & 0x7F) << (7 * i)
        if section[i] < 0x80:
            return number >> 1, section[i + 1 :]
    raise IndexError


def _count(number: int) -> bytes:
    rest = number << 1
    written = bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)
