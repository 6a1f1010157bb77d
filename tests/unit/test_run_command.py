"""`millstream run` takes sensible arguments and refuses the others before anything starts."""

from __future__ import annotations

import argparse
import socket

import pytest

from millstream.processor import run_command
from millstream.processor.errors import SettingsError


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run_command.configure(parser)
    return parser.parse_args([*arguments, "app.py"])


def test_all_but_the_program_has_a_default() -> None:
    arguments = parse()
    assert arguments.app == "app.py"
    assert arguments.workers == 1
    assert arguments.until == "stopped"
    assert arguments.max_seconds is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--workers", "0"),
        ("--workers", "-1"),
        ("--workers", "2.5"),
        ("--workers", "100000"),
        ("--drain-timeout-s", "0"),
        ("--drain-timeout-s", "soon"),
        ("--max-seconds", "nan"),
        ("--max-seconds", "inf"),
        ("--until", "tomorrow"),
        ("--log-level", "loud"),
    ],
)
def test_a_senseless_value_is_refused_and_named(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(f"{option}={value}")
    assert refused.value.code == 2
    message = capsys.readouterr().err
    assert option in message
    assert value in message


def test_a_taken_http_address_is_refused_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = parse("--brokers=127.0.0.1:9", f"--http=127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(SettingsError, match="cannot listen there"):
            run_command._run(arguments)
