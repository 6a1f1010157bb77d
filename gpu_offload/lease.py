"""Which stages may use which of a node's devices: pure. Without a lease nothing is loaded on a device.

Devices are independent replicas: a lease is for one of them, and the loss of one takes nothing from the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wish:
    """What a stage of a holder (a worker, say) asks for. With 0 MB it asks for no memory in particular."""

    holder: str
    stage: str
    memory_mb: int = 0
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to use a device, until it is given back or withdrawn."""

    device: str
    wish: Wish


class DevicePool:
    """A node's devices with their memory in MB, and who has leases of them. Memory None: it is not counted."""

    def __init__(self, devices: Mapping[str, int | None]) -> None:
        self._devices = dict(devices)
        self._leases: dict[str, list[Lease]] = {device: [] for device in devices}

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices that have not been withdrawn."""
        return tuple(self._devices)

    def leases(self, device: str) -> tuple[Lease, ...]:
        """The leases of a device."""
        return tuple(self._leases.get(device, ()))

    def lease(self, wish: Wish) -> Lease | None:
        """A lease of the device with the fewest; None where none fits now. The same wish again has the same lease."""
        for lease in self._all():
            if lease.wish == wish:
                return lease
        fitting = [device for device in self._devices if self._fits(device, wish)]
        if not fitting:
            return None
        lease = Lease(min(fitting, key=lambda device: len(self._leases[device])), wish)
        self._leases[lease.device].append(lease)
        return lease

    def give_back(self, lease: Lease) -> None:
        """The holder needs it no more; nothing happens where it was withdrawn."""
        leases = self._leases.get(lease.device, [])
        if lease in leases:
            leases.remove(lease)

    def holder_gone(self, holder: str) -> None:
        """All leases of a holder that is dead are free."""
        for leases in self._leases.values():
            leases[:] = [lease for lease in leases if lease.wish.holder != holder]

    def withdraw(self, device: str) -> tuple[Lease, ...]:
        """The device is no more; answers the leases that are lost with it."""
        self._devices.pop(device, None)
        return tuple(self._leases.pop(device, ()))

    def add(self, device: str, memory_mb: int | None) -> None:
        """A device is there, or there again."""
        self._devices[device] = memory_mb
        self._leases.setdefault(device, [])

    def _all(self) -> Iterable[Lease]:
        for leases in self._leases.values():
            yield from leases

    def _fits(self, device: str, wish: Wish) -> bool:
        # A stage that several workers want is loaded once: it counts once, and its own workers are no strangers to it.
        others = {lease.wish.stage: lease.wish for lease in self._leases[device] if lease.wish.stage != wish.stage}
        if others and (wish.exclusive or any(other.exclusive for other in others.values())):
            return False
        memory_mb = self._devices[device]
        return memory_mb is None or wish.memory_mb + sum(other.memory_mb for other in others.values()) <= memory_mb
