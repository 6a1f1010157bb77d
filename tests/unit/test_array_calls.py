"""A stage's function on several workers' rows at once, and on arrays that allow the array API alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import array_api_strict
import device_functions
import numpy as np
import pytest
from device_functions import LENGTHS, SCALED, TOTAL
from hypothesis import given
from hypothesis import strategies as st

from millstream.gpu_offload.array_calls import called, device_function, joined, scatter
from millstream.gpu_offload.backend import FunctionError, NotLoadableError, OutOfDeviceMemoryError
from millstream.gpu_offload.canary import CANARY_TEXT_BYTES_MAX, difference, made_up_rows, plain_rows
from millstream.gpu_offload.warm_up import with_outputs
from millstream.processor.offloading import ArrayColumns, Equality, Offloadable, StageDefinition, Text


def strict(columns: ArrayColumns) -> ArrayColumns:
    """The same columns as arrays that refuse whatever is not in the array API."""
    xp = array_api_strict

    def converted(column: Any) -> Any:
        if isinstance(column, Text):
            return Text(xp.asarray(column.offsets), xp.asarray(column.data))
        return xp.asarray(column)

    masks = {name: xp.asarray(mask) for name, mask in columns.masks.items()}
    return ArrayColumns({name: converted(column) for name, column in columns.items()}, masks, columns.rows)


@pytest.mark.parametrize("stage", [TOTAL, LENGTHS, SCALED], ids=lambda stage: stage.name)
def test_array_functions_answer_the_same_on_strict_arrays(stage: StageDefinition) -> None:
    rows = made_up_rows(stage, 50, seed=3)
    make = stage.offloadable.resident
    resident = [] if make is None else [make()]
    reference = called(stage, device_function(stage, np, resident), rows)
    elsewhere = [{name: array_api_strict.asarray(array) for name, array in one.items()} for one in resident]
    found = called(stage, device_function(stage, array_api_strict, elsewhere), strict(rows))
    answer = {name: np.from_dlpack(array) for name, array in found.items()}
    assert difference(stage, reference, answer, stage.offloadable.equality) is None


def test_a_function_that_leaves_the_array_api_is_found_out() -> None:
    stage = replace(TOTAL, offloadable=Offloadable(array=outside_of_the_api))
    rows = made_up_rows(stage, 5, seed=3)
    called(stage, device_function(stage, np, []), rows)
    with pytest.raises(FunctionError, match="raised"):
        called(stage, device_function(stage, array_api_strict, []), strict(rows))


def outside_of_the_api(xp: Any, columns: ArrayColumns) -> Mapping[str, Any]:
    return {"total": np.add(columns["price"], columns["count"].astype(np.float64))}


@given(st.lists(st.integers(0, 12), min_size=1, max_size=5))
def test_rows_of_several_workers_come_back_to_each(sizes: list[int]) -> None:
    pieces = [made_up_rows(LENGTHS, size, seed) for seed, size in enumerate(sizes)]
    segments = [with_outputs(LENGTHS, piece) for piece in pieces]
    function = device_function(LENGTHS, np, [])
    scatter(called(LENGTHS, function, joined(segments)), segments)
    for piece, segment in zip(pieces, segments, strict=True):
        np.testing.assert_array_equal(segment.outputs["length"], function(piece)["length"])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({}, "answered no column 'total'"),
        (None, "answered no column 'total'"),
        ({"total": np.zeros(4)}, r"shape \(4,\) and not \(5,\)"),
        ({"total": np.zeros(5, complex)}, "is complex128 and not float64: convert it"),
        ({"total": [0.0] * 5}, r"shape \(\) and not \(5,\)"),
    ],
)
def test_answers_that_are_not_as_declared_are_refused(answer: Any, words: str) -> None:
    with pytest.raises(FunctionError, match=words):
        called(TOTAL, lambda _: answer, plain_rows(TOTAL, 5))


def test_what_a_function_says_of_its_error_stays_out_of_ours_and_memory_is_not_its_fault() -> None:
    def quoting(_: ArrayColumns) -> Mapping[str, Any]:
        raise ValueError("the card number 1234")

    def greedy(_: ArrayColumns) -> Mapping[str, Any]:
        raise MemoryError

    with pytest.raises(FunctionError) as caught:
        called(TOTAL, quoting, plain_rows(TOTAL, 5))
    assert str(caught.value) == "stage 'total': its function raised ValueError"
    with pytest.raises(OutOfDeviceMemoryError):
        called(TOTAL, greedy, plain_rows(TOTAL, 5))


def test_the_gpu_form_goes_before_the_array_form_and_one_of_them_has_to_be_there() -> None:
    twin = Offloadable(array=device_functions.total, gpu=lambda: device_functions.factors)
    assert device_function(replace(TOTAL, offloadable=twin), np, []) is device_functions.factors
    with pytest.raises(NotLoadableError, match="no form for a device"):
        device_function(replace(TOTAL, offloadable=Offloadable(cpu=device_functions.factors)), np, [])


def test_made_up_rows_are_as_the_schema_says() -> None:
    rows = made_up_rows(LENGTHS, 400, seed=1)
    text, valid = rows["text"], rows.valid("text")
    sizes = np.diff(text.offsets)
    assert 0 < valid.sum() < 400
    assert not sizes[~valid].any()
    assert sizes.max() <= CANARY_TEXT_BYTES_MAX
    assert len(text.data) == text.offsets[-1]


def test_differences_are_counted_and_not_quoted() -> None:
    expected = {"total": np.array([1.0, 2.0, 3.0])}
    assert difference(TOTAL, expected, {"total": np.array([1.0, 2.0, 3.0])}, Equality()) is None
    words = difference(TOTAL, expected, {"total": np.array([1.0, 2.5, 3.5])}, Equality())
    assert words == "column 'total' differs in 2 of 3 rows"
    assert difference(TOTAL, expected, {"total": np.array([1.0, 2.5, 3.5])}, Equality(absolute=1.0)) is None
