"""Whether there may be NVIDIA devices, told from files, and which device a text names."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.gpu_offload.availability import Availability, cuda_devices
from millstream.gpu_offload.backend import UnavailableDeviceError
from millstream.gpu_offload.device_choice import check_device, open_device
from millstream.processor.errors import SettingsError

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12.2\n"
OPEN_VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}.65.06  Release Build  (dvs-builder@U16)\n"
CUDA_12 = {"cupy-cuda12x": "14.2.0"}
CUDA_13 = {"cupy-cuda13x": "14.2.0"}


def machine(root: Path, driver: int | None, devices: int, text: str = VERSION) -> Path:
    (root / "dev").mkdir()
    for name in ["nvidiactl", "nvidia-uvm", "null", *(f"nvidia{number}" for number in range(devices))]:
        (root / "dev" / name).touch()
    if driver is not None:
        (root / "proc/driver/nvidia").mkdir(parents=True)
        (root / "proc/driver/nvidia/version").write_text(text.format(driver))
    return root


@pytest.mark.parametrize("text", [VERSION, OPEN_VERSION])
def test_devices_with_driver_and_cupy_are_named(tmp_path: Path, text: str) -> None:
    assert cuda_devices(machine(tmp_path, 580, 2, text), CUDA_13) == Availability(("cuda:0", "cuda:1"))


@pytest.mark.parametrize(
    ("driver", "devices", "packages", "words"),
    [
        (None, 0, CUDA_12, "no NVIDIA device"),
        (None, 1, CUDA_12, "driver is not loaded"),
        (550, 0, CUDA_12, "pass it into the container"),
        (550, 1, {}, r"pip install 'millstream\[gpu-cu12\]'"),
        (580, 1, {}, r"pip install 'millstream\[gpu-cu13\]'"),
        (470, 1, CUDA_12, "driver 470 is too old for cupy-cuda12x, which needs 525"),
        (550, 1, CUDA_13, r"needs 580: update the driver, or install 'millstream\[gpu-cu12\]'"),
        (580, 1, {**CUDA_12, **CUDA_13}, "break each other"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    tmp_path: Path, driver: int | None, devices: int, packages: dict[str, str], words: str
) -> None:
    found = cuda_devices(machine(tmp_path, driver, devices), packages)
    assert found.devices == ()
    assert "\n" not in found.why
    with pytest.raises(ValueError, match=words):
        raise ValueError(found.why)


@pytest.mark.parametrize(
    "text", ["gpu", "cuda:one", "", "simulated:fixed=3", "simulated:seed=x", "simulated:spread=-1"]
)
def test_texts_that_name_no_device_are_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        check_device(text)


def test_a_simulated_device_says_its_law() -> None:
    assert "250 us a batch, 0.5 us an event" in open_device("simulated:fixed_us=250,event_us=0.5").description


def test_simulated_kernels_are_not_taken_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    with pytest.raises(UnavailableDeviceError, match="NUMBA_ENABLE_CUDASIM is set"):
        open_device("cuda:0")
