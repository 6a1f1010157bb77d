"""Finding the pipeline in a user's program."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from millstream.processor.errors import SettingsError
from millstream.processor.pipeline import Pipeline

_MODULE_NAME = "millstream_app"


def load_pipeline(app: str) -> Pipeline:
    """The pipeline that `app` names: `app.py`, `app.py:name` or `package.module:name`.

    Without a name it is the only `Pipeline` in the file. Raises SettingsError where there is none, or several; what the
    user's own code raises at import passes through.
    """
    place, name = _split(app)
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Pipeline)}
    if name is not None:
        if name not in found:
            raise _mistake(app, f"{place} has no Pipeline named {name!r}; it has {', '.join(found) or 'none'}")
        return found[name]
    distinct = {id(pipeline): key for key, pipeline in found.items()}
    if len(distinct) != 1:
        names = ", ".join(f"{place}:{key}" for key in distinct.values())
        raise _mistake(
            app, f"{place} has several pipelines; name one: {names}" if names else f"{place} has no Pipeline"
        )
    return found[next(iter(distinct.values()))]


def _split(app: str) -> tuple[str, str | None]:
    place, colon, name = app.rpartition(":")
    if not colon or name.endswith(".py"):
        return app, None
    return place, name or None


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise _mistake(str(path), f"there is no file {path}")
    # As for a script, modules beside the file can be imported by it.
    directory = str(path.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    spec = importlib.util.spec_from_file_location(_MODULE_NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look a type's module up by name.
    sys.modules[_MODULE_NAME] = module
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Anything else is missing in the user's own imports.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise _mistake(name, f"there is no module {name!r}; a file is named with its .py") from error
        raise


def _mistake(app: str, text: str) -> SettingsError:
    return SettingsError(f"the pipeline of {app!r} cannot be loaded", [text])
