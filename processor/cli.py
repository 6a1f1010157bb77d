"""The console command `millstream`: finds the subcommand, imports that one alone, and turns errors into exit codes.

Each subcommand is a module with two functions:

    configure(parser)       adds its arguments
    execute(arguments)      does the work and returns the exit code

Modules are imported by name when they are chosen, so that `millstream --help` and a short command start quickly, and
a broken or missing one does not take the others along.

Exit codes: 0 done, 1 an error that millstream names, 2 something for the user to mend (arguments, settings, the
pipeline), 130 interrupted. An unexpected error is a bug and keeps its traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import importlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from types import FrameType
from typing import NoReturn, Protocol, cast

from millstream.processor.errors import MillstreamError, PipelineError, SettingsError
from millstream.processor.messages import tell

FAILED = 1
TO_MEND = 2
INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class CommandModule(Protocol):
    """What a subcommand's module offers."""

    def configure(self, parser: argparse.ArgumentParser, /) -> None: ...

    def execute(self, arguments: argparse.Namespace, /) -> int: ...


@dataclass(frozen=True)
class Command:
    """A subcommand: the module that holds it, and the line that `--help` shows without importing it."""

    module: str
    summary: str


COMMANDS = {
    "run": Command("millstream.processor.run_command", "run a pipeline: millstream run app.py --workers 4"),
    "demo": Command("millstream.loadgen.demo_command", "a broker, a pipeline and a judge, in one minute"),
    "broker": Command("millstream.connectors.kafka.broker_command", "start a real Apache Kafka for development"),
    "lag": Command("millstream.connectors.kafka.lag_command", "how far a pipeline is, by partition"),
    "status": Command("millstream.connectors.kafka.status_command", "who is there and has which shard"),
    "reset": Command("millstream.connectors.kafka.reset_command", "move a stopped pipeline's offsets"),
    "transactions": Command("millstream.connectors.kafka.transactions_command", "what a pipeline has left open"),
    "explain": Command("millstream.gpu_offload.explain_command", "why an offload stage runs where it does, in numbers"),
    "profile": Command("millstream.gpu_offload.profile_command", "what bounds a pipeline, and whether a GPU could pay"),
    "load": Command("millstream.loadgen.load_command", "send seeded events on an open schedule"),
    "verify": Command("millstream.loadgen.verify_command", "judge from outside whether each event took effect once"),
    "warm": Command("millstream.loadgen.warm_command", "compile all kernels now, as when an image is built"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and answer its exit code. Errors that millstream names end as one message on stderr."""
    try:
        with _ended_by_sigterm():
            code = _run(list(sys.argv[1:] if argv is None else argv))
        # What cannot be written shows here, and not as a traceback while Python ends.
        sys.stdout.flush()
        return code
    except (SettingsError, PipelineError) as error:
        return _report(error, TO_MEND)
    except MillstreamError as error:
        return _report(error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) has gone. What is still buffered has nowhere to go, so Python must
        # not try to flush it at exit.
        _leave_stdout()
        return FAILED
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _leave_stdout()
        return _report(f"cannot write {error.filename or 'the output'}: {error.strerror}", FAILED)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM unwinds the command, and the exit code is 143, until the command has a handler of its own.

    The kernel keeps signals without a handler from the first process of a container: one that comes while modules are
    being loaded would be lost, and the container killed when its patience is over.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _leave_stdout() -> None:
    sys.stdout = open("/dev/null", "w")  # noqa: SIM115 - stays open until the process ends


def _report(error: MillstreamError | str, code: int) -> int:
    tell(str(error))
    return code


def _run(argv: list[str]) -> int:
    name = argv[0] if argv else ""
    if name not in COMMANDS:
        return _without_command(argv)
    command = COMMANDS[name]
    module = _load(name, command)
    parser = argparse.ArgumentParser(prog=f"millstream {name}", description=command.summary)
    module.configure(parser)
    arguments, unknown = parser.parse_known_args(argv[1:])
    if unknown:
        raise SettingsError(f"the arguments of millstream {name}", _unknown(unknown, parser))
    return module.execute(arguments)


def _unknown(arguments: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """What to say of arguments that the command does not have. A value behind a misspelt flag is not told of."""
    flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("-")]
    known = parser.format_help().replace(",", " ").replace("[", " ").split()
    mistakes = []
    for argument in flags or arguments:
        close = difflib.get_close_matches(argument, [word for word in known if word.startswith("--")], 1)
        meant = f"did you mean {close[0]}?" if close else f"`{parser.prog} --help` lists those that there are"
        mistakes.append(f"unknown argument {argument!r}; {meant}")
    return mistakes


def _without_command(argv: list[str]) -> int:
    """`--help`, `--version`, a misspelt command or none: the cases that need no command's module."""
    parser = argparse.ArgumentParser(
        prog="millstream",
        description="A fault-tolerant streaming event processor for Kafka: exactly once, in columns, at speed.",
        epilog="millstream COMMAND --help tells more about each command.",
    )
    parser.add_argument("--version", action="version", version=f"millstream {version('millstream')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.summary)
    parser.parse_args(argv or ["--help"])
    # Only an option before the command gets here, as in `millstream -- run`.
    parser.error("the command comes first: millstream COMMAND [options]")


def _load(name: str, command: Command) -> CommandModule:
    try:
        return cast(CommandModule, importlib.import_module(command.module))
    except ModuleNotFoundError as error:
        # A package that the command needs and that is not installed is another matter, and keeps its traceback.
        if error.name is None or not command.module.startswith(error.name):
            raise
        raise MillstreamError(f"the command {name!r} is not part of this installation") from error
