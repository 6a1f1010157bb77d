"""Offload stages: the same answers wherever they are computed, and no record that fails for a device's fault."""

# ruff: noqa: ARG002, ARG005  # what stands in for others takes what they take

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import offload_functions as functions
import pytest
from pipeline_types import Payment, payment, raws

from millstream.processor import (
    ArrayColumns,
    Equality,
    Offloadable,
    OnError,
    Pipeline,
    PipelineError,
    StageError,
    Text,
    assert_row_independent,
)
from millstream.processor.built import BuiltPipeline
from millstream.processor.offloading import NO_WAIT, Gathering, Route
from millstream.processor.testing import TestResult, run_test_async

SPELLED = b'{ "user" : "ann", "amount": 10 , "more": [1,  2] }'
QUOTE = np.dtype([("price", ">f8"), ("count", "<i4"), ("code", "S3")])


def json_pipeline(function: Any = functions.fee, **more: Any) -> Pipeline:
    pipeline = Pipeline("test")
    given = {"reads": {"amount": float}, "adds": {"fee": float}, "latency_budget_ms": 10} | more
    pipeline.read("in", dict).offload(function, **given).write("out")
    return pipeline


class Elsewhere:
    """A placement with a device that computes as `answer` says, and that remembers what it was told."""

    def __init__(self, answer: Callable[[ArrayColumns], Any], records_max: int = 2**31) -> None:
        self._answer = answer
        self._route = Route("gpu0", records_max)
        self.gathering: Gathering = NO_WAIT
        self.asked: list[int] = []
        self.refusals: list[str] = []
        self.observations: list[tuple[str, int]] = []

    def arrived(self, rows: int, byte_count: int) -> None:
        pass

    def route(self, rows: int) -> Route:
        return self._route

    async def compute(self, route: Route, columns: ArrayColumns) -> Mapping[str, Any] | None:
        self.asked.append(columns.rows)
        answer: Mapping[str, Any] | None = self._answer(columns)
        return answer

    def refused(self, route: Route, why: str) -> None:
        self.refusals.append(why)

    def observed(
        self,
        route: Route,
        rows: int,
        seconds: float,
        compute_s: float,
        columns: Callable[[], ArrayColumns],
        answer: Any,
    ) -> None:
        assert columns().rows == rows
        assert all(len(column) == rows for column in answer.values())
        assert seconds > compute_s > 0
        self.observations.append((route.device, rows))

    def waited(self, seconds: float) -> None:
        pass

    def backlog(self, records: int) -> None:
        pass


async def run_elsewhere(pipeline: Pipeline, elsewhere: Elsewhere, records: list[bytes]) -> TestResult:
    built: BuiltPipeline = pipeline.build()
    (stage,) = built.offloads
    stage.placement = elsewhere
    return await run_test_async(built, records, None)


def amounts(count: int) -> list[bytes]:
    return [b'{"amount":%d}' % number for number in range(count)]


def test_json_gets_the_added_column_and_every_other_byte_stays() -> None:
    assert raws(json_pipeline().test([SPELLED, None])) == [SPELLED[:-1] + b',"fee":5.0}', None]


def test_an_array_function_alone_is_the_reference() -> None:
    assert raws(json_pipeline(Offloadable(array=functions.fee_array)).test([b'{"amount":4}'])) == [
        b'{"amount":4,"fee":2.0}'
    ]


def test_resident_arrays_are_the_last_argument_and_loaded_once() -> None:
    loads = []

    def load() -> dict[str, Any]:
        loads.append(1)
        return functions.weights()

    pipeline = json_pipeline(Offloadable(cpu=functions.weighted, resident=functions.weights))
    assert raws(pipeline.test([b'{"amount":4}'])) == [b'{"amount":4,"fee":8.0}']
    built = pipeline.build()
    object.__setattr__(built.offloads[0].definition.offloadable, "resident", load)
    built.offloads[0].load()
    built.offloads[0].load()
    assert loads == [1]


def test_resident_arrays_that_cannot_be_had_stop_the_pipeline_whatever_the_policy() -> None:
    pipeline = json_pipeline(
        Offloadable(cpu=functions.weighted, resident=broken_resident), on_error=OnError.dead_letter()
    )
    with pytest.raises(StageError, match=r"resident\(\) raised OSError: no model here"):
        pipeline.test(amounts(3))


def broken_resident() -> dict[str, Any]:
    raise OSError("no model here")


