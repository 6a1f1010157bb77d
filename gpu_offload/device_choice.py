"""Which device a process is to open, as a text: `cuda:0`, or `simulated:fixed_us=100,event_us=0.3,seed=7`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from millstream.processor.errors import SettingsError

if TYPE_CHECKING:
    from millstream.gpu_offload.backend import Backend
    from millstream.gpu_offload.service_law import ServiceLaw

_NUMBERS: Final = {
    "fixed_us": 100.0,
    "event_us": 0.3,
    "byte_ns": 0.0,
    "spread": 0.0,
    "tail_share": 0.0,
    "tail_factor": 1.0,
    "seed": 0.0,
}
_EXAMPLE: Final = "use simulated:fixed_us=100,event_us=0.3"
_EXAMPLES: Final = "use cuda:0, or simulated:fixed_us=100,event_us=0.3"


def check_device(text: str) -> None:
    """Raises SettingsError where the text names no device; opens none."""
    kind, _, rest = text.partition(":")
    if kind == "simulated":
        _simulation(text, rest)
    elif kind != "cuda" or not (rest or "0").isdecimal():
        raise SettingsError("the device cannot be chosen", [f"{text!r} is no device; {_EXAMPLES}"])


def open_device(text: str) -> Backend:
    """Open the device, which for a real one makes a CUDA context. Raises SettingsError, UnavailableDeviceError."""
    check_device(text)
    kind, _, rest = text.partition(":")
    if kind == "simulated":
        return _simulated(*_simulation(text, rest))
    from millstream.gpu_offload.cuda_backend import CudaBackend

    return CudaBackend(int(rest or 0))


def law_from(text: str) -> ServiceLaw:
    """How long the simulated device of this text takes. Raises SettingsError where it is none."""
    kind, _, rest = text.partition(":")
    if kind != "simulated":
        raise SettingsError("the device cannot be chosen", [f"{text!r} has no known times; {_EXAMPLE}"])
    return _law(_simulation(text, rest)[0])


def _law(numbers: dict[str, float]) -> ServiceLaw:
    from millstream.gpu_offload.service_law import ServiceLaw

    return ServiceLaw(
        fixed_s=numbers["fixed_us"] / 1e6,
        per_event_s=numbers["event_us"] / 1e6,
        per_byte_s=numbers["byte_ns"] / 1e9,
        spread=numbers["spread"],
        tail_share=numbers["tail_share"],
        tail_factor=numbers["tail_factor"],
    )


def _simulated(numbers: dict[str, float], faults: Path | None) -> Backend:
    from millstream.gpu_offload.simulated_backend import SimulatedBackend

    return SimulatedBackend(_law(numbers), int(numbers["seed"]), faults)


def _simulation(text: str, rest: str) -> tuple[dict[str, float], Path | None]:
    numbers, faults = dict(_NUMBERS), None
    mistakes = []
    for part in filter(None, rest.split(",")):
        name, _, value = part.partition("=")
        if name == "faults":
            faults = Path(value)
        elif name not in _NUMBERS:
            mistakes.append(f"{name!r} is unknown in {text!r}; it knows {', '.join([*_NUMBERS, 'faults'])}")
        else:
            try:
                numbers[name] = float(value)
            except ValueError:
                mistakes.append(f"{part!r} in {text!r} has no number")
            else:
                if not numbers[name] >= 0:
                    mistakes.append(f"{part!r} in {text!r} must not be less than 0")
    if mistakes:
        raise SettingsError("the device cannot be chosen", mistakes)
    return numbers, faults
