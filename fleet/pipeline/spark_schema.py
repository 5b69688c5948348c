"""Derives Spark schemas from dataclasses, so that each event is defined once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

_SPARK_TYPES: Final = {int: "bigint", str: "string", bool: "boolean", float: "double"}


def ddl_of(kind: type[Any]) -> str:
    """Return columns for a dataclass, such as ``"id string, owners array<string>"``.

    Raises: TypeError: no column type can hold a field.
    """
    hints = get_type_hints(kind)
    return ", ".join(f"`{each.name}` {_type_of(hints[each.name])}" for each in fields(kind))


def required_fields(kind: type[Any]) -> tuple[str, ...]:
    """Return the fields that an event must have, and that must not be null."""
    hints = get_type_hints(kind)
    return tuple(
        each.name
        for each in fields(kind)
        if each.default is MISSING
        and each.default_factory is MISSING
        and NoneType not in get_args(hints[each.name])
    )


def plain_fields(kind: type[Any]) -> dict[str, type[Any]]:
    """Return field → int, str, bool or float. Raises: TypeError: a field has another type."""
    hints = get_type_hints(kind)
    types = {name: plain for plain, name in _SPARK_TYPES.items()}
    found = {each.name: types.get(_type_of(hints[each.name])) for each in fields(kind)}
    for name, plain in found.items():
        if plain is None:
            raise TypeError(f"{kind.__name__}.{name} must be int, str, bool or float, not {hints[name]!r}")
    return {name: plain for name, plain in found.items() if plain is not None}


def _type_of(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (inner,) = (each for each in arguments if each is not NoneType)
        return _type_of(inner)
    if origin is tuple:
        return f"array<{_type_of(arguments[0])}>"
    if origin is Mapping:
        return f"map<string, {_type_of(arguments[1])}>"  # the keys of a JSON object are strings
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return f"struct<{', '.join(f'`{each.name}`: {_type_of(hints[each.name])}' for each in fields(hint))}>"
    if origin is Literal:
        return _SPARK_TYPES[type(arguments[0])]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _type_of(type(next(iter(hint)).value))
    plain = getattr(hint, "__supertype__", hint)  # of a NewType
    if plain not in _SPARK_TYPES:
        raise TypeError(f"no column can hold {hint!r}")
    return _SPARK_TYPES[plain]
