"""Settings of devices and prices from flags, environment and a file, and the look for devices that may be here."""

from __future__ import annotations

import argparse
from typing import Final

from millstream.gpu_offload.availability import cuda_devices
from millstream.gpu_offload.device_choice import check_device
from millstream.gpu_offload.offload_settings import OffloadSettings
from millstream.processor.errors import SettingsError
from millstream.processor.setting_sources import TEXT, Kind, Sources, one_of

_DEFAULTS: Final = OffloadSettings()


def _parse_price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < 1e9:
        raise ValueError("it must be a price, 0 or more, in the same currency as the others")
    return price


PRICE: Final[Kind[float]] = Kind(_parse_price, (int, float), "a price")


def add_offload_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags. Their values are texts, to be checked together with those of other sources."""
    parser.add_argument(
        "--devices",
        metavar="DEVICES",
        help="devices for offload stages: auto looks for GPUs, none uses none, simulated:fixed_us=100,event_us=0.3 "
        "has one that computes on the CPU and takes so long; several with ';' between (default: auto)",
    )
    parser.add_argument(
        "--price-cpu-core-hour",
        metavar="PRICE",
        help=f"what a CPU core costs for an hour, in any currency (default: {_DEFAULTS.price_cpu_core_hour:g})",
    )
    parser.add_argument(
        "--price-gpu-hour",
        metavar="PRICE",
        help=f"what a GPU costs for an hour, in the same currency (default: {_DEFAULTS.price_gpu_hour:g})",
    )
    parser.add_argument(
        "--gpu-charge",
        metavar="HOW",
        help="leased: a GPU costs its price for as long as it is used at all; share: it is paid for anyway, and only "
        "the time in which it is busy counts (default: leased)",
    )


def read_offload_settings(sources: Sources, workers: int) -> OffloadSettings:
    """The settings; what is wrong with them is noted in the sources."""
    chosen = sources.value("devices", TEXT, "auto") or "none"
    cpu = sources.value("price_cpu_core_hour", PRICE, _DEFAULTS.price_cpu_core_hour)
    gpu = sources.value("price_gpu_hour", PRICE, _DEFAULTS.price_gpu_hour)
    charge = sources.value("gpu_charge", one_of("leased", "share"), _DEFAULTS.gpu_charge)
    devices: tuple[str, ...] = ()
    why = ""
    try:
        devices, why = devices_from(chosen)
    except SettingsError as error:
        sources.mistakes.extend(f"devices: {mistake}" for mistake in error.mistakes)
    return OffloadSettings(
        devices=devices,
        why=why,
        price_cpu_core_hour=_DEFAULTS.price_cpu_core_hour if cpu is None else cpu,
        price_gpu_hour=_DEFAULTS.price_gpu_hour if gpu is None else gpu,
        gpu_charge="share" if charge == "share" else "leased",
        workers=workers,
    )


def devices_from(chosen: str) -> tuple[tuple[str, ...], str]:
    """The devices that `--devices` means, and where there are none, why. Raises SettingsError."""
    if chosen == "none":
        return (), "devices are switched off (devices = none)"
    if chosen == "auto":
        found = cuda_devices()
        return found.devices, found.why
    devices = tuple(part.strip() for part in chosen.split(";") if part.strip())
    for device in devices:
        check_device(device)
    return devices, ""
