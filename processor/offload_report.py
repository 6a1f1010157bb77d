"""What workers, agents and people say about offload stages: wishes for a device, leases, and how a stage fares.

Light enough for an agent, which has no arrays.
"""

from __future__ import annotations

from typing import Any

import msgspec


class DeviceWanted(msgspec.Struct, frozen=True, tag="device-wanted"):
    """A stage of this worker could win on a device: it asks for a lease of one. Said again until it is answered."""

    stage: str
    memory_mb: int = 0
    exclusive: bool = False


class DeviceReturned(msgspec.Struct, frozen=True, tag="device-returned"):
    """The stage needs its device no more."""

    stage: str


class DeviceLeased(msgspec.Struct, frozen=True, tag="device-leased"):
    """The stage may use a device, whose process listens at `path`, until that is withdrawn."""

    stage: str
    device: str
    path: str


class DeviceRefused(msgspec.Struct, frozen=True, tag="device-refused"):
    """The stage has no device, or no longer, and why. It may ask again."""

    stage: str
    why: str


class OffloadCounts(msgspec.Struct, omit_defaults=True):
    """What was done for a stage since its worker began; only ever grows.

    `decisions` by reason code, `switches` by "from>to", `records` and `busy_s` by device, `fallbacks` (records that a
    device was to compute and the CPU did) by reason, `probes` by device.
    """

    decisions: dict[str, int] = {}
    switches: dict[str, int] = {}
    records: dict[str, int] = {}
    busy_s: dict[str, float] = {}
    fallbacks: dict[str, int] = {}
    probes: dict[str, int] = {}

    def add(self, other: OffloadCounts) -> None:
        """Add all of `other`."""
        for name in self.__struct_fields__:
            mine, others = getattr(self, name), getattr(other, name)
            for key, value in others.items():
                mine[key] = mine.get(key, 0) + value


class OffloadReport(msgspec.Struct, frozen=True, tag="offload-report"):
    """How a stage fares in a worker, sent once a second.

    `runs_on` is "cpu" or "gpu"; `device` is the device that is leased, if one is, `state` how it is, and `why` why it
    is not ready. `decision` is the planner's last one, as it is, and `explanation` the same in words.
    """

    stage: str
    runs_on: str
    device: str
    state: str
    why: str
    counts: OffloadCounts
    decision: dict[str, Any] | None
    explanation: str
