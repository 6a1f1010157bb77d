"""The command line imports only what was asked for, and its exit codes say whose turn it is."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from millstream.processor import cli
from millstream.processor.errors import FencedError, MillstreamError, PipelineError, SettingsError

Execute = Callable[[argparse.Namespace], int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Execute], None]:
    """Install a function as the command `try`, with one option `--number`."""

    def install(execute: Execute) -> None:
        module = ModuleType("a_command")
        module.configure = lambda parser: parser.add_argument("--number", type=int)  # type: ignore[attr-defined]
        module.execute = execute  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "a_command", module)
        monkeypatch.setitem(cli.COMMANDS, "try", cli.Command("a_command", "a command for this test"))

    return install


def raises(error: BaseException) -> Execute:
    def execute(_: argparse.Namespace) -> int:
        raise error

    return execute


RUN = [sys.executable, "-c", "import sys; from millstream.processor.cli import main; sys.exit(main())", "run", "app.py"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_under_the_output_is_one_message_and_exit_code_1() -> None:
    with open("/dev/full", "w") as full:
        finished = subprocess.run(
            [*RUN, "--brokers=a:1", "--show-settings"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert finished.returncode == 1
    assert finished.stderr == "millstream: cannot write the output: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_under_the_messages_leaves_the_exit_code_as_it_is() -> None:
    with open("/dev/full", "w") as full:
        assert subprocess.run([*RUN, "--workers=x"], stderr=full, check=False).returncode == 2


def test_a_command_gets_its_arguments_and_its_result_is_the_exit_code(command: Callable[[Execute], None]) -> None:
    command(lambda arguments: arguments.number)
    assert cli.main(["try", "--number", "7"]) == 7


SLEEPING = """
import sys, time, types
from millstream.processor import cli

def execute(arguments):
    print("at work", flush=True)
    try:
        time.sleep(60)
    finally:
        print("unwound", flush=True)

command = types.ModuleType("a_command")
command.configure = lambda parser: None
command.execute = execute
sys.modules["a_command"] = command
cli.COMMANDS["try"] = cli.Command("a_command", "a command for this test")
sys.exit(cli.main(["try"]))
"""


def test_sigterm_before_a_command_has_a_handler_of_its_own_unwinds_it() -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPING], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "at work\n"
        running.terminate()
        assert running.stdout.read() == "unwound\n"
        assert running.wait(30) == 143


def test_unknown_arguments_are_named_together_with_what_was_probably_meant(
    command: Callable[[Execute], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(lambda _: 0)
    assert cli.main(["try", "--nunber", "7", "--colour=red"]) == 2
    message = capsys.readouterr().err
    assert "unknown argument '--nunber'; did you mean --number?" in message
    assert "unknown argument '--colour'; `millstream try --help` lists" in message
    assert "'7'" not in message
    assert cli.main(["try", "stray"]) == 2
    assert "unknown argument 'stray'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FencedError("somebody else"), 1),
        (MillstreamError("anything"), 1),
        (SettingsError("settings", ["port 0"]), 2),
        (PipelineError("pipeline", ["no sink"]), 2),
    ],
)
def test_a_named_error_is_one_message_and_no_traceback(
    command: Callable[[Execute], None], capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    command(raises(error))
    assert cli.main(["try"]) == code
    assert capsys.readouterr().err == f"millstream: {error}\n"


def test_an_unexpected_error_keeps_its_traceback(command: Callable[[Execute], None]) -> None:
    command(raises(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["try"])


def test_an_interrupt_is_told_by_its_exit_code(command: Callable[[Execute], None]) -> None:
    command(raises(KeyboardInterrupt()))
    assert cli.main(["try"]) == 130


def test_a_missing_module_breaks_its_own_command_only(
    monkeypatch: pytest.MonkeyPatch, command: Callable[[Execute], None], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "gone", cli.Command("millstream.processor.not_there", "never mind"))
    assert cli.main(["gone"]) == 1
    assert "'gone' is not part of this installation" in capsys.readouterr().err
    command(lambda _: 0)
    assert cli.main(["try"]) == 0


def test_a_package_that_a_command_lacks_is_not_taken_for_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "needs_more.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(cli.COMMANDS, "needy", cli.Command("needs_more", "needs a package"))
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has"):
        cli.main(["needy"])


@pytest.mark.parametrize("argv", [["nonsense"], ["--nonsense"], ["--", "broker"]])
def test_what_is_no_command_is_the_users_to_mend(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2
    assert "usage: millstream" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["--help"]])
def test_help_names_every_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 0
    shown = capsys.readouterr().out.replace("\n", " ")
    assert all(f"    {name} " in shown for name in cli.COMMANDS)


def test_help_imports_no_commands_module() -> None:
    program = (
        "import sys; from millstream.processor import cli\n"
        "try: cli.main(['--help'])\n"
        "finally: assert not {command.module for command in cli.COMMANDS.values()} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
