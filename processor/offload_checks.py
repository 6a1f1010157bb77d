"""What can be wrong with an offload stage's functions and numbers. Every check answers messages; none raises."""

from __future__ import annotations

import inspect
import sys
from typing import Any, Final

from millstream.processor.checks import choice_mistake, whole_number_mistake
from millstream.processor.graph import OffloadSpec
from millstream.processor.offloading import Equality, Offloadable
from millstream.processor.signatures import is_generator, named

LATENCY_BUDGET_MS_MAX: Final = 60_000
MEMORY_MB_MAX: Final = 1 << 20


def offload_mistakes(spec: OffloadSpec) -> list[str]:
    """What is wrong with an offload stage by itself, whatever it reads."""
    budget: Any = spec.latency_budget_ms
    exclusive: Any = spec.exclusive
    found = [
        choice_mistake("device", spec.device, ("optional", "required")),
        whole_number_mistake("memory_mb", spec.memory_mb, 0, MEMORY_MB_MAX),
    ]
    if not isinstance(budget, int | float) or isinstance(budget, bool) or not 0 < budget <= LATENCY_BUDGET_MS_MAX:
        found.append(
            f"latency_budget_ms={budget!r} must be a number of milliseconds above 0, up to {LATENCY_BUDGET_MS_MAX}"
        )
    if not isinstance(exclusive, bool):
        found.append(f"exclusive={exclusive!r} must be True or False")
    return [*(one for one in found if one is not None), *_form_mistakes(spec.offloadable, spec.device)]


def _form_mistakes(given: Offloadable, device: Any) -> list[str]:
    found = []
    if given.cpu is None and given.array is None:
        found.append("the Offloadable has neither cpu= nor array=; one of them is the reference and the fallback")
    if device == "required" and given.array is None and given.gpu is None:
        found.append("device='required' needs a form that a device can run: Offloadable(array=...) or (gpu=...)")
    with_resident = 0 if given.resident is None else 1
    found += _function_mistakes("cpu", given.cpu, 1 + with_resident, is_shipped=False)
    found += _function_mistakes("array", given.array, 2 + with_resident, is_shipped=True)
    found += _function_mistakes("gpu", given.gpu, with_resident, is_shipped=True)
    found += _function_mistakes("resident", given.resident, 0, is_shipped=True)
    version: Any = given.version
    if not isinstance(version, str):
        found.append(f"version={version!r} must be a text; it changes when the resident arrays do")
    return found + _equality_mistakes(given.equality)


_CALLED_WITH: Final = {
    "cpu": ("columns",),
    "array": ("xp", "columns"),
    "gpu": (),
    "resident": (),
}


def _function_mistakes(form: str, function: Any, arguments: int, *, is_shipped: bool) -> list[str]:
    """`is_shipped`: a device's process has to find the function by its name."""
    if function is None:
        return []
    if not callable(function):
        return [f"{form}={function!r} is not a function"]
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return [f"{named(function)} is async; offload functions are plain functions"]
    if is_generator(function):
        return [f"{named(function)} is a generator function; offload functions return a dict of columns"]
    found = []
    if not _takes(function, arguments):
        given = _CALLED_WITH[form]
        names = [*given, "resident"][:arguments] if arguments else []
        found.append(f"{form}: {named(function)} is called as {named(function)}({', '.join(names)})")
    if is_shipped and not is_importable(function):
        found.append(
            f"{form}: {named(function)} cannot be imported by its name, which a device's process has to do; "
            "define it with def at the top level of its module"
        )
    return found


def _takes(function: Any, arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:
        return True  # some built-in functions do not tell
    return True


def is_importable(function: Any) -> bool:
    """Whether the function's module has it under the function's own name."""
    found: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    for part in getattr(function, "__qualname__", "<lambda>").split("."):
        found = getattr(found, part, None)
    return found is function


def _equality_mistakes(equality: Any) -> list[str]:
    if not isinstance(equality, Equality):
        return [f"equality={equality!r} must be an Equality(relative, absolute)"]
    if not (0 <= equality.relative < float("inf") and 0 <= equality.absolute < float("inf")):
        return [f"equality={equality!r} must have finite numbers, 0 or more"]
    return []
