"""What the documents show works: every Python snippet that needs no broker is executed, in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import ROOT, execute, python_snippets, reader, snippets

from millstream.processor.cli import COMMANDS

WITH_SNIPPETS = ("README.md", "docs/embedding.md", "docs/offload.md")
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))


@pytest.mark.parametrize("document", WITH_SNIPPETS)
def test_the_snippets_run_as_they_stand(document: str) -> None:
    with reader() as names:
        for snippet in python_snippets(document):
            if not snippet.needs_broker:
                execute(document, snippet, names)


def test_every_command_that_is_shown_exists() -> None:
    lines = [line for document in DOCUMENTS for s in snippets(document) if s.language == "console" for line in s.lines]
    shown = {words[2] for line in lines if (words := line.split())[:2] == ["$", "millstream"]}
    assert shown - {"--help"} <= COMMANDS.keys()
    assert {"run", "broker", "load", "verify"} <= shown


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    here = ROOT / document
    for target in re.findall(r"\]\(([^)\s]+)\)", here.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        place, _, anchor = target.partition("#")
        there = here.parent / place if place else here
        assert there.exists(), f"{document} links to {target}"
        assert not anchor or anchor in anchors(there), f"{document} links to {target}"


def anchors(document: Path) -> set[str]:
    """What a link can point to: the headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
