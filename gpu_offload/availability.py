"""Whether there may be NVIDIA devices here, as far as can be told from files: no CUDA, no driver is loaded for it.

This is the look of whoever might start a device's process. What only the driver can tell (is it well, does it fit, is
there a compiler) that process finds out, and says it in one line as well.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# The lowest driver for each CUDA that CuPy is built for, by the name of its package.
DRIVERS: Final[Mapping[str, int]] = {"cupy-cuda12x": 525, "cupy-cuda13x": 580}
_DEVICE: Final = re.compile(r"nvidia(\d+)")
_DRIVER: Final = re.compile(r"Kernel Module.*?\s(\d+)\.\d")


@dataclass(frozen=True, slots=True)
class Availability:
    """Devices as texts of `device_choice`, such as `cuda:0`. Where there are none, why, in one line."""

    devices: tuple[str, ...]
    why: str = ""


def cuda_devices(root: Path = Path("/"), packages: Mapping[str, str] | None = None) -> Availability:
    """The devices that may be used. `packages` are the installed ones of DRIVERS with their versions."""
    packages = _installed() if packages is None else packages
    numbers = sorted(int(match[1]) for path in _entries(root / "dev") if (match := _DEVICE.fullmatch(path.name)))
    trouble = _trouble(root, packages, bool(numbers))
    return Availability((), trouble) if trouble else Availability(tuple(f"cuda:{number}" for number in numbers))


def _trouble(root: Path, packages: Mapping[str, str], has_devices: bool) -> str:
    driver = _driver(root)
    if driver is None and not has_devices:
        return "there is no NVIDIA device, or no driver for it (no /dev/nvidia0, no /proc/driver/nvidia)"
    if driver is None:
        return "there is an NVIDIA device, but its driver is not loaded (no /proc/driver/nvidia/version)"
    if not has_devices:
        return (
            "the NVIDIA driver is loaded, but no device is visible here (no /dev/nvidia0): pass it into the container"
        )
    if not packages:
        extra = "gpu-cu13" if driver >= DRIVERS["cupy-cuda13x"] else "gpu-cu12"
        return f"CuPy is not installed: pip install 'millstream[{extra}]'"
    if len(packages) > 1:
        return f"{' and '.join(sorted(packages))} are both installed and break each other: remove one"
    (package,) = packages
    if driver < DRIVERS[package]:
        return (
            f"the NVIDIA driver {driver} is too old for {package}, which needs {DRIVERS[package]}: update the driver"
            + (", or install 'millstream[gpu-cu12]'" if package == "cupy-cuda13x" and driver >= 525 else "")
        )
    return ""


def _driver(root: Path) -> int | None:
    """The driver's major version; None where none is loaded."""
    try:
        found = _DRIVER.search((root / "proc/driver/nvidia/version").read_text())
    except OSError:
        return None
    return int(found[1]) if found else None


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _installed() -> dict[str, str]:
    found = {}
    for package in DRIVERS:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
