"""Functions by name: how the device's process, which is a program of its own, comes by a user's functions.

A module is imported again under its own name. Two kinds cannot be: the file that `millstream run` loads, and the
program that embeds a pipeline (`__main__`). These are loaded from their files, under the name of the former, and under
`__mp_main__` as multiprocessing does it, so that `if __name__ == "__main__"` holds back what is not to run twice.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from millstream.gpu_offload.protocol import FunctionReference
from millstream.processor.errors import MillstreamError

_MAIN: Final = "__main__"
_LOADED_MAIN: Final = "__mp_main__"
_APP: Final = "millstream_app"


class NotByNameError(MillstreamError):
    """A function cannot be loaded by its name; the message says which, why, and what helps."""


def reference_to(function: Any, form: str) -> FunctionReference:
    """How another process finds this function. `form` is what it is to the stage, for the message.

    Raises NotByNameError for lambdas, functions within functions, and objects without a name.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or "<" in name or _found(sys.modules.get(module), name) is not function:
        shown = name or f"a {type(function).__name__}"
        raise NotByNameError(
            f"{form}= is {shown}, which the device's process cannot load by name: "
            "define it with def at the top level of a module"
        )
    return FunctionReference(*_place(sys.modules[module], form), name)


def load(reference: FunctionReference) -> Any:
    """The function itself. Raises NotByNameError where it is not there, and whatever its module raises."""
    module = _from_file(reference.module, reference.file) if reference.file else _imported(reference)
    found = _found(module, reference.name)
    if found is None:
        raise NotByNameError(f"{reference.file or reference.module} has no {reference.name} in the device's process")
    return found


def extend_path(places: Iterable[str]) -> None:
    """Look for modules where the worker does as well, after the places that are known."""
    sys.path.extend(place for place in places if place not in sys.path)


def _place(module: ModuleType, form: str) -> tuple[str, str]:
    if module.__name__ not in (_MAIN, _APP, _LOADED_MAIN):
        return module.__name__, ""
    spec = getattr(module, "__spec__", None)
    if module.__name__ == _MAIN and spec is not None:
        # Begun with `python -m`: it has a name under which it can be imported.
        return spec.name, ""
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        raise NotByNameError(
            f"{form}= was written where there is no file to load it from: put it into a module of its own"
        )
    return (_APP if module.__name__ == _APP else _LOADED_MAIN), str(Path(file).resolve())


def _imported(reference: FunctionReference) -> ModuleType:
    try:
        return importlib.import_module(reference.module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{reference.module}.".startswith(f"{error.name}."):
            raise NotByNameError(f"there is no module {reference.module} in the device's process") from error
        raise


def _from_file(name: str, file: str) -> ModuleType:
    known = sys.modules.get(name)
    if known is not None and known.__file__ == file:
        return known
    directory = str(Path(file).parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise NotByNameError(f"{file} cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look a type's module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _found(module: ModuleType | None, name: str) -> Any:
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:
        return None
