"""A pipeline's node inside of a user's program: the engine in the user's event loop, the membership in a thread.

What an agent and a worker process say to each other elsewhere is here between `EmbeddedNode` and the host. A shard that
has come to the end of the run stays with this node, so that nobody begins it again, until the plan gives it to another.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from millstream.processor.device_desk import NodeDevices
from millstream.processor.event_log import EventLog
from millstream.processor.membership_thread import MembershipThread, News, Orders
from millstream.processor.offload_report import DeviceReturned, DeviceWanted
from millstream.processor.shard_host import DeviceNews, HostEvent, ShardHost, ShardReleased, ShardRestarted
from millstream.processor.together import first_error

_log: Final = EventLog(logging.getLogger("millstream.engine"))

DRAIN_TIMEOUT_S: Final = 20.0
# How long the ledger may take to have the goodbye. Without it the others find the node dead, a third of a second later:
# whoever cancels a run is not to wait longer than that.
_GOODBYE_S: Final = 2.0
_HASTY_GOODBYE_S: Final = 0.25
_LOOK_INTERVAL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class RunEnd:
    """What ends a run: all shards at their end, so many records processed, or the loop's time."""

    caught_up: bool = False
    events: int | None = None
    deadline: float | None = None


class EmbeddedNode:
    """Runs a host that is prepared with the shards that the ledger gives it, until the run's end or a cancellation."""

    def __init__(
        self,
        host: ShardHost,
        shards: int,
        membership: MembershipThread,
        end: RunEnd,
        devices: NodeDevices | None = None,
    ) -> None:
        self._host = host
        self._devices = devices
        self._all = frozenset(range(shards))
        self._membership = membership
        self._end = end
        self._ordered: frozenset[int] = frozenset()
        self._finished: set[int] = set()
        self._elsewhere: frozenset[int] = frozenset()
        self._heard: frozenset[int] = frozenset()
        self._is_asking = False
        self._is_departing = False
        self._is_in_order = False
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Run to the end. No thread of its own is left when this returns or raises.

        Raises what the host or the membership raise: UserError and RefusedError, and MillstreamError where shards did
        not drain in time.
        """
        async with self:
            try:
                async with asyncio.TaskGroup() as tasks:
                    company = [tasks.create_task(self._follow()), tasks.create_task(self._watch_end())]
                    if self._devices is not None:
                        company.append(tasks.create_task(self._devices.run(self._tell_host)))
                    await self._host.serve(self._report)
                    for task in company:
                        task.cancel()
            except BaseExceptionGroup as group:
                raise first_error(group) from group
            self._is_in_order = True

    async def __aenter__(self) -> Self:
        self._membership.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nothing runs any more, so the goodbye is true whatever has happened.
        goodbye_s = _GOODBYE_S if self._is_in_order else _HASTY_GOODBYE_S
        if _has_running_loop():
            await self._membership.end(goodbye_s=goodbye_s)
        else:
            # A coroutine that its loop has left behind is closed by whoever collects it, and cannot wait.
            self._membership.stop(goodbye_s=goodbye_s)

    # -- what the membership says -------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            self._heed(await self._membership.news())

    def _heed(self, news: News) -> None:
        if news.error is not None:
            raise news.error
        if news.elsewhere is not None:
            self._elsewhere, self._heard, self._is_asking = news.elsewhere, frozenset(), False
        if news.heard is not None:
            self._heard, self._is_asking = news.heard, False
        if news.orders is not None:
            self._obey(news.orders)
        self._changed.set()

    def _obey(self, orders: Orders) -> None:
        lost = self._ordered - orders.shards
        self._ordered = orders.shards
        self._host.assign(orders.shards, orders.stalls, orders.tokens)
        for shard in sorted(lost & self._finished):
            # Nobody runs it any more, so there is nobody who would let go of it.
            self._membership.released(shard)

    def _report(self, event: HostEvent) -> None:
        match event:
            case ShardReleased(shard) if shard in self._ordered and not self._is_departing:
                self._finished.add(shard)
                self._changed.set()
            case ShardReleased(shard):
                self._membership.released(shard)
            case DeviceWanted() | DeviceReturned():
                if self._devices is not None:
                    self._devices.heard(0, event)
            case ShardRestarted(shard, reason):
                _log.warning("shard.restarted", shard=shard, reason=reason)

    def _tell_host(self, worker: int, news: DeviceNews) -> None:
        del worker  # there is one, in this very loop
        self._host.device_news(news)

    # -- the end ------------------------------------------------------------------------------------------------

    async def _watch_end(self) -> None:
        """Stop the host when the run is at its end."""
        while not self._is_at_end():
            self._changed.clear()
            try:
                async with asyncio.timeout(_LOOK_INTERVAL_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
        # The plan is made without this node from here on; each shard moves as soon as it is let go.
        self._is_departing = True
        self._membership.depart()
        await self._host.stop(DRAIN_TIMEOUT_S)

    def _is_at_end(self) -> bool:
        end = self._end
        if end.events is not None and self._host.counts().records_in >= end.events:
            return True
        if end.deadline is not None and asyncio.get_running_loop().time() >= end.deadline:
            return True
        return end.caught_up and self._is_caught_up()

    def _is_caught_up(self) -> bool:
        """Whether each shard has come to its end here, or is with a node that lives.

        That one brings it to its end, or whoever gets it then. A dead one's come here as soon as it is found dead.
        """
        missing = self._all - self._finished
        if missing <= self._heard:
            return True
        if missing <= self._elsewhere and not self._is_asking:
            self._is_asking = True
            self._membership.ask_who_is_heard()
        return False


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
