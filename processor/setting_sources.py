"""Settings from arguments, environment and a TOML file: looked up once, with every mistake collected.

A setting has one name in three spellings: `--drain-timeout-s`, `MILLSTREAM_DRAIN_TIMEOUT_S` and `drain_timeout_s` in
the file. Arguments win over the environment, that over the file, and that over the default. Secrets have no argument,
since a process list shows those: they come from a file that `<name>_file` names, from the environment or from the TOML
file, and appear in no message and no output.
"""

from __future__ import annotations

import argparse
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from millstream.processor.errors import SettingsError

T = TypeVar("T")

PREFIX: Final = "MILLSTREAM_"
MASK: Final = "********"
# What is less alike than this is taken for somebody else's variable: container platforms put many into an environment.
_LIKENESS_MIN: Final = 0.8
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_WORDS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """What a setting's values are: `parse` makes one of a text, or raises ValueError with the remedy.

    `in_file` are the types that TOML may give, and `described` says so.
    """

    parse: Callable[[str], T]
    in_file: tuple[type, ...]
    described: str


def whole(least: int, most: int | None = None) -> Kind[int]:
    """A whole number within bounds."""
    bounds = f"a whole number from {least} to {most}" if most is not None else f"a whole number, at least {least}"

    def parse(text: str) -> int:
        digits = text.removeprefix("-")
        number = int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else least - 1
        if number < least or (most is not None and number > most):
            raise ValueError(f"it must be {bounds}")
        return number

    return Kind(parse, (int,), bounds)


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise ValueError("it must be a number of seconds above 0")
    return seconds


def _parse_word(text: str) -> bool:
    try:
        return _WORDS[text.lower()]
    except KeyError:
        raise ValueError(f"use one of {', '.join(_WORDS)}") from None


def _parse_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("use up to 100 letters, digits, '.', '_' and '-'")
    return text


def _parse_names(text: str) -> str:
    return ",".join(_parse_name(name.strip()) for name in text.split(",")) if text else ""


def one_of(*choices: str) -> Kind[str]:
    """One of a few words."""

    def parse(text: str) -> str:
        if text not in choices:
            close = difflib.get_close_matches(text, choices, 1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"use one of {', '.join(choices)}{meant}")
        return text

    return Kind(parse, (str,), f"one of {', '.join(choices)}")


TEXT: Final[Kind[str]] = Kind(str, (str,), "a text")
LIST: Final[Kind[str]] = Kind(str, (str, list), "a text, or a list of texts")
NAME: Final[Kind[str]] = Kind(_parse_name, (str,), "a name")
NAMES: Final[Kind[str]] = Kind(_parse_names, (str, list), "names, or a list of them")
PATH: Final[Kind[Path]] = Kind(Path, (str,), "a text")
SECONDS: Final[Kind[float]] = Kind(_parse_seconds, (int, float), "a number of seconds")
SWITCH: Final[Kind[bool]] = Kind(_parse_word, (bool,), "true or false")


