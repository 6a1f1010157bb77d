"""A worker's offload stages at work: their placements, the leases that they ask for, and what is said of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from millstream.gpu_offload.device_client import ClientSettings, DeviceClient
from millstream.gpu_offload.offload_settings import OffloadSettings
from millstream.gpu_offload.replay import warm_up
from millstream.gpu_offload.stage_placement import StagePlacement
from millstream.processor.event_log import EventLog
from millstream.processor.offload_report import (
    DeviceLeased,
    DeviceRefused,
    DeviceReturned,
    DeviceWanted,
    OffloadReport,
)
from millstream.processor.stages.offload import OffloadStage

_log: Final = EventLog(logging.getLogger("millstream.offload"))

_TICK_S: Final = 0.05
_REPORT_S: Final = 1.0
_ASK_AGAIN_S: Final = 2.0


@dataclass(slots=True)
class _Seat:
    """A stage with its placement, and its way to a device while it has one."""

    stage: OffloadStage
    placement: StagePlacement
    going: asyncio.Task[None] | None = None
    asked_at: float = float("-inf")


class WorkerOffload:
    """Implements `shard_host.Offloading`. Makes the placements of all stages at once."""

    def __init__(
        self,
        stages: Sequence[OffloadStage],
        settings: OffloadSettings,
        client_settings: ClientSettings | None = None,
        seed: int = 0,
    ) -> None:
        self._client_settings = client_settings or ClientSettings()
        self._seats = {}
        for stage in stages:
            placement = StagePlacement(stage, settings, seed)
            stage.placement = placement
            self._seats[stage.definition.name] = _Seat(stage, placement)
        self._has_devices = bool(settings.devices)

    async def run(self, report: Callable[[DeviceWanted | DeviceReturned | OffloadReport], None]) -> None:
        """Look after the stages until cancelled."""
        if self._has_devices and self._seats:
            # Compiled where nothing waits for it; it takes a second once on a machine.
            await asyncio.to_thread(warm_up)
        loop = asyncio.get_running_loop()
        reported_at = float("-inf")
        try:
            while True:
                for name, seat in self._seats.items():
                    seat.placement.tick()
                    self._look_after_lease(name, seat, report)
                if loop.time() - reported_at >= _REPORT_S:
                    reported_at = loop.time()
                    for seat in self._seats.values():
                        report(seat.placement.report())
                await asyncio.sleep(_TICK_S)
        finally:
            for seat in self._seats.values():
                self._leave(seat)
                seat.placement.close()

    def heard(self, news: DeviceLeased | DeviceRefused) -> None:
        """The node's answer to a wish, or the end of a lease."""
        seat = self._seats[news.stage]
        self._leave(seat)
        if isinstance(news, DeviceRefused):
            seat.placement.lose(news.why)
            return
        client = DeviceClient(news.device, news.path, [seat.stage.definition], seat.placement, self._client_settings)
        seat.going = asyncio.get_running_loop().create_task(client.run())
        seat.going.add_done_callback(_ended)
        seat.placement.use(news.device, client)

    def _look_after_lease(
        self, name: str, seat: _Seat, report: Callable[[DeviceWanted | DeviceReturned | OffloadReport], None]
    ) -> None:
        now = asyncio.get_running_loop().time()
        wants = seat.placement.wants_device
        if wants and seat.going is None and now - seat.asked_at >= _ASK_AGAIN_S:
            seat.asked_at = now
            definition = seat.stage.definition
            report(DeviceWanted(name, definition.memory_mb, definition.exclusive))
        elif not wants and seat.going is not None:
            self._leave(seat)
            seat.placement.lose("it could not win, and was given back")
            report(DeviceReturned(name))

    def _leave(self, seat: _Seat) -> None:
        if seat.going is not None:
            seat.going.cancel()
            seat.going = None


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("offload.device_lost", reason=f"{type(error).__name__}: {error}")
