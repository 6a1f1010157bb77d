"""How events are processed: pipelines, stages, shards, commits, workers and nodes.

What a user needs to write and test a pipeline is named here; everything else is how it works inside.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.processor.codecs.fidelity import Fidelity
    from millstream.processor.errors import (
        DecodeError,
        EncodeError,
        MillstreamError,
        PipelineError,
        RecordTooLargeError,
        StageError,
    )
    from millstream.processor.graph import KEEP
    from millstream.processor.offloading import ArrayColumns, Equality, Offloadable, Text
    from millstream.processor.ownership import ownership_token
    from millstream.processor.pipeline import Pipeline
    from millstream.processor.policy import OnError
    from millstream.processor.record import Record
    from millstream.processor.row_independence import assert_row_independent
    from millstream.processor.stages.column_calls import Columns
    from millstream.processor.stream import Stream
    from millstream.processor.testing import TestOutput, TestRecord, TestResult

__all__ = [
    "KEEP",
    "ArrayColumns",
    "Columns",
    "DecodeError",
    "EncodeError",
    "Equality",
    "Fidelity",
    "MillstreamError",
    "Offloadable",
    "OnError",
    "Pipeline",
    "PipelineError",
    "Record",
    "RecordTooLargeError",
    "StageError",
    "Stream",
    "TestOutput",
    "TestRecord",
    "TestResult",
    "Text",
    "assert_row_independent",
    "ownership_token",
]

# Names are looked up when first used: an agent, which runs no pipeline, should start without loading all the codecs.
_HOMES = {
    "KEEP": "graph",
    "ArrayColumns": "offloading",
    "Columns": "stages.column_calls",
    "Equality": "offloading",
    "Fidelity": "codecs.fidelity",
    "Offloadable": "offloading",
    "OnError": "policy",
    "Pipeline": "pipeline",
    "Record": "record",
    "Stream": "stream",
    "TestOutput": "testing",
    "TestRecord": "testing",
    "TestResult": "testing",
    "Text": "offloading",
    "assert_row_independent": "row_independence",
    "ownership_token": "ownership",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
