"""The examples' stages: each form gives what plain NumPy gives, row by row, and the pipelines run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import array_api_strict
import example_columns as given
import numpy as np
import pytest
from documents import ROOT

from millstream.processor import ArrayColumns, Equality, Offloadable, assert_row_independent
from millstream.processor.app import load_pipeline

SEED = 5
ROWS = 200


def small(name: str) -> tuple[Offloadable, tuple[Any, ...]]:
    """An example's stage, with a model that is small enough for a test."""
    module = given.example(name)
    match name:
        case "fraud_model":
            return module.NETWORK, (module.model(),)
        case "decision_tree":
            return module.TREE, (module.tree(20_001),)
        case "fft_windows":
            return module.SPECTRUM, ()
        case "similarity_search":
            return module.SEARCH, (module.index(2_000),)
        case _:
            return module.FILTER, ()


MAKERS: dict[str, Callable[[int, int], ArrayColumns]] = {
    "fraud_model": given.payments,
    "decision_tree": given.readings,
    "fft_windows": given.windows,
    "similarity_search": given.queries,
    "json_filter": given.json_payments,
}
PLAIN: dict[str, Callable[..., dict[str, Any]]] = {
    "fraud_model": given.plain_scores,
    "decision_tree": given.plain_walk,
    "fft_windows": given.plain_share,
    "similarity_search": given.plain_nearest,
    "json_filter": given.plain_wanted,
}


def assert_alike(expected: dict[str, Any], found: dict[str, Any], equality: Equality) -> None:
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        assert equality.holds(column, np.asarray(found[name])), name


@pytest.mark.parametrize("name", given.EXAMPLES)
def test_the_form_for_the_cpu_gives_what_plain_numpy_gives(name: str) -> None:
    stage, resident = small(name)
    columns = MAKERS[name](ROWS, SEED)
    assert_alike(PLAIN[name](columns, *resident), dict(stage.compute(columns, resident)), stage.equality)


@pytest.mark.parametrize("name", [name for name in given.EXAMPLES if name not in ("decision_tree", "json_filter")])
def test_array_functions_need_nothing_beyond_the_array_api(name: str) -> None:
    stage, resident = small(name)
    columns = MAKERS[name](ROWS, SEED)
    assert stage.array is not None
    device = array_api_strict.Device("device1")
    moved = ArrayColumns({key: strict(column, device) for key, column in columns.items()}, {}, ROWS)
    held = tuple({key: strict(array, device) for key, array in arrays.items()} for arrays in resident)
    answer = stage.array(array_api_strict, moved, *held)
    assert all(column.device == device for column in answer.values())
    back = {key: np.asarray(column.to_device(array_api_strict.Device("CPU_DEVICE"))) for key, column in answer.items()}
    assert_alike(dict(stage.compute(columns, resident)), back, stage.equality)


def strict(array: Any, device: Any) -> Any:
    return array_api_strict.asarray(array, device=device)


@pytest.mark.parametrize("name", given.EXAMPLES)
def test_each_row_is_treated_by_itself(name: str) -> None:
    stage, resident = small(name)
    forms = Offloadable(
        cpu=stage.cpu, array=stage.array, resident=(lambda: resident[0]) if resident else None, equality=stage.equality
    )
    assert_row_independent(forms, MAKERS[name](ROWS, SEED))


def test_kernels_give_what_the_cpu_gives_under_numbas_simulator() -> None:
    script = Path(__file__).with_name("simulated_kernels.py")
    environment = {
        **os.environ,
        "NUMBA_ENABLE_CUDASIM": "1",
        "PYTHONPATH": str(script.parent) + ":" + str(ROOT / "tests"),
    }
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "alike", done.stderr


def test_the_tree_has_as_many_nodes_as_it_says_and_ends_on_every_path() -> None:
    module = given.example("decision_tree")
    nodes = module.tree()
    assert len(nodes["feature"]) == 500_001
    inner = nodes["feature"] >= 0
    assert inner.sum() == 250_000
    assert np.all(nodes["left"][inner] > np.flatnonzero(inner))
    # Its children are all other nodes, once each.
    children = np.concatenate([nodes["left"][inner], nodes["left"][inner] + 1])
    assert np.array_equal(np.sort(children), np.arange(1, 500_001))


def test_the_search_finds_the_first_of_several_alike() -> None:
    module = given.example("similarity_search")
    held = {"vectors": np.ones((300, 128), np.int8)}
    columns = ArrayColumns({"vector": np.ones((3, 128), np.int8)}, {}, 3)
    for answer in (module.nearest_on_cores(columns, held), module.nearest(np, columns, held)):
        assert answer["nearest"].tolist() == [0, 0, 0]
        assert answer["product"].tolist() == [128] * 3


@pytest.mark.parametrize("name", given.EXAMPLES)
def test_the_pipelines_build(name: str) -> None:
    built = load_pipeline(str(ROOT / "examples" / f"{name}.py")).build()
    (stage,) = built.offloads
    assert stage.definition.latency_budget_ms in (10, 20)


def test_the_json_filter_keeps_what_is_wanted_byte_for_byte() -> None:
    records = [
        b'{"amount": 250.0, "country": "FR", "more": [1, 2]}',
        b'{"amount": 250.0, "country": "US"}',
        b'{"amount": 99, "country": "DE"}',
        b'{"amount": 100.01, "country": "DE"}',
    ]
    result = given.example("json_filter").pipeline.test(records)
    kept = [record.raw for record in result.outputs["wanted-payments"]]
    assert kept == [records[0][:-1] + b',"wanted":true}', records[3][:-1] + b',"wanted":true}']


def test_the_tree_answers_in_the_records_own_layout() -> None:
    module = given.example("decision_tree")
    records = np.zeros(3, module.READING)
    records["sensor"] = [1, 2, 3]
    result = module.pipeline.test([record.tobytes() for record in records])
    found = np.frombuffer(
        b"".join(record.raw for record in result.outputs["judged-readings"]), [*module.READING.descr, ("answer", "<f4")]
    )
    assert found["sensor"].tolist() == [1, 2, 3]
    expected = given.plain_walk(ArrayColumns({"values": records["values"]}, {}, 3), module.tree())
    assert np.array_equal(found["answer"], expected["answer"])
