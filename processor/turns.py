"""Whose turn it is in a worker: any number of batches at a time, or one that has hung before, alone."""

from __future__ import annotations

import asyncio


class Turns:
    """Batches of several shards take turns in one loop; a suspected one runs alone, so that no other is blamed."""

    def __init__(self) -> None:
        self._running = 0
        self._is_alone = False
        self._changed = asyncio.Event()

    def begin_nowait(self) -> bool:
        """Begin, unless another runs alone; answers whether that was so. Then it has its `end`."""
        self._running += not self._is_alone
        return not self._is_alone

    async def begin(self) -> None:
        """Wait while another runs alone. Every `begin` has its `end`."""
        while self._is_alone:
            await self._change()
        self._running += 1

    def end(self) -> None:
        """The batch is through."""
        self._running -= 1
        self._changed.set()

    async def begin_alone(self) -> None:
        """Wait until no other runs, and keep all others waiting. Every `begin_alone` has its `end_alone`."""
        while self._is_alone:
            await self._change()
        self._is_alone = True
        try:
            while self._running:
                await self._change()
        except BaseException:
            self.end_alone()
            raise

    def end_alone(self) -> None:
        """The suspected batch is through."""
        self._is_alone = False
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
