"""The event loop of agents and workers: uvloop's where it is installed, asyncio's own elsewhere."""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop that is not running yet, for `asyncio.Runner`."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
