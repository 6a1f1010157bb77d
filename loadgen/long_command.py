"""What commands that measure for long have in common: how they end, and that nothing measured is lost with an error."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from millstream.processor.errors import MillstreamError, SettingsError

FAILED: Final = 1
TO_MEND: Final = 2
INTERRUPTED: Final = 130


def run_command(name: str, execute: Callable[[], int]) -> int:
    """Run it and answer its exit code: its own, 1 for an error, 2 for a mistake of the user's, 130 where interrupted.

    A service manager's SIGTERM cleans up like Ctrl-C does. Errors are told on stderr, under the command's name.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return execute()
    except MillstreamError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return TO_MEND if isinstance(error, SettingsError) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def telling(tell: Callable[[], None]) -> Iterator[None]:
    """Tell what was done when the work is over, also where an error has ended it: what came before is worth it.

    Raises that error then, or else the one of the telling.
    """
    failure: MillstreamError | None = None
    try:
        yield
    except MillstreamError as error:
        failure = error
    try:
        tell()
    except MillstreamError as error:
        raise failure or error from error
    if failure is not None:
        raise failure
