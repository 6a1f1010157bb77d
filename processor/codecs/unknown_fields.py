"""Fields that a type does not name: which those are, and how to notice them at any depth."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import msgspec
from msgspec import inspect

_OBJECT_TYPES = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_DICT_TYPES = tuple(getattr(inspect, name) for name in ("DictType", "FrozenDictType") if hasattr(inspect, name))

_KEEP_REMEDY = (
    'unknown_fields="keep" needs one Struct, dataclass or TypedDict that is written as a JSON object,'
    ' because only there it is certain which fields are named; use such a type, or "drop" or "refuse"'
)


def fields_to_keep(type_: Any) -> frozenset[str] | None:
    """The names, as they stand in JSON, of the fields that `type_` itself has, its tag included.

    None for `Any` and dicts, which take in every field, so that none is unknown.
    Raises ValueError for a type that is not one kind of object, or that refuses unknown fields itself.
    """
    info = _without_none(inspect.type_info(type_))
    if isinstance(info, (inspect.AnyType, *_DICT_TYPES)):
        return None
    if not isinstance(info, _OBJECT_TYPES):
        raise ValueError(f"{_title(type_)} cannot keep unknown fields: {_KEEP_REMEDY}")
    names = {field.encode_name for field in info.fields}
    if isinstance(info, inspect.StructType):
        if info.array_like:
            raise ValueError(f"{_title(type_)} is written as an array (array_like=True): {_KEEP_REMEDY}")
        if info.forbid_unknown_fields:
            raise ValueError(
                f'{_title(type_)} is declared with forbid_unknown_fields=True, and unknown_fields="keep" asks for the'
                " opposite: remove one of them"
            )
        if info.tag_field is not None:
            names.add(info.tag_field)
    return frozenset(names)


def refuses_all_by_itself(type_: Any) -> bool:
    """Whether no value that has an unknown field anywhere can decode as `type_`."""
    return _strict(inspect.type_info(type_), ())


def strict_shadow(type_: Any) -> Any | None:
    """A type that decodes no JSON value in which an unknown field stands, but else all that `type_` decodes.

    None if `type_` is such a type itself. Raises ValueError for types that contain themselves.
    """
    info = inspect.type_info(type_)
    return None if _strict(info, ()) else _shadow(info, ())


def _title(type_: Any) -> str:
    return getattr(type_, "__qualname__", None) or str(type_)


def _without_none(info: inspect.Type) -> inspect.Type:
    if isinstance(info, inspect.Metadata):
        return _without_none(info.type)
    if isinstance(info, inspect.UnionType):
        others = [member for member in info.types if not isinstance(member, inspect.NoneType)]
        if len(others) == 1:
            return others[0]
    return info


def parts_of(info: inspect.Type) -> tuple[inspect.Type, ...]:
    """The types of which `info` is made, one level down."""
    if isinstance(info, (*_OBJECT_TYPES, inspect.NamedTupleType)):
        return tuple(field.type for field in info.fields)
    if isinstance(info, inspect.CollectionType):
        return (info.item_type,)
    if isinstance(info, inspect.TupleType):
        return info.item_types
    if isinstance(info, _DICT_TYPES):
        return (info.key_type, info.value_type)
    if isinstance(info, inspect.UnionType):
        return info.types
    if isinstance(info, inspect.Metadata):
        return (info.type,)
    return ()


def _is_object(info: inspect.Type) -> bool:
    return isinstance(info, _OBJECT_TYPES)


def _is_among(info: inspect.Type, others: tuple[inspect.Type, ...]) -> bool:
    return any(info is other for other in others)


def _strict(info: inspect.Type, above: tuple[inspect.Type, ...]) -> bool:
    if _is_among(info, above):
        return True
    if _is_object(info) and not getattr(info, "forbid_unknown_fields", False):
        return False
    return all(_strict(part, (*above, info)) for part in parts_of(info))


def _shadow(info: inspect.Type, above: tuple[inspect.Type, ...]) -> Any:
    """A type that checks the names of fields and skips over everything else."""
    if _is_among(info, above):
        raise ValueError(
            'unknown_fields="refuse" cannot be had for a type that contains itself; declare its Structs with'
            " forbid_unknown_fields=True, which does the same"
        )
    return msgspec.Raw if _strict(info, ()) else _shape(info, (*above, info))


def _shape(info: inspect.Type, above: tuple[inspect.Type, ...]) -> Any:
    if isinstance(info, inspect.Metadata):
        return _shadow(info.type, above)
    if isinstance(info, inspect.UnionType):
        # Raw cannot stand in a union. What the type itself has already decoded is of a kind that it allows, so the
        # shadow may allow every scalar.
        nested = [_shape(member, above) for member in info.types if parts_of(member) or _is_object(member)]
        scalars: list[Any] = [None, bool, int, float, str]
        return reduce(or_, nested + scalars)
    if isinstance(info, _DICT_TYPES):
        return dict[str, _shadow(info.value_type, above)]  # type: ignore[misc]
    if isinstance(info, inspect.TupleType):
        return tuple[tuple(_shadow(item, above) for item in info.item_types)]  # type: ignore[misc]
    if isinstance(info, inspect.CollectionType):
        return list[_shadow(info.item_type, above)]  # type: ignore[misc]
    return _shadow_struct(info, above)


def _shadow_struct(info: Any, above: tuple[inspect.Type, ...]) -> Any:
    # Fields are numbered and renamed, because names in JSON need not be identifiers. All have a default: whether a
    # field may be missing has been decided by the type itself.
    places = {f"f{i}": field for i, field in enumerate(info.fields)}
    return msgspec.defstruct(
        f"Strict{info.cls.__name__}",
        [(place, _shadow(field.type, above) | msgspec.UnsetType, msgspec.UNSET) for place, field in places.items()],
        rename={place: field.encode_name for place, field in places.items()},
        tag=getattr(info, "tag", None),
        tag_field=getattr(info, "tag_field", None),
        array_like=isinstance(info, inspect.NamedTupleType) or getattr(info, "array_like", False),
        forbid_unknown_fields=True,
    )
