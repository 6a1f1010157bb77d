"""filter, split, map and flat_map: what they let through, in which order, and which bytes they leave alone."""

# ruff: noqa: ARG005  # functions for stages take a value, also where the test makes nothing of it

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_types import Payment, Scored, payment, raws, score, values

from millstream.processor import EncodeError, Fidelity, Pipeline, Record, StageError, TestRecord
from millstream.processor.policy import ErrorPolicy

ODDLY_SPELLED = b'{ "amount" : 1.50e1, "user":"\\u0061nn" , "more": [1,  2]}'


def test_values_travel_from_the_source_type_to_the_annotated_type() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in", Payment).filter(lambda p: p.amount > 0).map(score).write("out")
    result = pipeline.test([payment(5.0), payment(-1.0), payment(2.0)])
    assert values(result) == [Scored("ann", 5.0, 0.5), Scored("ann", 2.0, 0.2)]
    assert raws(result)[0] == b'{"user":"ann","amount":5.0,"fee":0.5}'


def test_filters_and_splits_never_change_a_byte() -> None:
    pipeline = Pipeline("test")
    stream = pipeline.read("in", Payment)
    large, small = stream.filter(lambda p: p.user == "ann").split(lambda p: p.amount > 10)
    large.write("large")
    small.write("small")
    result = pipeline.test([ODDLY_SPELLED, b'{"user":"ann","amount":1}', b'{"user":"bob","amount":1}'])
    assert raws(result, "large") == [ODDLY_SPELLED]
    assert raws(result, "small") == [b'{"user":"ann","amount":1}']


def test_values_that_no_stage_looks_at_are_not_decoded() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in", Payment).write("out")
    assert raws(pipeline.test([b"no JSON at all"])) == [b"no JSON at all"]


def test_each_value_is_decoded_once_however_many_branches_use_it() -> None:
    seen: list[int] = []

    class Counted(msgspec.Struct):
        number: int

        def __post_init__(self) -> None:
            seen.append(self.number)

    pipeline = Pipeline("test")
    stream = pipeline.read("in", Counted)
    stream.filter(lambda c: c.number > 1).map(lambda c: c.number).write("a")
    stream.map(lambda c: c.number).write("b")
    even = stream.filter_columns(lambda columns: columns["number"] % 2 == 0, reads={"number": int})
    even.map(lambda c: c.number).write("c")
    pipeline.test([b'{"number":1}', b'{"number":2}', b'{"number":3}'])
    assert sorted(seen) == [1, 2, 3]


def test_a_part_that_is_asked_for_first_is_not_decoded_again_with_the_rest() -> None:
    seen: list[int] = []

    class Counted(msgspec.Struct):
        number: int

        def __post_init__(self) -> None:
            seen.append(self.number)

    pipeline = Pipeline("test")
    stream = pipeline.read("in", Counted)
    even = stream.filter_columns(lambda columns: columns["number"] % 2 == 0, reads={"number": int})
    even.map(lambda c: c.number).write("even")
    stream.map(lambda c: c.number).write("all")
    result = pipeline.test([b'{"number":1}', b'{"number":2}', b'{"number":3}'])
    assert sorted(seen) == [1, 2, 3]
    assert raws(result, "even") == [b"2"]
    assert raws(result, "all") == [b"1", b"2", b"3"]


def test_what_counts_as_true_is_what_python_takes_for_true() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in", dict).filter(lambda v: v["keep"]).write("out")
    truthy: list[object] = [True, 1, 300, -1, "yes", [0], 0.5]
    falsy: list[object] = [False, 0, "", [], {}, 0.0]
    result = pipeline.test([{"keep": value} for value in truthy + falsy])
    assert [value["keep"] for value in values(result)] == truthy  # type: ignore[index]


def test_a_function_with_a_second_required_parameter_gets_the_record() -> None:
    records: list[Record] = []

    def remember(value: bytes, record: Record) -> bytes:
        records.append(record)
        return value + b"!"

    pipeline = Pipeline("test")
    pipeline.read(["a", "b"]).map(remember).write("out")
    given = TestRecord(
        value=b"v", key="k", headers={"h": b"1", "n": None}, timestamp_ms=7, topic="b", partition=3, offset=41
    )
    assert raws(pipeline.test([given])) == [b"v!"]
    (record,) = records
    assert (record.topic, record.partition, record.offset, record.timestamp_ms) == ("b", 3, 41, 7)
    assert (record.key, record.value) == (b"k", b"v")
    assert record.headers == [("h", b"1"), ("n", None)]
    with pytest.raises(AttributeError):
        record.offset = 5  # type: ignore[misc]
    assert repr(record) == "Record(b-3@41)"


def test_an_optional_second_parameter_is_left_alone() -> None:
    def with_default(value: bytes, suffix: bytes = b"?") -> bytes:
        return value + suffix

    pipeline = Pipeline("test")
    stream = pipeline.read("in")
    stream.map(with_default).write("a")
    stream.map(bytes.upper).write("b")
    result = pipeline.test([b"v"])
    assert (raws(result, "a"), raws(result, "b")) == ([b"v?"], [b"V"])


