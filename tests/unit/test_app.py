"""Finding the pipeline in a user's program, and telling what is wrong where there is none."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.processor.app import load_pipeline
from millstream.processor.errors import SettingsError

ONE = "from millstream.processor import Pipeline\n{name} = Pipeline('{name}')\n"


@pytest.fixture(autouse=True)
def same_modules_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path: Path, *names: str, then: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(ONE.format(name=name) for name in names) + then)
    return str(path)


def test_the_only_pipeline_of_a_file_needs_no_name(tmp_path: Path) -> None:
    assert load_pipeline(write(tmp_path / "app.py", "orders")).name == "orders"


def test_a_pipeline_with_two_names_is_still_one(tmp_path: Path) -> None:
    assert load_pipeline(write(tmp_path / "app.py", "orders", then="alias = orders")).name == "orders"


def test_of_several_one_is_named_and_otherwise_all_are_listed(tmp_path: Path) -> None:
    app = write(tmp_path / "app.py", "orders", "payments")
    assert load_pipeline(f"{app}:payments").name == "payments"
    with pytest.raises(SettingsError) as caught:
        load_pipeline(app)
    assert f"{app}:orders, {app}:payments" in str(caught.value)


@pytest.mark.parametrize("package", ["shop.pipelines", "shop"])
def test_a_module_is_found_from_the_current_directory(tmp_path: Path, package: str) -> None:
    write(tmp_path / "shop" / "__init__.py", "root")
    write(tmp_path / "shop" / "pipelines.py", "orders")
    name = "orders" if package == "shop.pipelines" else "root"
    assert load_pipeline(f"{package}:{name}").name == name
    assert load_pipeline(package).name == name


def test_modules_beside_the_file_can_be_imported_wherever_it_is_run_from(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "down"
    write(directory / "helpers.py", then="NAME = 'from-helper'\n")
    app = write(directory / "app.py", then="from helpers import NAME\n" + ONE.format(name="p").replace("'p'", "NAME"))
    assert load_pipeline(app).name == "from-helper"


def test_types_of_the_file_can_be_looked_up_by_name(tmp_path: Path) -> None:
    text = "import dataclasses\n@dataclasses.dataclass\nclass Order:\n    id: int\n"
    load_pipeline(write(tmp_path / "app.py", "orders", then=text))
    order = sys.modules["millstream_app"].Order(3)
    assert pickle.loads(pickle.dumps(order)) == order
    assert dataclasses.is_dataclass(order)


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("gone.py", "there is no file gone.py"),
        ("gone.py:orders", "there is no file gone.py"),
        ("gone", "there is no module 'gone'; a file is named with its .py"),
        ("gone:orders", "there is no module 'gone'"),
        ("empty.py", "empty.py has no Pipeline"),
        ("empty.py:orders", "empty.py has no Pipeline named 'orders'; it has none"),
        ("one.py:payments", "one.py has no Pipeline named 'payments'; it has orders"),
        ("one.py:ONE", "one.py has no Pipeline named 'ONE'; it has orders"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(tmp_path: Path, app: str, told: str) -> None:
    write(tmp_path / "empty.py")
    write(tmp_path / "one.py", "orders", then="ONE = 1\n")
    with pytest.raises(SettingsError) as caught:
        load_pipeline(app)
    assert told in str(caught.value)
    assert app.partition(":")[0] in str(caught.value)


def test_what_the_users_own_code_raises_passes_through(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        load_pipeline(write(tmp_path / "app.py", then="1 / 0\n"))
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        load_pipeline(write(tmp_path / "other.py", then="import no_such_dependency\n"))
    write(tmp_path / "broken.py", then="import no_such_dependency\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        load_pipeline("broken:orders")
    write(tmp_path / "payments.py", then="import pay\n")
    with pytest.raises(ModuleNotFoundError, match="'pay'"):
        load_pipeline("payments")


def test_a_directory_with_a_colon_in_its_name_is_no_reason_to_fail(tmp_path: Path) -> None:
    app = write(tmp_path / "a:b" / "app.py", "orders")
    assert load_pipeline(app).name == "orders"
    assert load_pipeline(f"{app}:orders").name == "orders"


def test_a_module_of_the_same_file_name_elsewhere_is_not_taken_for_it(tmp_path: Path) -> None:
    assert load_pipeline(write(tmp_path / "one" / "app.py", "first")).name == "first"
    assert load_pipeline(write(tmp_path / "two" / "app.py", "second")).name == "second"
