"""pipeline.test: the stages as they would run, on a few records, without a broker."""

# ruff: noqa: ARG005  # functions for stages take a value, also where the test makes nothing of it

from __future__ import annotations

import pytest
from pipeline_types import Payment, payment, raws, score, values

from millstream.processor import MillstreamError, Pipeline, PipelineError, Record, TestRecord


def two_topics() -> Pipeline:
    pipeline = Pipeline("test")
    pipeline.read(["a", "b"], Payment).map(score).write("out")
    return pipeline


def test_values_bytes_and_records_are_all_taken() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in", Payment).write("out")
    raw = b'{"user":"ann","amount":1.0}'
    record = Record("in", 0, 0, None, None, raw)
    result = pipeline.test([payment(1.0), raw, TestRecord(value=payment(1.0)), TestRecord(value=raw), record])
    assert raws(result) == [raw] * 5
    assert values(result) == [payment(1.0)] * 5


def test_every_output_topic_is_there_even_when_nothing_was_written() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in").filter(lambda v: False).write("out")
    result = pipeline.test([b"x"])
    assert result.outputs == {"out": []}
    assert result.counts.records_out == 0


def test_no_records_are_fine() -> None:
    assert two_topics().test([]).outputs == {"out": []}


def test_offsets_count_up_in_each_partition() -> None:
    places = []

    def look(value: bytes, record: Record) -> bytes:
        places.append((record.topic, record.partition, record.offset))
        return value

    pipeline = Pipeline("test")
    pipeline.read(["a", "b"]).map(look).write("out")
    pipeline.test([b"", TestRecord(value=b"", topic="b"), TestRecord(value=b"", partition=1, offset=7), b""], topic="a")
    assert places == [("a", 0, 0), ("b", 0, 0), ("a", 1, 7), ("a", 0, 1)]


@pytest.mark.parametrize(
    ("record", "topic", "message"),
    [
        (payment(1.0), None, "test record 0 has no topic; give topic= as one of 'a', 'b'"),
        (payment(1.0), "c", "test record 0 has the topic 'c', which is not read"),
        (object(), "a", "test record 0 cannot be a value of topic 'a'"),
    ],
)
def test_records_that_the_pipeline_cannot_be_given_are_refused(record: object, topic: str | None, message: str) -> None:
    with pytest.raises(MillstreamError, match=message):
        two_topics().test([record], topic=topic)


def test_a_pipeline_with_mistakes_is_not_run() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in").map(lambda: b"").write("out")
    with pytest.raises(PipelineError):
        pipeline.test([])


async def test_inside_of_a_running_loop_the_way_out_is_named() -> None:
    with pytest.raises(MillstreamError, match=r"await pipeline\.test_async"):
        two_topics().test([payment(1.0)], topic="a")
    assert len(raws(await two_topics().test_async([payment(1.0)], topic="a"))) == 1


def test_running_twice_gives_the_same_twice() -> None:
    pipeline = two_topics()
    first, second = (pipeline.test([payment(1.0)], topic="a") for _ in range(2))
    assert first == second
