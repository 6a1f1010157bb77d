"""What users import stays importable, and nothing loads more than it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import millstream.processor

PUBLIC = [
    "ArrayColumns",
    "Columns",
    "DecodeError",
    "EncodeError",
    "Equality",
    "Fidelity",
    "KEEP",
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


def test_the_public_names_are_these_and_no_others() -> None:
    assert sorted(millstream.processor.__all__) == PUBLIC
    assert dir(millstream.processor) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_can_be_imported(name: str) -> None:
    value = getattr(millstream.processor, name)
    assert value is getattr(millstream.processor, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Pipelin'"):
        _ = millstream.processor.Pipelin


def test_errors_load_without_numpy_numba_or_a_codec() -> None:
    code = (
        "import sys, millstream.processor.errors; "
        "print(sorted({'numpy', 'numba', 'msgspec', 'aiokafka'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