def test_flat_map_takes_lists_tuples_sets_and_generators_and_keeps_their_order() -> None:
    def letters(value: bytes) -> Iterator[bytes]:
        for letter in value.decode():
            yield letter.encode()

    pipeline = Pipeline("test")
    stream = pipeline.read("in")
    stream.flat_map(letters).write("generator")
    stream.flat_map(lambda v: [v, v]).write("list")
    stream.flat_map(lambda v: ()).write("nothing")
    result = pipeline.test([b"ab", b"", b"c"])
    assert raws(result, "generator") == [b"a", b"b", b"c"]
    assert raws(result, "list") == [b"ab", b"ab", b"", b"", b"c", b"c"]
    assert raws(result, "nothing") == []


@pytest.mark.parametrize("answer", ["text", b"bytes", 5, {"a": 1}, None])
def test_flat_map_refuses_what_is_no_list_of_values(answer: object) -> None:
    pipeline = Pipeline("test")
    pipeline.read("in").flat_map(lambda v: answer).write("out")  # type: ignore[arg-type,return-value]
    with pytest.raises(StageError, match="flat_map needs an iterable of values"):
        pipeline.test([b"x"])


@pytest.mark.parametrize("kind", ["map", "filter", "flat_map", "key"])
def test_an_async_function_called_by_a_plain_one_is_found_out(kind: str) -> None:
    async def later(value: bytes) -> bytes:
        return value

    pipeline = Pipeline("test")
    stream: Any = pipeline.read("in")
    if kind == "key":
        stream.write("out", key=lambda v: later(v))
    else:
        getattr(stream, kind)(lambda v: later(v)).write("out")
    with pytest.raises(StageError, match="not awaited"):
        pipeline.test([b"x"])


def test_async_functions_keep_the_order_though_later_ones_finish_first() -> None:
    async def slow_first(value: bytes) -> bytes:
        await asyncio.sleep(0.02 if value == b"0" else 0)
        return value

    pipeline = Pipeline("test")
    pipeline.read("in").map(slow_first).write("out")
    inputs = [b"%d" % i for i in range(20)]
    assert raws(pipeline.test(inputs)) == inputs


def test_no_more_async_calls_than_allowed_are_under_way() -> None:
    under_way = 0
    most = 0

    async def counted(value: bytes) -> bool:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return True

    pipeline = Pipeline("test")
    pipeline.read("in").filter(counted, concurrency=3).write("out")
    assert len(raws(pipeline.test([b"x"] * 50))) == 50
    assert most == 3


def test_an_async_call_that_takes_too_long_is_an_error_of_its_record_alone() -> None:
    async def stuck_on_two(value: bytes) -> bytes:
        if value == b"2":
            await asyncio.Event().wait()
        return value

    pipeline = Pipeline("test", on_error="dead-letter")
    pipeline.read("in").map(stuck_on_two, timeout_ms=20).write("out")
    result = pipeline.test([b"1", b"2", b"3"])
    assert raws(result) == [b"1", b"3"]
    assert dict(result.dead_letters[0].headers)["millstream.error.message"] == b"no answer within 20 ms"


def test_a_function_whose_own_task_is_cancelled_fails_and_loses_nobody_elses_record() -> None:
    async def awaits_something_cancelled(value: bytes) -> bytes:
        if value == b"2":
            cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            cancelled.cancel()
            await cancelled
        return value

    pipeline = Pipeline("test", on_error="skip")
    pipeline.read("in").map(awaits_something_cancelled, concurrency=1).write("out")
    assert raws(pipeline.test([b"1", b"2", b"3"])) == [b"1", b"3"]


async def test_cancelling_a_batch_cancels_its_calls_and_waits_for_them() -> None:
    ended = []

    async def waits(value: bytes) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(value)
        return value

    pipeline = Pipeline("test")
    pipeline.read("in").map(waits).write("out")
    task = asyncio.ensure_future(pipeline.test_async([b"1", b"2"]))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [b"1", b"2"]


async def test_async_flat_maps_and_records_work_together() -> None:
    async def twice(value: bytes, record: Record) -> list[bytes]:
        return [value, b"%d" % record.offset]

    pipeline = Pipeline("test")
    pipeline.read("in").flat_map(twice).write("out")
    assert raws(await pipeline.test_async([b"a", b"b"])) == [b"a", b"0", b"b", b"1"]


def test_tombstones_pass_every_stage_in_their_place_unless_told_otherwise() -> None:
    pipeline = Pipeline("test")
    stream = pipeline.read("in", Payment)
    stream.filter(lambda p: p.amount > 1).map(score).flat_map(lambda s: [s.fee, s.fee]).write("out")
    yes, no = stream.split(lambda p: p.amount > 1)
    yes.write("yes")
    no.write("no")
    result = pipeline.test([payment(10), None, b'{"user":"ann","amount":1}', TestRecord(value=None, key="k")])
    assert raws(result) == [b"1.0", b"1.0", None, None]
    assert [output.key for output in result.outputs["out"]] == [None, None, None, b"k"]
    # Nobody can tell on which side the key was, so both are told that it is gone.
    assert raws(result, "yes")[1:] == [None, None]
    assert raws(result, "no") == [None, b'{"user":"ann","amount":1}', None]


