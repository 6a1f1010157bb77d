"""The examples in the documents, as programs: what a reader would copy, in the order in which it stands there."""

from __future__ import annotations

import asyncio
import re
import sys
import types
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import CO_COROUTINE
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

_FENCED = re.compile(r"^(<!-- needs a broker -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """One fenced block. `line` is where it starts in its document, from 0."""

    language: str
    text: str
    line: int
    needs_broker: bool

    @property
    def lines(self) -> list[str]:
        """Its lines, without their ends."""
        return self.text.splitlines()


def snippets(document: str) -> list[Snippet]:
    """All fenced blocks of a document that name a language."""
    text = (ROOT / document).read_text()
    return [
        Snippet(match[2], match[3], text[: match.start(3)].count("\n"), match[1] is not None)
        for match in _FENCED.finditer(text)
    ]


def python_snippets(document: str) -> list[Snippet]:
    """The Python ones, of which there is at least one."""
    found = [snippet for snippet in snippets(document) if snippet.language == "python"]
    assert found, f"{document} has no Python snippet"
    return found


@contextmanager
def reader() -> Iterator[dict[str, Any]]:
    """The names that a reader has after what was executed so far; a module, since types look theirs up by its name."""
    module = types.ModuleType("reader")
    sys.modules["reader"] = module
    try:
        yield vars(module)
    finally:
        del sys.modules["reader"]


def execute(document: str, snippet: Snippet, names: dict[str, Any]) -> None:
    """Run a snippet as a program would, or as a notebook would where `await` stands at its top.

    Tracebacks name the document and its line.
    """
    code = compile("\n" * snippet.line + snippet.text, document, "exec", flags=PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & CO_COROUTINE:
        asyncio.run(eval(code, names))
    else:
        exec(code, names)
