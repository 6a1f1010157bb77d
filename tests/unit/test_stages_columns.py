"""Column stages: whole batches in and out, all other bytes left alone, and rows at fault found by halving."""

# ruff: noqa: ARG005  # functions for stages take a value, also where the test makes nothing of it

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_types import Payment, Scored, headers_of, payment, raws, values

from millstream.processor import Columns, OnError, Pipeline, StageError, TestRecord

QUOTE = np.dtype([("price", "<f8"), ("count", "<i4")])
SPELLED = b'{ "user" : "ann", "amount": 10 , "more": [1,  2] }'


def fee(columns: Columns) -> dict[str, Any]:
    return {"fee": columns["amount"] * 0.5}


def test_json_fields_are_added_and_every_other_byte_stays() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in", Payment).columns(fee, reads={"amount": float}, adds={"fee": float}).write("out")
    assert raws(pipeline.test([SPELLED])) == [b'{ "user" : "ann", "amount": 10 , "more": [1,  2] ,"fee":5.0}']


def test_json_fields_are_replaced_where_they_stand() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in", dict).columns(lambda c: {"amount": c["amount"] + 1}, reads={"amount": int}).write("out")
    assert raws(pipeline.test([SPELLED])) == [SPELLED.replace(b"10", b"11")]


def test_text_fields_are_columns_of_bytes() -> None:
    def shout(columns: Columns) -> dict[str, Any]:
        return {"user": [(user or b"").upper() for user in columns["user"].to_list()]}

    pipeline = Pipeline("test")
    pipeline.read("in", Payment).columns(shout, reads={"user": str}).write("out")
    assert values(pipeline.test([payment(1.0)])) == [Payment("ANN", 1.0)]


def test_optional_fields_tell_where_they_have_a_value_and_stay_without_one() -> None:
    seen: list[list[bool]] = []

    def double(columns: Columns) -> dict[str, Any]:
        seen.append(columns.valid("amount").tolist())
        return {"amount": columns["amount"] * 2}

    pipeline = Pipeline("test")
    pipeline.read("in", dict).columns(double, reads={"amount": float | None}).write("out")
    result = pipeline.test([b'{"amount":1.5}', b'{"amount":null}'])
    assert seen == [[True, False]]
    assert raws(result) == [b'{"amount":3.0}', b'{"amount":null}']


def test_a_masked_array_answers_null_where_it_is_masked() -> None:
    def root(columns: Columns) -> dict[str, Any]:
        return {"root": np.ma.sqrt(np.ma.masked_less(columns["amount"], 0))}

    pipeline = Pipeline("test")
    pipeline.read("in", dict).columns(root, reads={"amount": float}, adds={"root": float | None}).write("out")
    assert raws(pipeline.test([b'{"amount":4}', b'{"amount":-4}'])) == [
        b'{"amount":4,"root":2.0}',
        b'{"amount":-4,"root":null}',
    ]


def test_columns_have_what_stands_beside_the_value() -> None:
    seen: list[Columns] = []

    def look(columns: Columns) -> dict[str, Any]:
        seen.append(columns)
        return {"value": columns.value}

    pipeline = Pipeline("test")
    pipeline.read("in").columns(look).write("out")
    given = TestRecord(value=b"v", key=b"k", timestamp_ms=5, partition=2, offset=9)
    assert raws(pipeline.test([given, b"w"])) == [b"v", b"w"]
    (columns,) = seen
    assert columns.key.to_list() == [b"k", None]
    assert columns.timestamp_ms.tolist() == [5, -1]
    assert columns.partition.tolist() == [2, 0]
    assert columns.offset.tolist() == [9, 0]


def test_a_column_that_is_not_read_is_named_with_those_that_are() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in", Payment).filter_columns(lambda c: c["user"], reads={"amount": float}).write("out")
    with pytest.raises(StageError, match="no column 'user'; the stage reads 'amount'"):
        pipeline.test([payment(1.0)])


def test_columns_cannot_be_changed_in_place() -> None:
    def change(columns: Columns) -> dict[str, Any]:
        columns["amount"][:] = 0
        return {}

    pipeline = Pipeline("test")
    pipeline.read("in", Payment).columns(change, reads={"amount": float}).write("out")
    with pytest.raises(StageError, match="read-only"):
        pipeline.test([payment(1.0)])


