"""What can be known about a user's function before it is called: what it takes, if it is async, what it answers."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

UNKNOWN: Any = object()
"""The answer's type where the function does not tell."""

NOTHING: Any = type(None)
"""The answer's type where the function promises None and nothing else."""

_ITERABLES = (
    collections.abc.Iterable,
    collections.abc.Iterator,
    collections.abc.Generator,
    collections.abc.Sequence,
    collections.abc.Collection,
    collections.abc.Set,
    list,
    set,
    frozenset,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """How a function is called: with the record beside the value or not, awaited or not."""

    wants_record: bool
    is_async: bool


def shape_of(function: Callable[..., Any]) -> Shape:
    """Raises TypeError, with the remedy, for a function that cannot be called with a value (and its record)."""
    if not callable(function):
        raise TypeError(f"expected a function, got {type(function).__name__}")
    if inspect.isasyncgenfunction(_inner(function)):
        raise TypeError(f"{named(function)} is an async generator; collect what it yields and return a list")
    is_async = inspect.iscoroutinefunction(_inner(function))
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return Shape(wants_record=False, is_async=is_async)  # some built-in functions do not tell
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p.name for p in positional if p.default is p.empty]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    named_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if named_only:
        raise TypeError(
            f"{named(function)} requires {', '.join(named_only)} by name, which nobody gives; set a default"
        )
    if not positional and not takes_any:
        raise TypeError(
            f"{named(function)} takes no argument; it is called with the value, or the value and its Record"
        )
    if len(required) > 2:
        raise TypeError(
            f"{named(function)} requires {len(required)} arguments ({', '.join(required)}); it is called with the "
            "value, or the value and its Record. Bind the others with functools.partial"
        )
    return Shape(wants_record=len(required) == 2, is_async=is_async)


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling the function answers a generator."""
    return inspect.isgeneratorfunction(_inner(function))


def named(function: Any) -> str:
    """The function's name, for messages."""
    return str(getattr(_inner(function), "__qualname__", type(function).__name__)).replace("<locals>.", "")


def answer_type(function: Callable[..., Any]) -> Any:
    """The type that the function's annotation promises, without None (unless that is all); `UNKNOWN` without one.

    Raises NameError where the annotation names something that cannot be found from here.
    """
    if isinstance(function, type):
        return function
    inner = _inner(function)
    raw = getattr(inner, "__annotations__", {}).get("return", UNKNOWN)
    if raw is UNKNOWN:
        return UNKNOWN
    names = _closure_names(inner)
    hint = typing.get_type_hints(inner, localns=names, include_extras=True).get("return", UNKNOWN)
    return _without_none(hint)


def promises_nothing(function: Callable[..., Any]) -> bool:
    """Whether the function's annotation says that it answers None and nothing else."""
    try:
        return answer_type(function) is NOTHING
    except NameError:
        return False


def element_type(hint: Any) -> Any:
    """The type of the values of an iterable type; `UNKNOWN` where it does not tell."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _without_none(arguments[0])
    if origin in _ITERABLES and arguments:
        return _without_none(arguments[0])
    return UNKNOWN


def _without_none(hint: Any) -> Any:
    # None stands for a tombstone, whatever the type of the other values.
    if hint is Any or hint is object or isinstance(hint, typing.TypeVar):
        return UNKNOWN
    if hint is None or hint is NOTHING:
        return NOTHING
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    others = tuple(argument for argument in typing.get_args(hint) if argument is not type(None))
    return UNKNOWN if any(other is Any for other in others) else functools.reduce(lambda a, b: a | b, others)


def _inner(function: Any) -> Any:
    """The function that carries annotations and flags, behind partials and callable objects."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return getattr(type(function), "__call__", function)  # noqa: B004  # the method itself is wanted, not a yes


def _closure_names(function: Any) -> dict[str, Any]:
    """What a nested function can see; a type that it names in its annotation alone is not among it."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or not cells:
        return {}
    found = {}
    for name, cell in zip(code.co_freevars, cells, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue  # the variable has no value yet
    return found