def test_text_comes_as_offsets_and_bytes_and_optional_fields_with_a_mask() -> None:
    seen: list[Any] = []

    def look(columns: ArrayColumns) -> dict[str, Any]:
        text = columns["user"]
        seen.append((text.offsets.tolist(), text.data.tobytes(), columns.valid("user").tolist()))
        return functions.text_sizes(columns)

    pipeline = json_pipeline(look, reads={"user": str | None}, adds={"size": int})
    records = [b'{"user":"ann"}', b'{"user":null}', b'{"user":"b\xc3\xb6b"}']
    assert [raw[-9:-1] for raw in raws(pipeline.test(records)) if raw] == [b'"size":3', b'"size":0', b'"size":4']
    assert seen == [([0, 3, 3, 7], b"annb\xc3\xb6b", [True, False, True])]


def test_fixed_width_records_come_in_native_byte_order_and_bytes_as_numbers() -> None:
    def total(columns: ArrayColumns) -> dict[str, Any]:
        assert columns["price"].dtype == np.dtype(np.float64)
        assert columns["price"].flags.c_contiguous
        assert columns["code"].tolist() == [[97, 98, 99], [120, 0, 0]]
        pair = np.stack([columns["price"], columns["count"]], axis=1)
        return {"pair": pair.astype(np.float32)}

    pipeline = Pipeline("test")
    stream = pipeline.read("in", QUOTE)  # type: ignore[call-overload]  # NumPy's stubs know no such dtype as a type
    stream.offload(total, adds={"pair": ("<f4", (2,))}, latency_budget_ms=5).write("out")
    given = np.array([(1.5, 2, b"abc"), (2.5, 3, b"x")], QUOTE)
    result = pipeline.test([item.tobytes() for item in given])
    assert [raw and raw[-8:] for raw in raws(result)] == [np.float32(pair).tobytes() for pair in ([1.5, 2], [2.5, 3])]


def test_raw_values_are_read_whole_and_replaced_by_items_of_a_dtype() -> None:
    def sizes(columns: ArrayColumns) -> dict[str, Any]:
        return {"value": np.diff(columns["value"].offsets).astype(np.uint16)}

    pipeline = Pipeline("test")
    pipeline.read("in").offload(sizes, adds={"value": ">u2"}, latency_budget_ms=5).write("out")
    assert raws(pipeline.test([b"abc", b"", None])) == [b"\0\3", b"\0\0", None]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda c: {}, "did not answer 'fee'"),
        (lambda c: {"fee": c["amount"], "amount": c["amount"]}, "answered 'amount'; it may answer 'fee'"),
        (lambda c: {"fee": np.ma.masked_less(c["amount"], 5)}, "is masked"),
        (lambda c: {"fee": c["amount"][:0]}, "has the shape"),
        (lambda c: {"fee": c["amount"].astype(complex)}, "float64 was declared"),
        (lambda c: c["amount"].sort(), "read-only"),
    ],
)
def test_answers_that_cannot_be_used_are_the_stages_failure(answer: Any, message: str) -> None:
    with pytest.raises(StageError, match=message):
        json_pipeline(answer).test([b'{"amount":1}'])


def test_rows_at_fault_are_found_and_their_neighbours_go_on() -> None:
    def picky(columns: ArrayColumns) -> dict[str, Any]:
        if (columns["amount"] == 3).any():
            raise ValueError("no threes")
        return functions.fee(columns)

    result = json_pipeline(picky, on_error=OnError.dead_letter()).test(amounts(6))
    assert len(raws(result)) == 5
    assert [letter.value for letter in result.dead_letters] == [b'{"amount":3}']


# -- elsewhere -------------------------------------------------------------------------------------------------


async def test_a_devices_answer_is_written_like_the_cpus() -> None:
    elsewhere = Elsewhere(functions.fee)
    given = [*amounts(5), b"not json", b'{"amount":9}']
    found = await run_elsewhere(json_pipeline(on_error=OnError.skip()), elsewhere, given)
    expected = await run_test_async(json_pipeline(on_error=OnError.skip()).build(), given, None)
    assert raws(found) == raws(expected)
    assert elsewhere.observations == [("gpu0", 6)]


async def test_large_batches_go_in_portions_of_nearly_one_size() -> None:
    elsewhere = Elsewhere(functions.fee, records_max=4)
    await run_elsewhere(json_pipeline(), elsewhere, amounts(10))
    assert elsewhere.asked == [4, 3, 3]
    assert elsewhere.observations == [("gpu0", 4), ("gpu0", 3), ("gpu0", 3)]