def test_filter_columns_leaves_the_bytes_alone() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in", Payment).filter_columns(lambda c: c["amount"] > 5, reads={"amount": float}).write("out")
    assert raws(pipeline.test([SPELLED, payment(1.0), None])) == [SPELLED, None]


def test_fixed_width_records_change_in_a_copy_and_grow_by_added_fields() -> None:
    def total(columns: Columns) -> dict[str, Any]:
        return {"count": columns["count"] + 1, "total": columns["price"] * columns["count"]}

    pipeline = Pipeline("test")
    pipeline.read("in", QUOTE).columns(total, adds={"total": "<f8"}).filter(lambda q: q["total"] > 1).write("out")
    item = np.array((2.5, 4), QUOTE)[()]
    (value,) = values(pipeline.test([item, np.array((0.0, 4), QUOTE)[()]]))
    assert isinstance(value, np.void)
    assert value.tolist() == (2.5, 5, 10.0)
    assert item.tolist() == (2.5, 4)


def test_a_plain_dtype_is_one_column_named_value() -> None:
    pipeline = Pipeline("test")
    pipeline.read("in", np.dtype("<i8")).columns(lambda c: {"value": c["value"] * 2}).write("out")
    assert values(pipeline.test([21, None])) == [42, None]


def test_added_fields_reach_later_stages_through_a_new_type() -> None:
    pipeline = Pipeline("test")
    stream = pipeline.read("in", Payment).columns(fee, reads={"amount": float}, adds={"fee": float}, type=Scored)
    stream.map(lambda s: s.fee).write("out")
    assert raws(pipeline.test([payment(4.0)])) == [b"2.0"]


def test_a_column_stage_reads_what_a_map_before_it_has_made() -> None:
    pipeline = Pipeline("test")
    doubled = pipeline.read("in", Payment).map(lambda p: Payment(p.user, p.amount * 2))
    doubled.columns(fee, reads={"amount": float}, adds={"fee": float}).write("out")
    doubled.filter_columns(lambda c: c["amount"] > 3, reads={"amount": float}).map(lambda p: p.amount).write("large")
    result = pipeline.test([payment(1.0), None, payment(2.0)])
    assert raws(result) == [b'{"user":"ann","amount":2.0,"fee":1.0}', None, b'{"user":"ann","amount":4.0,"fee":2.0}']
    assert raws(result, "large") == [None, b"4.0"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda n: [1.0] * n, "answers a dict of columns"),
        (lambda n: {}, "did not answer 'fee'"),
        (lambda n: {"fee": np.zeros(n), "tax": np.zeros(n)}, "answered 'tax'; it may answer 'amount', 'fee'"),
        (lambda n: {"fee": np.zeros(n + 1)}, "has the shape (2,); 1 rows were asked for"),
        (lambda n: {"fee": 0.0}, "has the shape (); 1 rows were asked for"),
        (lambda n: {"fee": np.array(["x"] * n)}, "float64 was declared"),
        (lambda n: {"fee": np.array([None] * n)}, "float64 was declared"),
        (lambda n: {"fee": np.full(n, np.nan)}, "NaN"),
    ],
)
def test_an_answer_that_does_not_fit_is_an_error_of_the_stage(
    answer: Callable[[int], dict[str, Any]], message: str
) -> None:
    pipeline = Pipeline("test", on_error="dead-letter")
    pipeline.read("in", Payment).columns(lambda c: answer(len(c)), reads={"amount": float}, adds={"fee": float}).write(
        "out"
    )
    result = pipeline.test([payment(1.0), payment(2.0)])
    assert raws(result) == []
    assert len(result.dead_letters) == 2
    assert message in (headers_of(result)["millstream.error.message"] or b"").decode()


@pytest.mark.parametrize("answer", [np.array([1]), [1.0], np.array([True, False]), None])
def test_filter_columns_takes_nothing_but_bools(answer: Any) -> None:
    pipeline = Pipeline("test")
    pipeline.read("in").filter_columns(lambda c: answer).write("out")
    with pytest.raises(StageError, match="filter_columns needs an array of 1 bools"):
        pipeline.test([b"x"])


