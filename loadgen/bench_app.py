"""A measured pipeline as `millstream run` starts it; the benchmark names work and topics in the environment."""

from __future__ import annotations

import os

from millstream.loadgen.bench_workloads import (
    NAME_VARIABLE,
    SOURCE_VARIABLE,
    TARGET_VARIABLE,
    WORK_VARIABLE,
    Work,
    pipeline_for,
)

pipeline = pipeline_for(
    Work(os.environ[WORK_VARIABLE]),
    os.environ[NAME_VARIABLE],
    os.environ[SOURCE_VARIABLE],
    os.environ[TARGET_VARIABLE],
)
