"""Functions by name: from where a device's process can load them, and what it says of those that it can't."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import device_functions
import numba
import pytest

from millstream.gpu_offload.protocol import FunctionReference
from millstream.gpu_offload.references import NotByNameError, load, reference_to
from millstream.processor.app import load_pipeline


class Holder:
    @staticmethod
    def held(columns: Any) -> Any:
        return columns


@numba.njit
def compiled(x: int) -> int:
    return x + 1


def test_a_function_of_a_module_is_found_by_its_name() -> None:
    reference = reference_to(device_functions.total, "array")
    assert reference == FunctionReference("device_functions", "", "total")
    assert load(reference) is device_functions.total


def test_so_are_static_methods_and_compiled_functions() -> None:
    assert load(reference_to(Holder.held, "cpu")) is Holder.held
    assert load(reference_to(compiled, "cpu")) is compiled


def outer() -> Any:
    def inner(columns: Any) -> Any:
        return columns

    return inner


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (lambda columns: columns, "<lambda>"),
        (outer(), "inner"),
        (functools.partial(outer), "partial"),
        (object(), "object"),
    ],
)
def test_what_has_no_name_of_its_own_is_refused_with_the_remedy(function: Any, shown: str) -> None:
    with pytest.raises(NotByNameError, match=r"define it with def at the top level of a module") as caught:
        reference_to(function, "gpu")
    assert "gpu=" in str(caught.value)
    assert shown in str(caught.value)


def test_a_name_that_means_another_function_by_now_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    total = device_functions.total
    monkeypatch.setattr(device_functions, "total", device_functions.picky)
    with pytest.raises(NotByNameError):
        reference_to(total, "array")


APP = """
from helper_beside_it import factor
from millstream.processor import Pipeline

pipeline = Pipeline("an-app")
loaded = []

def price(xp, columns):
    return {"price": factor}

class Prices:
    @staticmethod
    def other(xp, columns):
        return {}
"""


def test_functions_of_an_app_come_from_its_file_with_what_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "helper_beside_it.py").write_text("factor = 3\n")
    app = tmp_path / "app.py"
    app.write_text(APP)
    try:
        load_pipeline(str(app))
        reference = reference_to(sys.modules["millstream_app"].price, "array")
        assert reference == FunctionReference("millstream_app", str(app), "price")
        assert in_another_process(reference, "(None, None)") == "{'price': 3}"
        nested = reference_to(sys.modules["millstream_app"].Prices.other, "array")
        assert in_another_process(nested, "(None, None)") == "{}"
    finally:
        sys.modules.pop("millstream_app", None)
        sys.modules.pop("helper_beside_it", None)


def test_functions_of_a_program_come_from_its_file_without_running_it_again(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from millstream.gpu_offload.references import reference_to\n"
        "def double(x):\n    return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    reference = reference_to(double, 'cpu')\n"
        "    print(reference.module, reference.file, reference.name)\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
    reference = FunctionReference(*done.stdout.split())
    assert reference == FunctionReference("__mp_main__", str(program), "double")
    assert in_another_process(reference, "(21)") == "42"


def test_functions_written_at_a_prompt_are_refused() -> None:
    code = (
        "from millstream.gpu_offload.references import NotByNameError, reference_to\n"
        "def f(x): return x\n"
        "try: reference_to(f, 'cpu')\n"
        "except NotByNameError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "put it into a module of its own" in done.stdout


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(NotByNameError, match="no module no_such_module"):
        load(FunctionReference("no_such_module", "", "f"))
    with pytest.raises(NotByNameError, match="device_functions has no gone"):
        load(FunctionReference("device_functions", "", "gone"))


def in_another_process(reference: FunctionReference, call: str) -> str:
    code = (
        "from millstream.gpu_offload.protocol import FunctionReference\n"
        "from millstream.gpu_offload.references import load\n"
        f"print(load(FunctionReference({reference.module!r}, {reference.file!r}, {reference.name!r})){call})\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