@pytest.mark.parametrize(
    ("answer", "refusals"),
    [(lambda c: None, 0), (lambda c: {}, 1), (lambda c: {"fee": np.zeros(c.rows + 1)}, 1)],
    ids=["trouble", "no column", "too many rows"],
)
async def test_whatever_a_device_does_the_batch_is_computed_on_the_cpu(answer: Any, refusals: int) -> None:
    elsewhere = Elsewhere(answer)
    found = await run_elsewhere(json_pipeline(), elsewhere, amounts(5))
    assert raws(found) == raws(await run_test_async(json_pipeline().build(), amounts(5), None))
    assert len(elsewhere.refusals) == refusals
    assert elsewhere.observations == []


async def test_what_the_device_had_answered_before_its_trouble_is_kept() -> None:
    on_cpu: list[int] = []

    def counted(columns: ArrayColumns) -> dict[str, Any]:
        on_cpu.extend(columns["amount"].astype(int).tolist())
        return functions.fee(columns)

    elsewhere = Elsewhere(lambda c: functions.fee(c) if c["amount"][0] < 4 else None, records_max=4)
    found = await run_elsewhere(json_pipeline(counted), elsewhere, amounts(12))
    assert raws(found) == raws(await run_test_async(json_pipeline().build(), amounts(12), None))
    assert on_cpu == [4, 5, 6, 7, 8, 9, 10, 11]


# -- mistakes --------------------------------------------------------------------------------------------------


def mistakes(**more: Any) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        json_pipeline(**more).build()
    return list(caught.value.mistakes)


def test_all_mistakes_are_told_at_once() -> None:
    found = mistakes(
        function=Offloadable(cpu=functions.later, array=lambda xp, c: {}, gpu=functions.fee),
        latency_budget_ms=0,
        device="maybe",
        memory_mb=-1,
        adds={"name": str, "fee": float | None},
    )
    assert len(found) == 8, found
    for part in (
        "device='maybe' is unknown",
        "memory_mb=-1",
        "latency_budget_ms=0 must be a number of milliseconds above 0",
        "later is async",
        "cannot be imported by its name",
        "gpu: fee is called as fee()",
        "adds['name']: text has no fixed width",
        "adds['fee']: it may not be optional",
    ):
        assert sum(part in mistake for mistake in found) == 1, part


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"function": Offloadable(gpu=functions.weights)}, "neither cpu= nor array="),
        ({"device": "required"}, "needs a form that a device can run"),
        ({"adds": {}}, "adds nothing"),
        ({"reads": {}}, "reads nothing"),
        ({"function": functions.fee_array}, r"cpu: fee_array is called as fee_array\(columns\)"),
        ({"function": Offloadable(cpu=functions.fee, equality=Equality(relative=-1))}, "finite numbers"),
    ],
)
def test_each_mistake_names_the_remedy(more: dict[str, Any], message: str) -> None:
    (mistake,) = mistakes(**more)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(mistake)


def test_dtypes_that_no_device_holds_are_refused() -> None:
    pipeline = Pipeline("test")
    stream = pipeline.read("in", np.dtype([("at", "<M8[s]")]))  # type: ignore[call-overload]
    stream.offload(functions.fee, adds={"fee": "<f8"}, latency_budget_ms=5).write("out")
    with pytest.raises(PipelineError, match=r"reads\['at'\]: datetime64\[s\] is no type of a device's"):
        pipeline.build()


# -- row independence ------------------------------------------------------------------------------------------


def test_row_independence_is_shown_and_its_absence_is_found() -> None:
    columns = {"amount": np.array([3.0, 1.0, 2.0, 5.0])}
    assert_row_independent(Offloadable(cpu=functions.fee, array=functions.fee_array), columns)
    with pytest.raises(AssertionError, match="cpu: column 'fee' of 4 rows is another when they come as 1 and 3: row 0"):
        assert_row_independent(Offloadable(cpu=functions.ranked), columns)


def test_row_independence_of_text() -> None:
    text = Text(np.array([0, 3, 3, 7], np.int32), np.frombuffer(b"annbobs", np.uint8))
    assert_row_independent(Offloadable(cpu=functions.text_sizes), {"user": text})
    with pytest.raises(AssertionError, match="at least two rows"):
        assert_row_independent(Offloadable(cpu=functions.fee), {"amount": np.array([1.0])})


def test_a_typed_stream_goes_on_with_the_type_that_is_given() -> None:
    pipeline = Pipeline("test")
    stream = pipeline.read("in", Payment).offload(
        functions.fee, reads={"amount": float}, adds={"fee": float}, type=dict, latency_budget_ms=5
    )
    stream.map(lambda value: value["fee"]).write("out")
    assert raws(pipeline.test([payment(3.0)])) == [b"1.5"]
