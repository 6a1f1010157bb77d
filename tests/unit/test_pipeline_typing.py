"""Types flow through a pipeline, from `read` to `write`, and a type checker finds what does not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_mypy_accepts_sound_pipelines_and_refuses_unsound_ones(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    # The packages under the name that they are installed as, which mypy cannot know from an editable installation.
    namespace = tmp_path / "millstream"
    namespace.mkdir()
    (namespace / "processor").symlink_to(ROOT / "processor")
    cache = request.config.cache.mkdir("mypy") if request.config.cache else tmp_path / "cache"
    command = [
        *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary"),
        *("--config-file=", "--cache-dir", str(cache)),
        *("--explicit-package-bases", "--namespace-packages", "--follow-imports", "silent"),
        str(Path(__file__).with_name("pipeline_typing.py")),
    ]
    shown = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.stdout + shown.stderr == ""
    assert shown.returncode == 0
