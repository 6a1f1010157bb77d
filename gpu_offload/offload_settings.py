"""What a node says to its workers about devices and prices, as JSON can carry it."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from millstream.gpu_offload.decision import DeviceSpec

CPU: Final = "cpu"
GPU: Final = "gpu"
"""What the planner of a stage calls the device that the stage has a lease of, whichever of the node's that is."""


class OffloadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`devices` are those that the node can lease, as texts of `device_choice`; where there are none, `why`.

    Prices are in any one currency. A GPU's is for the whole device; its node's workers bear it together.
    """

    devices: tuple[str, ...] = ()
    why: str = ""
    price_cpu_core_hour: float = 0.04
    price_gpu_hour: float = 3.5
    gpu_charge: Literal["leased", "share"] = "leased"
    workers: int = 1

    def specs(self) -> list[DeviceSpec]:
        """The devices that a stage's planner chooses from."""
        cpu = DeviceSpec(CPU, "cpu", self.price_cpu_core_hour, "used")
        if not self.devices:
            return [cpu]
        share = len(self.devices) / max(self.workers, len(self.devices))
        return [cpu, DeviceSpec(GPU, "gpu", self.price_gpu_hour * share, self.gpu_charge, feeder_cores=1.0)]

    def to_json(self) -> dict[str, Any]:
        """The settings as arguments that survive JSON."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @staticmethod
    def from_json(given: dict[str, Any]) -> OffloadSettings:
        """The settings again."""
        return msgspec.convert(given, OffloadSettings)
