"""Renamed JSON keys: a document keeps the old key next to the new one for one release.

Scripts, and members and commands of the previous release, read the old keys. Only ``RENAMED_KEYS`` names the
old keys: all other code uses the new names.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

RENAMED_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "condition": "state",
        "feasible": "served",
        "fix": "mend",  # words: the old key
        "raft_error": "raft_trouble",
        "rate_sources": "counted",
        "reported_by": "told_by",  # words: the old key
        "tolerates": "survives",
    }
)
"""New key → the key of 0.2.0. Deprecated: 0.3.0 writes both, 0.4.0 only the new one."""

RENAMED_WORDS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {"condition": MappingProxyType({"leaving": "draining"})}
)
"""New key → new word → the word that the old key keeps: 0.2.0 refuses a document with an unknown word."""


class RenamedKeys:
    """Base of a document (a dataclass) with fields that are in ``RENAMED_KEYS``.

    The document is written with both keys. A document without the new key is read by the old one.
    """

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        arguments: Any = handler.resolve_ref_schema(schema)
        arguments = arguments["schema"]
        for field in arguments["fields"]:
            new_key = field["name"]
            if new_key not in RENAMED_KEYS:
                continue
            old_key = RENAMED_KEYS[new_key]
            kind = field["schema"]
            while kind["type"] == "default":
                kind = kind["schema"]
            words = RENAMED_WORDS.get(new_key)
            if words is not None:
                kind, field["schema"] = _old_words(kind, words), _read_old_words(kind, words)
            field["validation_alias"] = [[new_key], [old_key]]
            arguments.setdefault("computed_fields", []).append(core_schema.computed_field(old_key, kind))
        return schema

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described = handler(schema)
        properties = handler.resolve_ref_schema(described)["properties"]
        for old_key in properties.keys() & set(RENAMED_KEYS.values()):
            properties[old_key].pop("readOnly", None)
            properties[old_key]["deprecated"] = True
        return described


def _old_words(kind: Any, words: Mapping[str, str]) -> CoreSchema:
    """The literal type with old words in place of new ones."""
    return core_schema.literal_schema([words.get(word, word) for word in kind["expected"]])


def _read_old_words(kind: Any, words: Mapping[str, str]) -> CoreSchema:
    """The literal type, whose old words are read as new ones."""
    new_words = {old: new for new, old in words.items()}
    return core_schema.no_info_before_validator_function(lambda word: new_words.get(word, word), kind)


def _old_value(new_key: str, words: Mapping[str, str]) -> property:
    """The attribute from which pydantic writes the old key."""
    value_of = attrgetter(new_key)
    return property(
        lambda document: words.get(value_of(document), value_of(document)) if words else value_of(document)
    )


for _new_key, _old_key in RENAMED_KEYS.items():
    setattr(RenamedKeys, _old_key, _old_value(_new_key, RENAMED_WORDS.get(_new_key, {})))
