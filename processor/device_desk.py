"""Where a node's workers ask for devices: what `gpu_offload` implements for an agent, and for a worker's host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from millstream.processor.offload_report import (
    DeviceLeased,
    DeviceRefused,
    DeviceReturned,
    DeviceWanted,
    OffloadReport,
)


class NodeDevices(Protocol):
    """A node's devices and their processes. All calls are made in one event loop."""

    @property
    def is_up(self) -> bool:
        """Whether the process of a device has come up and is there."""

    @property
    def trouble(self) -> str:
        """Why no device is up, in one line."""

    def start_one(self, when_up: Callable[[], None]) -> None:
        """Have a device's process started, whether or not somebody has a lease; `when_up` is called when one is up."""

    async def run(self, tell: Callable[[int, DeviceLeased | DeviceRefused], None]) -> None:
        """Answer wishes until cancelled: `tell` gets a worker's number and the answer. Leaves no process behind."""

    def heard(self, worker: int, message: DeviceWanted | DeviceReturned) -> None:
        """A worker asks for a device, or gives its one back."""

    def gone(self, worker: int) -> None:
        """A worker is dead, and has no device any more."""

    def status(self) -> list[dict[str, Any]]:
        """Each device as it is, for people."""


class Offloading(Protocol):
    """A worker's offload stages, beside the shards that use them."""

    async def run(self, report: Callable[[DeviceWanted | DeviceReturned | OffloadReport], None]) -> None:
        """Look after the stages until cancelled."""

    def heard(self, news: DeviceLeased | DeviceRefused) -> None:
        """The node's answer to a wish, or the end of a lease."""
