"""`millstream warm` uses every kernel that Python code calls, so that an image made with it compiles nothing later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from documents import ROOT

# Kernels that only other kernels call are compiled with them; with a cached caller, they are never looked at.
LIST_UNUSED = """
import importlib, sys
from numba.core.dispatcher import Dispatcher
from millstream.processor.cli import main

for name in sys.argv[1:]:
    importlib.import_module(name)
kernels = {
    id(value): value
    for name, module in sys.modules.items() if name.startswith("millstream.")
    for value in vars(module).values() if isinstance(value, Dispatcher)
}
inner = {
    id(kernel.py_func.__globals__.get(name))
    for kernel in kernels.values() for name in kernel.py_func.__code__.co_names
}
entries = [kernel for key, kernel in kernels.items() if key not in inner]
assert len(entries) > 10, entries
assert main(["warm"]) == 0
print(*(kernel.__qualname__ for kernel in entries if not kernel.signatures))
"""


def modules_with_kernels() -> list[str]:
    return [
        ".".join(("millstream", *path.relative_to(ROOT).with_suffix("").parts))
        for package in ("processor", "connectors", "gpu_offload", "loadgen")
        for path in (ROOT / package).rglob("*.py")
        if "kernels import" in path.read_text()
    ]


def test_no_kernel_is_left_out() -> None:
    names = modules_with_kernels()
    assert len(names) > 5
    listed = subprocess.run(
        [sys.executable, "-c", LIST_UNUSED, *names], capture_output=True, text=True, timeout=100, check=False
    )
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.split() == [], "use these in connectors/kafka/warm_up.py or loadgen/warm_command.py"


def test_a_second_time_nothing_is_compiled(tmp_path: Path) -> None:
    # The generator alone: the files that numba writes are the same for every kernel, and few compile quickly.
    code = "from millstream.loadgen.warm_command import warm_generator; warm_generator()"
    environ = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def files_after_a_run() -> dict[Path, int]:
        subprocess.run([sys.executable, "-c", code], env=environ, timeout=100, check=True)
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    first = files_after_a_run()
    assert first
    assert files_after_a_run() == first