@dataclass(frozen=True, slots=True)
class Effective:
    """A setting as it is in effect, and where it comes from. `value` is None where it is not set."""

    name: str
    value: object
    origin: str
    is_secret: bool = False

    @property
    def shown(self) -> str:
        """The value as TOML would have it; a secret's mask."""
        return toml_text(MASK if self.is_secret and self.value is not None else self.value)


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """What a TOML file says. `mistakes` are about the file as a whole."""

    path: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    mistakes: tuple[str, ...] = ()

    @staticmethod
    def read(path: Path) -> SettingsFile:
        """The file, or the reason why it cannot be read as its mistake."""
        try:
            return SettingsFile(path, tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            reason = error.strerror or type(error).__name__
        except UnicodeDecodeError:
            reason = "it is not UTF-8 text"
        except tomllib.TOMLDecodeError as error:
            reason = f"it is not TOML: {error}"
        return SettingsFile(path, mistakes=(f"the settings file {str(path)!r} cannot be read: {reason}",))


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """Add the flag that names a TOML file."""
    parser.add_argument(
        "--config", metavar="TOML", help="settings from a file, by their names in it such as drain_timeout_s = 30"
    )


@dataclass(frozen=True, slots=True)
class _Given:
    """A value that somebody gave: a flag's or variable's text, a flag's value, or what TOML made of a key."""

    value: object
    origin: str
    where: str
    is_in_file: bool = False


class Sources:
    """The three places. Ask for every setting, then call `check`."""

    def __init__(self, arguments: argparse.Namespace, environ: Mapping[str, str]) -> None:
        self._arguments = vars(arguments)
        self._environ = environ
        self.mistakes: list[str] = []
        self.effective: list[Effective] = []
        config = self._arguments.get("config") or environ.get(f"{PREFIX}CONFIG") or None
        self._file = SettingsFile.read(Path(str(config))) if config is not None else None
        if self._file is not None:
            self.mistakes.extend(self._file.mistakes)

    def value(self, name: str, kind: Kind[T], default: T | None = None, *, argument: str | None = None) -> T | None:
        """The setting; the default where nobody gave one, or where what was given is a mistake, which is noted.

        `argument` is how people know its argument, where that is no flag.
        """
        given = next(self._given(name, argument), None)
        value, origin = default, "default"
        if given is not None:
            origin = given.origin
            try:
                value = _converted(given, kind)
            except ValueError as error:
                self.mistakes.append(f"{given.where}: {error}")
        self.effective.append(Effective(name, value, origin if value is not None else "not set"))
        return value

    def secret(self, name: str) -> str | None:
        """The secret of the first place that has one; in each, a file that is named comes first."""
        file = next(self._given(f"{name}_file"), None)
        direct = next(self._given(name), None)
        value, origin = None, "not set"
        if direct is not None and file is not None and direct.is_in_file and file.is_in_file:
            self.mistakes.append(
                f"{direct.origin}: {name} = {MASK!r} and {name}_file = {file.value!r} contradict each other; keep one"
            )
        elif file is not None and (direct is None or direct.is_in_file or not file.is_in_file):
            value, origin = self._file_secret(name, file), f"file named by {file.origin}"
        elif direct is not None:
            origin = direct.origin
            if isinstance(direct.value, str):
                value = direct.value
            else:
                self.mistakes.append(f"{direct.origin}: {name} must be a text")
        self.effective.append(Effective(name, value, origin, is_secret=True))
        return value

    def _file_secret(self, name: str, given: _Given) -> str | None:
        try:
            path = _converted(given, PATH)
            return path.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            self.mistakes.append(f"{name}_file {str(given.value)!r} cannot be read: {reason}")
        except ValueError as error:
            self.mistakes.append(f"{given.where}: {error}")
        return None

    def _given(self, name: str, argument: str | None = None) -> Iterator[_Given]:
        """What was given for the name, the place that wins first."""
        flag, variable = argument or "--" + name.replace("_", "-"), PREFIX + name.upper()
        if (value := self._arguments.get(name)) is not None:
            yield _Given(value, flag, f"{flag} {str(value)!r}")
        if text := self._environ.get(variable):
            yield _Given(text, variable, f"{variable}={text!r}")
        if self._file is not None and name in self._file.values:
            value = self._file.values[name]
            yield _Given(value, str(self._file.path), f"{self._file.path}: {name} = {toml_text(value)}", True)

    def note_unknown(self) -> None:
        """Note keys of the file, and variables much like a setting's, that nobody asked for. The last call but one."""
        names = {effective.name for effective in self.effective}
        names |= {f"{effective.name}_file" for effective in self.effective if effective.is_secret}
        if self._file is not None:
            for key in self._file.values:
                if key not in names:
                    self.mistakes.append(f"{self._file.path}: unknown key {key!r}{_meant(key, names, 0.6)}")
        for variable in self._environ:
            key = variable.removeprefix(PREFIX).lower()
            if variable.startswith(PREFIX) and key not in names | {"config"} and _alike(key, names, _LIKENESS_MIN):
                meant = _alike(key, names, _LIKENESS_MIN)[0]
                self.mistakes.append(f"unknown variable {variable}; did you mean {PREFIX}{meant.upper()}?")

    def check(self, subject: str) -> None:
        """Raise SettingsError with every mistake, if there is one."""
        if self.mistakes:
            raise SettingsError(subject, self.mistakes)


def _converted(given: _Given, kind: Kind[T]) -> T:
    value = given.value
    if given.is_in_file:
        if not isinstance(value, kind.in_file) or (isinstance(value, bool) and bool not in kind.in_file):
            raise ValueError(f"it must be {kind.described}")
        if isinstance(value, list):
            if not all(isinstance(item, str) for item in value):
                raise ValueError(f"it must be {kind.described}")
            value = ",".join(value)
    # A switch's flag has no text.
    return kind.parse(value if isinstance(value, str) else str(value))


def _alike(key: str, names: Iterable[str], least: float) -> Sequence[str]:
    return difflib.get_close_matches(key, sorted(names), 1, least)


def _meant(key: str, names: Iterable[str], least: float) -> str:
    close = _alike(key, names, least)
    return f"; did you mean {close[0]!r}?" if close else "; `millstream run --show-settings` lists those that there are"


def toml_text(value: object) -> str:
    """A value as TOML would have it, for people to read."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_text, value))}]"
    if isinstance(value, dict):
        return "{...}"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def table(effective: Sequence[Effective]) -> str:
    """The settings as a TOML file with their origins, without a secret."""
    lines = [(f"# {e.name} =" if e.value is None else f"{e.name} = {e.shown}", e.origin) for e in effective]
    width = min(60, max((len(line) for line, _ in lines), default=0))
    return "".join(f"{line:<{width}}  # {origin}\n" for line, origin in lines)
