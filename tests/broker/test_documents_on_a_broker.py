"""What the documents show works on a real broker: the commands of the README in order, and the snippets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from documents import execute, python_snippets, reader, snippets

from millstream.connectors.kafka.development_broker import DevelopmentBroker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

SHOWN_ADDRESS = "127.0.0.1:9092"


@pytest.fixture(scope="module")
def own_broker() -> Iterator[DevelopmentBroker]:
    """A broker for these tests alone: the names in the documents are not unique."""
    with DevelopmentBroker(heap_mb=512) as started:
        yield started


def test_the_commands_of_the_example_lead_to_a_clean_verdict(own_broker: DevelopmentBroker, tmp_path: Path) -> None:
    (tmp_path / "payments.py").write_text(python_snippets("README.md")[0].text)
    shown = next(s for s in snippets("README.md") if s.language == "console" and "millstream verify" in s.text)
    commands = [line.partition("#")[0].split()[2:] for line in shown.lines if line.startswith("$ millstream")]
    assert [command[0] for command in commands] == ["broker", "load", "run", "verify"]
    program = [sys.executable, "-c", "import sys; from millstream.processor.cli import main; sys.exit(main())"]
    environ = {**os.environ, "MILLSTREAM_BROKERS": own_broker.bootstrap}
    for command in commands[1:]:
        ended = subprocess.run(
            [*program, *command], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"


@pytest.mark.parametrize("document", ["README.md", "docs/embedding.md"])
def test_the_snippets_that_need_a_broker_run_as_they_stand(document: str, own_broker: DevelopmentBroker) -> None:
    with reader() as names:
        found = python_snippets(document)
        assert any(snippet.needs_broker for snippet in found)
        for snippet in found:
            text = snippet.text.replace(SHOWN_ADDRESS, own_broker.bootstrap)
            assert (text != snippet.text) == snippet.needs_broker
            execute(document, replace(snippet, text=text), names)
