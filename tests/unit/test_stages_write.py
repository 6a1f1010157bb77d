"""write: keys, topics, headers, timestamps, and records that are too large for their topic."""

# ruff: noqa: ARG005  # functions for stages take a value, also where the test makes nothing of it

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_types import Payment, headers_of, payment, raws

from millstream.connectors.kafka.record_batch import record_bytes
from millstream.processor import Pipeline, Record, StageError, TestRecord, TestResult
from millstream.processor.columns import Slices
from millstream.processor.interfaces import Effects
from millstream.processor.stages.sizes import alone_sizes, too_large
from millstream.processor.testing import input_records

ORIGINAL = TestRecord(value=b"v", key=b"k", headers=[("h", b"1")], timestamp_ms=5, partition=3)


def written(result: TestResult, topic: str = "out") -> list[tuple[object, ...]]:
    return [(o.key, o.raw, o.headers, o.timestamp_ms) for o in result.outputs[topic]]


def effects_of(pipeline: Pipeline, inputs: list[Any], limits: Mapping[str, int]) -> Effects:
    built = pipeline.build()
    records = input_records(built, [i if isinstance(i, TestRecord) else TestRecord(value=i) for i in inputs], None)
    return asyncio.run(built.program.process(records, limits))


def test_key_headers_and_timestamp_stay_unless_told_otherwise() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in").map(bytes.upper).write("out")
    assert written(pipeline.test([ORIGINAL])) == [(b"k", b"V", [("h", b"1")], 5)]


def test_key_headers_and_timestamp_may_be_constants() -> None:
    pipeline = Pipeline("test")
    stream = pipeline.read("in")
    stream.write("out", key=b"new", headers={"x": "1", "y": None}, timestamp=9)
    stream.write("text-key", key="ü")
    stream.write("no-key", key=None, headers=[])
    result = pipeline.test([ORIGINAL])
    assert written(result) == [(b"new", b"v", [("x", b"1"), ("y", None)], 9)]
    assert written(result, "text-key") == [("ü".encode(), b"v", [("h", b"1")], 5)]
    assert written(result, "no-key") == [(None, b"v", [], 5)]


def test_key_headers_and_timestamp_may_be_functions_of_value_and_record() -> None:
    def headers(value: Payment, record: Record) -> dict[str, bytes | str | None]:
        return {**dict(record.headers), "user": value.user, "none": None}

    def timestamp(value: Payment, record: Record) -> int:
        return (record.timestamp_ms or 0) + 1

    pipeline = Pipeline("test")
    pipeline.read("in", Payment).write("out", key=lambda p: p.user, headers=headers, timestamp=timestamp)
    given = TestRecord(value=payment(1.0), key=b"old", headers={"h": b"1"}, timestamp_ms=5)
    ((key, raw, pairs, at),) = written(pipeline.test([given]))
    assert (key, raw, at) == (b"ann", b'{"user":"ann","amount":1.0}', 6)
    assert pairs == [("h", b"1"), ("user", b"ann"), ("none", None)]


def test_null_and_empty_keys_are_different_things() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in").write("out", key=lambda v: None if v == b"null" else b"")
    result = pipeline.test([b"null", b"empty"])
    assert [output.key for output in result.outputs["out"]] == [None, b""]


def test_a_record_without_a_key_stays_with_its_input_partition() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in").write("out", key=None)
    inputs = [TestRecord(value=b"v", key=b"k", partition=p) for p in (4, 1, 4)]
    (records,) = effects_of(pipeline, inputs, {}).outputs
    assert records.unkeyed_partition.tolist() == [4, 1, 4]
    assert records.source.tolist() == [0, 1, 2]


def test_a_topic_may_be_chosen_for_each_value_among_those_that_are_listed() -> None:
    pipeline = Pipeline("test", on_error="dead-letter")
    pipeline.read("in").write(lambda v: v.decode(), topics=["a", "b", "c"])
    result = pipeline.test([b"a", b"b", b"elsewhere", b"a"])
    assert (raws(result, "a"), raws(result, "b"), raws(result, "c")) == ([b"a", b"a"], [b"b"], [])
    assert headers_of(result)["millstream.error.message"] == (b"topic 'elsewhere' is not one of topics=['a', 'b', 'c']")