def test_tombstones_can_be_dropped_or_delivered() -> None:
    dropping, delivering = Pipeline("test"), Pipeline("test")
    dropping.read("in", tombstones="drop").write("out")
    delivering.read("in", tombstones="deliver").map(lambda value: b"gone" if value is None else value).write("out")
    assert raws(dropping.test([b"a", None, b"b"])) == [b"a", b"b"]
    assert raws(delivering.test([b"a", None, b"b"])) == [b"a", b"gone", b"b"]


def test_a_map_that_answers_none_makes_a_tombstone_that_later_stages_do_not_see() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in").map(lambda v: None if v == b"x" else v).map(lambda v: v + b"!").write("out")
    assert raws(pipeline.test([b"a", b"x", b"b"])) == [b"a!", None, b"b!"]


def test_fields_that_the_type_does_not_name_are_kept_where_the_fidelity_says_so() -> None:
    kept, dropped = Pipeline("test", fidelity=Fidelity(unknown_fields="keep")), Pipeline("test")
    for pipeline in (kept, dropped):
        pipeline.read("in", Payment).filter(lambda p: True).map(score).write("out")
    given = b'{"user":"ann","trace":12345678901234567890123,"amount":1.0}'
    assert raws(dropped.test([given])) == [b'{"user":"ann","amount":1.0,"fee":0.1}']
    assert raws(kept.test([given, None])) == [
        b'{"user":"ann","trace":12345678901234567890123,"amount":1.0,"fee":0.1}',
        None,
    ]


def test_bytes_are_not_written_as_base64_into_json() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in", dict).map(lambda v: b'{"a":1}').write("out")
    with pytest.raises(StageError, match=r'JSON has no bytes.*format="raw"') as caught:
        pipeline.test([{}])
    assert isinstance(caught.value.__cause__, EncodeError)

    annotated, overridden = Pipeline("test"), Pipeline("test")

    def encode(value: dict[str, int]) -> bytes:
        return msgspec.json.encode(value)

    annotated.read("in", dict).map(encode).write("out")
    overridden.read("in", dict).map(lambda v: msgspec.json.encode(v)).write("out", format="raw")
    assert raws(annotated.test([{"a": 1}])) == raws(overridden.test([{"a": 1}])) == [b'{"a":1}']


def test_an_unchanged_value_is_translated_where_the_written_format_is_another() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in", Payment).write("out", format="msgpack")
    (raw,) = raws(pipeline.test([payment(1.0)]))
    assert msgspec.msgpack.decode(raw or b"", type=Payment) == payment(1.0)


def test_a_thousand_stages_are_not_too_many() -> None:
    pipeline = Pipeline("test")
    stream = pipeline.read("in")
    for _ in range(1000):
        stream = stream.filter(bool)
    stream.write("out")
    assert raws(pipeline.test([b"x"])) == [b"x"]


Step = tuple[str, Callable[[Any], Any]]


def _poison(value: bytes) -> bytes:
    if value.endswith(b"e"):
        raise ValueError("poison")
    return value + b"."


def _asynchronous(function: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    async def call(value: Any) -> Any:
        await asyncio.sleep(0)
        return function(value)

    return call


@settings(max_examples=60, deadline=None)
@given(
    inputs=st.lists(st.one_of(st.none(), st.sampled_from([b"a", b"e", b"be", b"cd", b""])), max_size=12),
    stages=st.lists(st.sampled_from(["map", "filter", "flat_map"]), max_size=4),
    asynchronous=st.booleans(),
    policy=st.sampled_from(["dead-letter", "skip"]),
)
def test_a_batch_gives_what_each_record_alone_would(
    inputs: list[bytes | None], stages: list[str], asynchronous: bool, policy: ErrorPolicy
) -> None:
    functions: dict[str, Callable[[Any], Any]] = {
        "map": _poison,
        "filter": lambda v: len(v) < 3 if not v.endswith(b"d.") else _poison(b"e"),
        "flat_map": lambda v: [v, v + b"e"] if len(v) < 4 else [],
    }
    pipeline = Pipeline("test", on_error=policy)
    stream: Any = pipeline.read("in")
    for kind in stages:
        function = functions[kind]
        stream = getattr(stream, kind)(_asynchronous(function) if asynchronous else function, concurrency=4)
    stream.write("out")

    together = pipeline.test(inputs)
    alone = [pipeline.test([one]) for one in inputs]

    assert raws(together) == [raw for one in alone for raw in raws(one)]
    assert [letter.raw for letter in together.dead_letters] == [d.raw for one in alone for d in one.dead_letters]
    assert together.counts.records_in == len(inputs)
    assert together.counts.records_out == len(raws(together))
    assert together.counts.skipped == sum(one.counts.skipped for one in alone)
