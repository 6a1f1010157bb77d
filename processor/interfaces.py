"""The seams between the parts: what each needs of the next, and nothing about how it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from millstream.processor.columns import OutputRecords, Records, Slices
from millstream.processor.counts import Counts as Counts
from millstream.processor.errors import CorruptBatchError
from millstream.processor.partitions import TopicPartition
from millstream.processor.stage_mark import UNWATCHED, StageMark
from millstream.processor.stalled import Stalled


class ValueCodec(Protocol):
    """How the values of a topic become Python objects and back.

    Both directions work on whole batches, and one bad row never spoils its neighbours: the row's place holds
    None and `errors` says why.
    """

    @property
    def name(self) -> str:
        """A short name for messages, such as `json Payment`."""

    @property
    def format(self) -> str:
        """The format's word, as in `read(format=...)`."""

    def decode(self, values: Slices) -> Decoded:
        """Objects for all rows. Null rows (tombstones) decode to None without an error."""

    def encode(self, values: Sequence[object]) -> Encoded:
        """Bytes for all objects. None becomes a null row (a tombstone)."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """`values` has one object for each row; `errors` has a `DecodeError` for each row that is not one."""

    values: list[object]
    errors: Mapping[int, Exception] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Encoded:
    """`values` has one row for each object; `errors` has an `EncodeError` for each object that is not one."""

    values: Slices
    errors: Mapping[int, Exception] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Effects:
    """All that a batch of input causes: records for output topics (dead letters among them), and its counts."""

    outputs: Sequence[OutputRecords]
    counts: Counts


class Program(Protocol):
    """A built pipeline, as the runtime sees it: input batches in, effects out. It does no I/O of Kafka's."""

    async def process(
        self,
        records: Records,
        record_bytes_max: Mapping[str, int],
        mark: StageMark = UNWATCHED,
        given_up: Stalled | None = None,
    ) -> Effects:
        """Run all stages on a batch.

        `record_bytes_max` is the `max.message.bytes` of each output topic; a record that cannot fit is an error
        of its write stage. `mark` hears which stage runs. The stage that `given_up` names is not asked: all records of
        the batch go to its policy. Raises StageError where a record fails and the stage's policy is to stop.
        """

    def leave_out(
        self, partition: TopicPartition, error: CorruptBatchError, record_bytes_max: Mapping[str, int]
    ) -> Effects:
        """Give up a stored batch that stays damaged: what its read's policy makes of it.

        Raises StageError where that is to stop, or where the damage hides how many records would be left out.
        """
