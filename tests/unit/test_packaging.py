"""What is installed is what the tree holds."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("processor", "connectors", "gpu_offload", "loadgen")


def test_every_package_of_the_tree_is_installed_under_the_common_name() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    present = {
        ".".join(("millstream", *init.parent.relative_to(ROOT).parts))
        for package in PACKAGES
        for init in (ROOT / package).rglob("__init__.py")
    }
    assert set(listed) == present


def test_there_is_no_module_above_the_packages() -> None:
    # A `millstream/__init__.py` would take the name from other distributions that extend it (PEP 420).
    assert not (ROOT / "millstream").exists()
