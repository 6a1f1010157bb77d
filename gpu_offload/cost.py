"""What running a stage costs. Prices are inputs; scaling all of them changes no choice."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.gpu_offload.decision import DeviceSpec

# Slower than this nothing is worth a calculation; it keeps costs per event finite.
_RATE_MIN = 1e-3


def core_price(devices: Sequence[DeviceSpec]) -> float:
    """The price of a core for an hour: that of the first CPU, 0 where there is none."""
    return next((device.price_per_hour for device in devices if device.kind == "cpu"), 0.0)


def cost_per_second(spec: DeviceSpec, core_price_per_hour: float, busy: float) -> float:
    """What a second costs in which `busy` of the device's servers are busy on average."""
    share = busy / spec.servers
    match spec.charge:
        case "used":
            hourly = spec.price_per_hour * busy
        case "share":
            hourly = spec.price_per_hour * share
        case "leased":
            hourly = spec.price_per_hour
    return (hourly + spec.feeder_cores * core_price_per_hour * share) / 3600.0


def cost_per_million(spec: DeviceSpec, core_price_per_hour: float, busy: float, rate: float) -> float:
    """What a million events cost at `rate` events per second."""
    return cost_per_second(spec, core_price_per_hour, busy) / max(rate, _RATE_MIN) * 1e6


def break_even_core_us(spec: DeviceSpec, core_price_per_hour: float, rate: float) -> float | None:
    """CPU time per event (one core) above which a device that did its work in no time would be the cheaper one.

    For a leased device that is its price over that of a core, over the rate. None where no such figure exists: for a
    CPU, where a core is free, and for a device that is paid for by its busy time, which costs nothing in no time.
    """
    if spec.kind == "cpu" or spec.charge != "leased" or core_price_per_hour <= 0.0:
        return None
    return spec.price_per_hour / core_price_per_hour / max(rate, _RATE_MIN) * 1e6


class Usage:
    """How long a device was there for the stage, and how much of that it was busy."""

    def __init__(self) -> None:
        self._held_since: float | None = None
        self._held_s = 0.0
        self._busy_s = 0.0

    def hold(self, now: float) -> None:
        """From now on the device is paid for."""
        if self._held_since is None:
            self._held_since = now

    def let_go(self, now: float) -> None:
        if self._held_since is not None:
            self._held_s += now - self._held_since
            self._held_since = None

    def worked(self, seconds: float) -> None:
        self._busy_s += seconds

    def idle_share(self, now: float, servers: int) -> float:
        """The part of the held time that was idle, 0 where it was never held."""
        held = self._held_s + (now - self._held_since if self._held_since is not None else 0.0)
        return max(0.0, 1.0 - self._busy_s / (held * servers)) if held > 0.0 else 0.0