def test_functions_are_not_asked_about_tombstones_which_go_to_all_topics() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in", Payment).write(
        lambda p: p.user, topics=["ann", "bob"], key=lambda p: p.user, headers=lambda p: {}, timestamp=lambda p: 1
    )
    gone = TestRecord(value=None, key=b"k", headers={"h": b"1"}, timestamp_ms=5)
    result = pipeline.test([payment(1.0), gone])
    assert written(result, "ann") == [
        (b"ann", b'{"user":"ann","amount":1.0}', [], 1),
        (b"k", None, [("h", b"1")], 5),
    ]
    assert written(result, "bob") == [(b"k", None, [("h", b"1")], 5)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": lambda v: 5}, "a key must be bytes, str or None, not int"),
        ({"headers": lambda v: [("a", 5)]}, "headers must be a dict or (name, value) pairs"),
        ({"headers": lambda v: {5: b""}}, "headers must be a dict or (name, value) pairs"),
        ({"headers": lambda v: b"raw"}, "headers must be a dict or (name, value) pairs"),
        ({"headers": lambda v: None}, "headers must be a dict or (name, value) pairs"),
        ({"timestamp": lambda v: 1.5}, "a timestamp must be a whole number of milliseconds, not float"),
        ({"timestamp": lambda v: -1}, "a timestamp must be milliseconds since 1970, not -1"),
    ],
)
def test_an_answer_of_a_wrong_type_fails_its_record_alone(arguments: dict[str, Any], message: str) -> None:
    wrong = dict(arguments)
    ((part, function),) = wrong.items()
    sound = {"key": b"", "headers": {}, "timestamp": 1}[part]
    pipeline = Pipeline("test", on_error="dead-letter")
    pipeline.read("in").write("out", **{part: lambda v: function(v) if v == b"bad" else sound})
    result = pipeline.test([b"a", b"bad", b"b"])
    assert raws(result) == [b"a", b"b"]
    assert message in (headers_of(result)["millstream.error.message"] or b"").decode()


def test_a_value_that_cannot_be_encoded_fails_its_record_alone() -> None:
    pipeline = Pipeline("test", on_error="dead-letter")
    pipeline.read("in", dict).map(lambda v: object() if v["bad"] else v).write("out")
    result = pipeline.test([{"bad": False}, {"bad": True}, {"bad": False}])
    assert raws(result) == [b'{"bad":false}', b'{"bad":false}']
    assert headers_of(result)["millstream.error.type"] == b"EncodeError"


def test_a_record_that_its_topic_cannot_hold_falls_under_the_writes_policy() -> None:
    limit = int(record_bytes(-1, 1000, 1))
    pipeline = Pipeline("test", on_error="dead-letter")
    pipeline.read("in").write("out")
    effects = effects_of(pipeline, [b"x" * 1000, b"x" * 1001, b"x"], {"out": limit})
    out, dead = effects.outputs
    assert out.value.size.tolist() == [1000, 1]
    assert dead.value.size.tolist() == [1001]
    assert effects.counts.records_out == 2
    assert effects.counts.bytes_out == 1001

    stopping = Pipeline("test")
    stopping.read("in").write("out")
    with pytest.raises(
        StageError, match=r"RecordTooLargeError: the record takes \d+ bytes; max.message.bytes of topic"
    ):
        effects_of(stopping, [b"x" * 1001], {"out": limit})


def test_a_dead_letter_that_does_not_fit_stops_the_pipeline_and_names_the_setting() -> None:
    pipeline = Pipeline("test", on_error="dead-letter")
    pipeline.read("in").write("out")
    with pytest.raises(
        StageError, match=r"does not fit into topic 'test.dead-letters', whose max.message.bytes is 900"
    ):
        effects_of(pipeline, [b"x" * 1000], {"out": 500, "test.dead-letters": 900})


sizes = st.one_of(st.integers(-1, 300), st.integers(8000, 8300), st.integers(2**20 - 200, 2**20 + 200))


@settings(max_examples=200, deadline=None)
@given(sizes, sizes, st.one_of(st.integers(1, 200), st.integers(8000, 8300)), st.integers(-2, 2))
def test_the_size_of_a_record_alone_is_exact(key: int, value: int, headers: int, spare: int) -> None:
    def column(size: int) -> Slices:
        buffer = np.zeros(max(size, 0), np.uint8)
        return Slices(buffer, np.zeros(1, np.int32), np.array([size], np.int32))

    row = column(key), column(value), column(headers)
    exact = int(record_bytes(key, value, headers))
    assert alone_sizes(*row).tolist() == [exact]
    assert too_large(*row, exact + spare).tolist() == ([0] if spare < 0 else [])


def test_counts_add_up() -> None:
    pipeline = Pipeline("test")
    stream = pipeline.read("in")
    stream.write("out")
    stream.filter(lambda v: v == b"abc").write("too")
    result = pipeline.test([TestRecord(value=b"abc", key=b"k"), b"d", None])
    counts = result.counts
    assert (counts.records_in, counts.bytes_in, counts.records_out, counts.bytes_out) == (3, 5, 5, 9)
