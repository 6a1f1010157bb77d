"""A view on stderr that is redrawn while something goes on, or plain lines where nobody watches."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.live import Live


class LiveScreen:
    """What the demos' screens have in common. `_live` is None where nobody watches; then `_say` has a line for each."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def announce(self, what: str) -> None:
        """Something to be known before it begins; it stays on the screen."""
        self._say(what)

    def _say(self, what: str) -> None:
        self._console.print(what, highlight=False, markup=False, soft_wrap=True)
