"""ARCHITECTURE.md speaks of the code as it is: every file is in its list, and every test that it names exists."""

from __future__ import annotations

import re

from documents import ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text()
SOURCES = [
    path for package in ("processor", "connectors", "gpu_offload", "loadgen") for path in (ROOT / package).rglob("*.py")
]


def listed() -> list[str]:
    """The paths in the list of files."""
    sections = re.findall(r"^### `(.+?)/`\n\n```\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [f"{directory}/{line.split()[0]}" for directory, lines in sections for line in lines.splitlines()]


def test_every_file_is_in_the_list_once_and_nothing_else_is() -> None:
    found = {str(path.relative_to(ROOT)) for path in SOURCES if path.name != "__init__.py"}
    assert found - set(listed()) == set(), "describe these in ARCHITECTURE.md, a line each"
    assert set(listed()) - found == set(), "these are gone"
    assert len(listed()) == len(found)


def test_every_test_that_is_named_exists() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    names = set(re.findall(r"`(test_\w+)`", TEXT))
    assert len(names) > 10
    assert [name for name in sorted(names) if f"def {name}(" not in tests] == []


def test_every_function_that_is_named_exists() -> None:
    named = set(re.findall(r"`(\w+)\.(\w+)`", TEXT))
    assert len(named) > 20
    assert [f"{owner}.{member}" for owner, member in sorted(named) if not exists(owner, member)] == []


def exists(owner: str, member: str) -> bool:
    """Whether a class has this method, or a module this function; `owner.py` is a file of the code or of its tests."""
    if member == "py":
        return any(ROOT.glob(f"[!.]*/**/{owner}.py"))
    homes = [
        path
        for path in SOURCES
        if path.stem == owner or re.search(rf"^class {owner}\b", path.read_text(), re.MULTILINE)
    ]
    return any(re.search(rf"\bdef {member}\(", path.read_text()) for path in homes)
