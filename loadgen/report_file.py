"""A report's file: whether there is a place for it, before hours are spent on measuring, and writing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from millstream.processor.errors import SettingsError, UnavailableError


def check_report(path: Path) -> None:
    """Raises SettingsError where the file's directory does not exist."""
    check_directory("the report", path)


def check_directory(subject: str, path: Path) -> None:
    """Raises SettingsError about the subject where the file's directory does not exist."""
    if not path.absolute().parent.is_dir():
        raise SettingsError(subject, [f"there is no directory {path.absolute().parent}; make it first"])


def write_json(path: Path, report: Mapping[str, object] | Sequence[object]) -> None:
    """Write it as JSON. Raises UnavailableError where it cannot be written, such as on a full disk."""
    try:
        path.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise UnavailableError(f"the report {path} could not be written: {error.strerror}") from error


def write_text(subject: str, path: Path, text: str) -> None:
    """Write a text. Raises UnavailableError about the subject where it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UnavailableError(f"{subject} {path} could not be written: {error.strerror}") from error
