"""A node's devices: who has which, and their processes, which live while somebody has a lease of their device."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from millstream.gpu_offload.device_child import ChildState, DeviceChild
from millstream.gpu_offload.lease import DevicePool, Lease, Wish
from millstream.gpu_offload.offload_settings import OffloadSettings
from millstream.processor.event_log import EventLog
from millstream.processor.offload_report import DeviceLeased, DeviceRefused, DeviceReturned, DeviceWanted

_log: Final = EventLog(logging.getLogger("millstream.device"))

Tell = Callable[[int, DeviceLeased | DeviceRefused], None]


@dataclass(slots=True)
class _Running:
    """A device's process."""

    child: DeviceChild
    task: asyncio.Task[None]
    state: ChildState


class NodeDevices:
    """Implements `device_desk.NodeDevices`."""

    def __init__(self, settings: OffloadSettings, log_level: str = "warning") -> None:
        self._texts = {_name(text, number): text for number, text in enumerate(settings.devices)}
        self._pool = DevicePool(dict.fromkeys(self._texts))
        self._why = settings.why
        self._log_level = log_level
        self._running: dict[str, _Running] = {}
        self._lost: dict[str, str] = {}
        self._tell: Tell = _tell_nobody
        self._directory: Path | None = None
        self._is_kept = False
        self._when_up: Callable[[], None] = lambda: None

    @property
    def is_up(self) -> bool:
        """Whether the process of a device has come up and is there."""
        return any(running.state.state == "up" for running in self._running.values())

    @property
    def trouble(self) -> str:
        """Why no device is up, in one line."""
        if not self._texts or not self._pool.devices:
            return self._why_none()
        return "; ".join(f"{device}: {self._state(device).state} {self._state(device).text}" for device in self._texts)

    def start_one(self, when_up: Callable[[], None]) -> None:
        """Keep a device's process running, whether or not somebody has a lease; `when_up` hears when one is up."""
        self._is_kept, self._when_up = True, when_up
        if self._directory is not None and self._pool.devices and not self._running:
            self._started(self._pool.devices[0])

    async def run(self, tell: Tell) -> None:
        """Answer wishes until cancelled; no process of a device is left then."""
        self._tell = tell
        with tempfile.TemporaryDirectory(prefix="millstream-") as directory:
            self._directory = Path(directory)
            if self._is_kept:
                self.start_one(self._when_up)
            try:
                await asyncio.Event().wait()
            finally:
                self._directory = None
                tasks = [self._end(device) for device in list(self._running)]
                await asyncio.gather(*tasks, return_exceptions=True)

    def heard(self, worker: int, message: DeviceWanted | DeviceReturned) -> None:
        """A worker asks for a device, or gives its one back."""
        if isinstance(message, DeviceReturned):
            self._give_back(str(worker), message.stage)
            return
        wish = Wish(str(worker), message.stage, message.memory_mb, message.exclusive)
        lease = self._pool.lease(wish) if self._directory is not None else None
        if lease is None:
            self._tell(worker, DeviceRefused(message.stage, self._why_none()))
            return
        child = self._started(lease.device)
        self._tell(worker, DeviceLeased(message.stage, lease.device, child.path))

    def gone(self, worker: int) -> None:
        """A worker is dead, and has no device any more."""
        self._pool.holder_gone(str(worker))
        self._end_unused()

    def status(self) -> list[dict[str, Any]]:
        """Each device as it is, for people."""
        return [
            {
                "device": device,
                "kind": text,
                "state": self._state(device).state,
                "text": self._state(device).text,
                "pid": self._running[device].child.pid if device in self._running else None,
                "leases": [f"{lease.wish.stage} (worker {lease.wish.holder})" for lease in self._pool.leases(device)],
            }
            for device, text in self._texts.items()
        ]

    # -- processes ----------------------------------------------------------------------------------------------

    def _started(self, device: str) -> DeviceChild:
        if device not in self._running:
            assert self._directory is not None
            child = DeviceChild(
                device,
                self._texts[device],
                self._directory,
                lambda state: self._changed(device, state),
                log_level=self._log_level,
            )
            _log.info("device.starting", device=device, kind=self._texts[device])
            task = asyncio.get_running_loop().create_task(child.run())
            self._running[device] = _Running(child, task, ChildState("starting"))
        return self._running[device].child

    def _changed(self, device: str, state: ChildState) -> None:
        running = self._running.get(device)
        if running is None:
            return
        running.state = state
        if state.state == "gone":
            _log.warning("device.process_gone", device=device, reason=state.text)
        elif state.state == "up":
            _log.info("device.process_up", device=device, text=state.text)
            self._when_up()
        elif state.state == "unavailable":
            _log.error("device.unavailable", device=device, reason=state.text)
            self._lost[device] = state.text
            leases = self._pool.withdraw(device)
            self._end(device)
            for lease in leases:
                self._refuse(lease, state.text)
            if self._is_kept:
                self.start_one(self._when_up)

    def _refuse(self, lease: Lease, why: str) -> None:
        self._tell(int(lease.wish.holder), DeviceRefused(lease.wish.stage, f"{lease.device}: {why}"))

    def _give_back(self, holder: str, stage: str) -> None:
        for device in self._pool.devices:
            for lease in self._pool.leases(device):
                if (lease.wish.holder, lease.wish.stage) == (holder, stage):
                    self._pool.give_back(lease)
        self._end_unused()

    def _end_unused(self) -> None:
        for device in list(self._running):
            if not self._pool.leases(device) and not (self._is_kept and len(self._running) == 1):
                _log.info("device.ended", device=device, reason="no stage has a lease of it")
                self._end(device)

    def _end(self, device: str) -> asyncio.Task[None]:
        """Cancelling the task kills the process."""
        task = self._running.pop(device).task
        task.cancel()
        return task

    def _state(self, device: str) -> ChildState:
        if device in self._running:
            return self._running[device].state
        return (
            ChildState("unavailable", self._lost[device]) if device in self._lost else ChildState("gone", "not in use")
        )

    def _why_none(self) -> str:
        if not self._texts:
            return self._why or "the node has no device"
        if not self._pool.devices:
            return "; ".join(f"{device}: {why}" for device, why in self._lost.items())
        return "all devices are leased to stages that share with none, or their memory is taken"


def _tell_nobody(worker: int, news: DeviceLeased | DeviceRefused) -> None:
    """Before `run` nobody is there."""


def _name(text: str, number: int) -> str:
    return f"{'sim' if text.startswith('simulated') else 'gpu'}{number}"
