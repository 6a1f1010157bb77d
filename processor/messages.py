"""Words for the user on stderr, where a full disk takes none and the exit code is all that is left."""

from __future__ import annotations

import sys


def tell(message: str | None) -> None:
    """Write a message, if there is one, with everything that waits before it; it is lost where there is no room.

    What could not be written must not be tried again while Python ends: that would change the exit code to 120.
    """
    try:
        if message is not None:
            sys.stderr.write(f"millstream: {message}\n")
        sys.stderr.flush()
    except OSError:
        sys.stderr = open("/dev/null", "w")  # noqa: SIM115 - stays open until the process ends
