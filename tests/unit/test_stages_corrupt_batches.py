"""A stored batch that cannot be read: the read's policy decides, and what is left out is told."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.processor import OnError, Pipeline
from millstream.processor.counts import Counts
from millstream.processor.errors import CorruptBatchError, StageError
from millstream.processor.headers import decode_headers
from millstream.processor.interfaces import Effects
from millstream.processor.partitions import TopicPartition
from millstream.processor.program import CompiledProgram

PLACE = TopicPartition("orders", 3)


def left_out(
    on_error: Any, *, next_offset: int | None = 20, limit: int = 1_000_000, reason: str = "its CRC does not match"
) -> Effects:
    pipeline = Pipeline("shop")
    pipeline.read("orders", on_error=on_error, name="incoming").write("out")
    pipeline.read("other", on_error="dead-letter").write("out-2")
    program = pipeline.build().program
    assert isinstance(program, CompiledProgram)
    error = CorruptBatchError(reason, base_offset=17, next_offset=next_offset, reads=3)
    return program.leave_out(PLACE, error, {"shop.dead-letters": limit})


def test_stop_names_place_offset_reason_and_remedy() -> None:
    with pytest.raises(StageError) as caught:
        left_out("stop")
    for part in ("'shop'", "'incoming'", "orders-3@17", "3 reads", "its CRC", "on_error='dead-letter'", "'skip'"):
        assert part in str(caught.value)
    assert isinstance(caught.value.__cause__, CorruptBatchError)


@pytest.mark.parametrize("on_error", ["skip", OnError.skip().retry(5)])
def test_skip_counts_the_batch_and_writes_nothing(on_error: Any) -> None:
    assert left_out(on_error) == Effects([], Counts(skipped=1))


def test_a_dead_letter_says_where_and_why_and_holds_nothing_else() -> None:
    effects = left_out("dead-letter")
    (letter,) = effects.outputs
    assert effects.counts == Counts(dead_letters=1)
    assert (letter.topic, letter.key[0], letter.value[0]) == ("shop.dead-letters", None, None)
    assert letter.unkeyed_partition.tolist() == [3]
    assert dict(decode_headers(letter.headers[0] or b"")) == {
        "millstream.error.pipeline": b"shop",
        "millstream.error.stage": b"incoming",
        "millstream.error.topic": b"orders",
        "millstream.error.partition": b"3",
        "millstream.error.offset": b"17",
        "millstream.error.timestamp": b"-1",
        "millstream.error.type": b"CorruptBatchError",
        "millstream.error.message": b"record batch at offset 17: its CRC does not match",
        "millstream.error.attempts": b"3",
    }


@pytest.mark.parametrize("on_error", ["skip", "dead-letter"])
def test_damage_that_hides_its_end_stops_whatever_the_policy_and_says_how_to_get_behind_it(on_error: str) -> None:
    with pytest.raises(StageError, match=r"orders-3@17.*--group shop --topic orders:3 --to-offset") as caught:
        left_out(on_error, next_offset=None)
    assert "hides where the next batch begins" in str(caught.value)


def test_a_dead_letter_that_its_topic_cannot_take_stops_with_the_remedy() -> None:
    with pytest.raises(StageError, match=r"orders-3@17.*max\.message\.bytes is 300; raise"):
        left_out("dead-letter", limit=300)


def test_a_long_reason_is_cut() -> None:
    (letter,) = left_out("dead-letter", reason="x" * 100_000).outputs
    assert letter.headers.byte_count < 2000
