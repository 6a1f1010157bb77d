"""No byte outside a row's slice is touched: the kernels run with numba's bounds checks on, one row per buffer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("json_field_bounds.py")


def test_no_kernel_reads_or_writes_outside_of_its_rows(tmp_path: Path) -> None:
    environment = os.environ | {
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, PROGRAM], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 2000
