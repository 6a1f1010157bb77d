"""The pipelines that are measured, and the baseline's work that stands beside each."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from millstream.loadgen.baseline import BaselineWork
from millstream.loadgen.bench_functions import Payment, charge, charge_arrays, charge_columns, charge_untyped, mark

if TYPE_CHECKING:
    from millstream.processor import Pipeline


class Work(Enum):
    """What is done to each event; the names are those of the rows."""

    RAW_COPY = "raw_copy"
    TYPED_JSON_FUNCTION = "typed_json_function"
    COLUMN_JSON = "column_json"
    OFFLOAD_MARKED = "offload_marked"
    UNTYPED_JSON_FUNCTION = "untyped_json_function"
    RAW_FUNCTION = "raw_function"


# How `bench_app` is told what to run.
APP = "millstream.loadgen.bench_app:pipeline"
WORK_VARIABLE = "MILLSTREAM_BENCH_WORK"
NAME_VARIABLE = "MILLSTREAM_BENCH_NAME"
SOURCE_VARIABLE = "MILLSTREAM_BENCH_SOURCE"
TARGET_VARIABLE = "MILLSTREAM_BENCH_TARGET"

# Of two ways to the same output, the baseline gets the faster one: it has no columns, and typed parsing beats untyped.
BASELINE_WORK = {
    Work.RAW_COPY: BaselineWork.COPY,
    Work.TYPED_JSON_FUNCTION: BaselineWork.TYPED_JSON,
    Work.COLUMN_JSON: BaselineWork.TYPED_JSON,
    Work.OFFLOAD_MARKED: BaselineWork.TYPED_JSON,
    Work.UNTYPED_JSON_FUNCTION: BaselineWork.JSON,
    Work.RAW_FUNCTION: BaselineWork.BYTES,
}


def pipeline_for(work: Work, name: str, source: str, target: str) -> Pipeline:
    """The pipeline, with every setting at its default."""
    # The baseline's process reads this module for its names, and should not load the engine for that.
    from millstream.processor import Pipeline

    pipeline = Pipeline(name)
    match work:
        case Work.RAW_COPY:
            pipeline.read(source).write(target)
        case Work.TYPED_JSON_FUNCTION:
            pipeline.read(source, Payment).map(charge).write(target)
        case Work.COLUMN_JSON:
            typed = pipeline.read(source, Payment)
            typed.columns(charge_columns, reads={"amount": float}, adds={"fee": float}).write(target)
        case Work.OFFLOAD_MARKED:
            # The same as above with the mark, on a machine without a device: what deciding costs.
            typed = pipeline.read(source, Payment)
            reads, adds = {"amount": float}, {"fee": float}
            typed.offload(charge_arrays, reads=reads, adds=adds, latency_budget_ms=1000).write(target)
        case Work.UNTYPED_JSON_FUNCTION:
            pipeline.read(source, dict).map(charge_untyped).write(target)
        case Work.RAW_FUNCTION:
            pipeline.read(source).map(mark).write(target)
    return pipeline