def test_whole_numbers_do_not_overflow_silently() -> None:
    pipeline = Pipeline("test", on_error="dead-letter")
    pipeline.read("in", QUOTE).columns(lambda c: {"count": c["count"].astype(np.int64) * 2**20}).write("out")
    result = pipeline.test([(1.0, 1), (1.0, 2**20)])
    assert [value.tolist() for value in values(result)] == [(1.0, 2**20)]  # type: ignore[attr-defined]
    assert headers_of(result)["millstream.error.message"] == b"column 'count' has values that int32 cannot hold"


def test_values_that_cannot_be_read_fail_alone() -> None:
    pipeline = Pipeline("test", on_error="dead-letter")
    stream = pipeline.read("in", dict)
    stream.columns(fee, reads={"amount": float}, adds={"fee": float}).write("out")
    result = pipeline.test([b'{"amount":1}', b"{}", None, b"[", b'{"amount":"x"}', b'{"amount":2}'])
    assert raws(result) == [b'{"amount":1,"fee":0.5}', None, b'{"amount":2,"fee":1.0}']
    assert [letter.raw for letter in result.dead_letters] == [b"{}", b"[", b'{"amount":"x"}']


def test_rows_at_fault_are_found_with_few_calls() -> None:
    calls = 0

    def fragile(columns: Columns) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if (columns["amount"] == 700).any():
            raise ValueError("not this one")
        return fee(columns)

    pipeline = Pipeline("test", on_error="skip")
    pipeline.read("in", dict).columns(fragile, reads={"amount": float}, adds={"fee": float}).write("out")
    result = pipeline.test([b'{"amount":%d}' % i for i in range(1024)])
    assert len(raws(result)) == 1023
    assert calls <= 1 + 2 * 10


def test_under_stop_the_first_row_at_fault_is_named() -> None:
    def fragile(columns: Columns) -> dict[str, Any]:
        if (columns["amount"] > 5).any():
            raise ValueError("too much")
        return {}

    pipeline = Pipeline("test")
    pipeline.read("in", dict).columns(fragile, reads={"amount": float}).write("out")
    with pytest.raises(StageError, match="in-0@6 after 1 attempt: ValueError: too much"):
        pipeline.test([b'{"amount":%d}' % i for i in range(20)])


def test_only_rows_at_fault_are_tried_again() -> None:
    asked: list[list[float]] = []

    def flaky(columns: Columns) -> dict[str, Any]:
        asked.append(columns["amount"].tolist())
        if len(asked) <= 4 and (columns["amount"] == 2).any():
            raise ConnectionError("not yet")
        return fee(columns)

    pipeline = Pipeline("test", on_error=OnError.stop().retry(3, backoff_ms=0))
    pipeline.read("in", dict).columns(flaky, reads={"amount": float}, adds={"fee": float}).write("out")
    result = pipeline.test([b'{"amount":%d}' % i for i in range(4)])
    assert [msgspec.json.decode(raw or b"")["amount"] for raw in raws(result)] == [0, 1, 2, 3]
    assert asked[-1] == [2.0]
    assert result.counts.retries >= 1


rows = st.one_of(
    st.none(),
    st.integers(-3, 9).map(lambda n: b'{"amount":%d}' % n),
    st.sampled_from([b"{}", b"no", b'{"amount":1e400}', b'{ "amount" : 2.5, "x": "\\u0041" }']),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, max_size=16), st.booleans())
def test_a_batch_of_columns_gives_what_each_row_alone_would(inputs: list[bytes | None], after_map: bool) -> None:
    def fragile(columns: Columns) -> dict[str, Any]:
        if (columns["amount"] < 0).any():
            raise ValueError("negative")
        return fee(columns)

    pipeline = Pipeline("test", on_error="dead-letter")
    stream: Any = pipeline.read("in", dict)
    if after_map:
        stream = stream.map(lambda v: {**v, "mapped": True})
    kept = stream.filter_columns(lambda c: c["amount"] != 3, reads={"amount": float})
    kept.columns(fragile, reads={"amount": float}, adds={"fee": float}).write("out")

    together = pipeline.test(inputs)
    alone = [pipeline.test([one]) for one in inputs]
    assert raws(together) == [raw for one in alone for raw in raws(one)]
    assert [letter.raw for letter in together.dead_letters] == [d.raw for one in alone for d in one.dead_letters]
