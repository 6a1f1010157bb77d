"""The last stage of a branch: values, keys, headers and timestamps become records for an output topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from millstream.processor.columns import Bools, Int64s, OutputRecords, Slices
from millstream.processor.errors import RecordTooLargeError
from millstream.processor.graph import KEEP, Keep
from millstream.processor.headers import encode_headers
from millstream.processor.interfaces import ValueCodec
from millstream.processor.stages.batch import Batch, Failure, Identity
from millstream.processor.stages.calls import Caller, WrongAnswerError, call_each, refuse_awaitable
from millstream.processor.stages.encoding import Encoder
from millstream.processor.stages.flow import Flow
from millstream.processor.stages.sizes import alone_sizes, too_large

TIMESTAMP_MS_MAX = 2**63 - 1


def as_key(answer: Any) -> bytes | None:
    """A key as Kafka has it. Raises WrongAnswerError for anything but bytes, str and None."""
    if answer is None or type(answer) is bytes:
        return answer
    if isinstance(answer, str):
        return answer.encode()
    if isinstance(answer, bytes | bytearray | memoryview):
        return bytes(answer)
    refuse_awaitable(answer)
    raise WrongAnswerError(
        f"a key must be bytes, str or None, not {type(answer).__name__}; say str(...) if you mean it"
    )


def as_headers(answer: Any) -> bytes:
    """A header section as it stands in a record. Raises WrongAnswerError for what is not headers."""
    refuse_awaitable(answer)
    pairs = answer.items() if isinstance(answer, Mapping) else answer
    if isinstance(pairs, str | bytes):
        raise WrongAnswerError(f"headers must be a dict or (name, value) pairs, not {type(pairs).__name__}")
    try:
        return encode_headers([(_header_name(name), as_key(value)) for name, value in pairs])
    except (TypeError, ValueError) as error:
        raise WrongAnswerError(
            f"headers must be a dict or (name, value) pairs; names are str, values bytes, str or None: {error}"
        ) from error


def _header_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a name of type {type(name).__name__}")
    return name


def as_timestamp(answer: Any) -> int:
    """Milliseconds since 1970. Raises WrongAnswerError for anything but a whole number that is not negative."""
    if isinstance(answer, bool) or not isinstance(answer, int | np.integer):
        refuse_awaitable(answer)
        raise WrongAnswerError(f"a timestamp must be a whole number of milliseconds, not {type(answer).__name__}")
    if not 0 <= answer <= TIMESTAMP_MS_MAX:
        raise WrongAnswerError(f"a timestamp must be milliseconds since 1970, not {answer}")
    return int(answer)


@dataclass(frozen=True, slots=True)
class WriteStage:
    """Appends to the batch's outputs. A value whose bytes no stage has changed is written as those very bytes.

    `topic` answers one of `topics`, or is None where there is only one. Functions are not asked about tombstones
    (unless they see them): these keep key, headers and timestamp, and go to all of `topics`, since nobody can tell in
    which of them their key has been.
    """

    identity: Identity
    codec: ValueCodec
    topics: tuple[str, ...]
    topic: Caller | None = None
    key: Caller | bytes | Keep | None = KEEP
    headers: Caller | bytes | Keep = KEEP
    timestamp: Caller | int | Keep = KEEP
    sees_tombstones: bool = False

    async def run(self, flow: Flow, batch: Batch) -> tuple[()]:
        """Nothing flows on from a write."""
        encoder = Encoder(self.codec)
        asks = any(isinstance(part, Caller) for part in (self.topic, self.key, self.headers, self.timestamp))
        if asks or not encoder.as_they_are(flow):
            flow = flow.decoded(batch)
        usable = np.ones(len(flow), np.bool_)
        seen = self._seen(flow) if asks else None
        topics = await self._answers(self.topic, self._listed_topic, flow, seen, usable, batch)
        key = await self._key(flow, seen, usable, batch)
        headers = await self._headers(flow, seen, usable, batch)
        timestamp = await self._timestamp(flow, seen, usable, batch)
        value = self._encoded(encoder, flow, usable, batch)
        rows = flow.rows
        records = OutputRecords(
            self.topics[0], key, value, headers, timestamp, batch.partitions(rows), rows.astype(np.int32)
        )
        if topics is None:
            self._emit(records, usable, batch)
            return ()
        for topic in self.topics:
            to_topic = np.fromiter((answer is None or answer == topic for answer in topics), np.bool_, len(topics))
            self._emit(replace(records, topic=topic), usable & to_topic, batch)
        return ()

    def _seen(self, flow: Flow) -> Bools | None:
        null = None if self.sees_tombstones else flow.null_mask()
        return None if null is None else ~null

    async def _answers(
        self,
        part: object,
        convert: Callable[[Any], Any],
        flow: Flow,
        seen: Bools | None,
        usable: Bools,
        batch: Batch,
    ) -> list[Any] | None:
        """What a function answers for each value, converted; None for values it did not see or failed on."""
        if not isinstance(part, Caller):
            return None
        asked = np.arange(len(flow)) if seen is None else np.flatnonzero(seen)
        values = flow.objects or []
        some = values if seen is None else [values[i] for i in asked.tolist()]
        called = await part.call_all(some, flow.rows if seen is None else flow.rows[asked], batch)
        converted, errors = call_each(convert, (called.results,))
        for i in called.failed:
            errors.pop(i, None)
            usable[asked[i]] = False
        for i in sorted(errors):
            usable[asked[i]] = False
            batch.fail(Failure(self.identity, int(flow.rows[asked[i]]), errors[i], 1))
        answers: list[Any] = [None] * len(flow)
        for place, answer in zip(asked.tolist(), converted, strict=True):
            answers[place] = answer
        return answers

    def _listed_topic(self, answer: Any) -> str:
        if answer not in self.topics:
            refuse_awaitable(answer)
            shown = repr(answer[:249]) if isinstance(answer, str) else type(answer).__name__
            raise WrongAnswerError(f"topic {shown} is not one of topics=[{', '.join(map(repr, self.topics))}]")
        return str(answer)

    async def _key(self, flow: Flow, seen: Bools | None, usable: Bools, batch: Batch) -> Slices:
        answers = await self._answers(self.key, as_key, flow, seen, usable, batch)
        own = batch.of_rows(batch.records.key, flow.rows)
        if answers is None:
            return Slices.repeated(self.key, len(flow)) if isinstance(self.key, bytes | None) else own
        return _unseen_keep(Slices.from_list(answers), own, seen)

    async def _headers(self, flow: Flow, seen: Bools | None, usable: Bools, batch: Batch) -> Slices:
        answers = await self._answers(self.headers, as_headers, flow, seen, usable, batch)
        own = batch.of_rows(batch.records.headers, flow.rows)
        if answers is None:
            return Slices.repeated(self.headers, len(flow)) if isinstance(self.headers, bytes) else own
        return _unseen_keep(Slices.from_list([answer or b"\0" for answer in answers]), own, seen)

    async def _timestamp(self, flow: Flow, seen: Bools | None, usable: Bools, batch: Batch) -> Int64s:
        answers = await self._answers(self.timestamp, as_timestamp, flow, seen, usable, batch)
        if answers is None and isinstance(self.timestamp, int):
            return np.full(len(flow), self.timestamp, np.int64)
        own: Int64s = batch.records.timestamp if flow.rows is batch.all_rows else batch.records.timestamp[flow.rows]
        if answers is None:
            return own
        answered = np.fromiter((answer or 0 for answer in answers), np.int64, len(answers))
        return answered if seen is None else np.where(seen, answered, own)

    def _encoded(self, encoder: Encoder, flow: Flow, usable: Bools, batch: Batch) -> Slices:
        """The values as bytes; what cannot be encoded becomes unusable."""
        encoded = encoder.encode(flow)
        for i in sorted(encoded.errors):
            if usable[i]:
                usable[i] = False
                batch.fail(Failure(self.identity, int(flow.rows[i]), encoded.errors[i], 1))
        return encoded.values

    def _emit(self, records: OutputRecords, usable: Bools, batch: Batch) -> None:
        usable = self._small_enough(records, usable, batch)
        if not usable.all():
            records = records.take(usable)
        if not len(records):
            return
        batch.outputs.append(records)
        batch.counts.records_out += len(records)
        batch.counts.bytes_out += records.key.byte_count + records.value.byte_count

    def _small_enough(self, records: OutputRecords, usable: Bools, batch: Batch) -> Bools:
        limit = batch.record_bytes_max.get(records.topic)
        if limit is None:
            return usable
        large = too_large(records.key, records.value, records.headers, limit)
        if not len(large):
            return usable
        usable = usable.copy()
        sizes = alone_sizes(records.key.take(large), records.value.take(large), records.headers.take(large))
        for i, size in zip(large.tolist(), sizes.tolist(), strict=True):
            if usable[i]:
                usable[i] = False
                error = RecordTooLargeError(
                    f"the record takes {size} bytes; max.message.bytes of topic {records.topic!r} is {limit}. "
                    "Raise that setting, or write less"
                )
                batch.fail(Failure(self.identity, int(records.source[i]), error, 1))
        return usable


def _unseen_keep(answered: Slices, own: Slices, seen: Bools | None) -> Slices:
    """The answers where the function was asked, the input record's own elsewhere."""
    if seen is None:
        return answered
    both = Slices.concatenated([answered, own])
    rows = np.arange(len(answered), dtype=np.int64)
    return both.take(np.where(seen, rows, rows + len(answered)))
