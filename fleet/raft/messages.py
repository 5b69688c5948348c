"""Raft's messages on the wire: msgpack, and nothing that pysyncobj would not expect gets through.

The library sends pickled dicts and trusts what it receives. Here each kind of message has its fields and
their types, and is refused as a whole where they do not fit.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgpack  # type: ignore[import-untyped]

from fleet.raft.identity import Standing
from fleet.raft.journal import Entry

Message: TypeAlias = dict[str, Any]
"""A message as pysyncobj makes and takes it: a dict whose ``type`` says which other keys there are."""

REGULAR: Final = b"\x00"
NO_OP: Final = b"\x01"
"""First byte of a command in the log. The library knows two more kinds, and unpickles both: never let in."""

MAX_COMMAND_BYTES: Final = 1 << 17
_MAX_INT: Final = 1 << 62

FROM_VOTERS: Final = frozenset(
    {
        "request_vote",
        "response_vote",
        "append_entries",
        "next_node_idx",
        "apply_command",
        "rejoin",
        "rejoin_answer",
        "distrusted",
    }
)
FROM_OBSERVERS: Final = frozenset({"next_node_idx", "apply_command"})

WITH_STANDING: Final = frozenset(
    {"request_vote", "response_vote", "append_entries", "next_node_idx", "rejoin_answer"}
)
"""What voters say to voters carries ``standing``, the state of the sender's journal. A release before 0.3.0
sends none, and leaves it out when it reads."""

_PLAIN_FIELDS: Final[dict[str, dict[str, type]]] = {
    "request_vote": {"term": int, "last_log_index": int, "last_log_term": int},
    "response_vote": {"term": int},
    "next_node_idx": {"term": int, "next_node_idx": int, "reset": bool, "success": bool},
    "apply_command": {"command": bytes},
    # Ours, and not passed to the library: see rejoin.py. The answer to a reset without an id answers nobody:
    # every release reads it, and it carries the standing.
    "rejoin": {"reset": str},
    "rejoin_answer": {"reset": str, "term": int, "last_log_index": int, "leads": bool, "rejoining": bool},
    # Sent to voters alone that have said which journal they have: see memory.py.
    "distrusted": {"journal_id": str, "starts": int, "life": str},
}


class MalformedMessage(ValueError):
    """A payload that is none of the messages the fleet's Raft exchanges."""


def encode_message(message: Message) -> bytes:
    payload: bytes = msgpack.packb(message)
    return payload


def decode_message(payload: bytes) -> Message:
    """Read and check one message.

    Returns: a dict with exactly the keys of its type, and ``standing`` where there is one
    Raises:  MalformedMessage: anything else
    """
    try:
        message = msgpack.unpackb(payload, use_list=False)
    except Exception as error:
        raise MalformedMessage(f"not msgpack: {error}") from error
    if not isinstance(message, dict):
        raise MalformedMessage("not a map")
    kind = message.get("type")
    if kind == "append_entries":
        return _with_standing(_append_entries(message), message)
    if not isinstance(kind, str) or kind not in _PLAIN_FIELDS:
        raise MalformedMessage(f"type {kind!r}")
    checked: Message = {"type": kind}
    for name, expected in _PLAIN_FIELDS[kind].items():
        checked[name] = _field(message, name, expected)
    if kind == "apply_command":
        _command(checked["command"], REGULAR)
    return _with_standing(checked, message)


def _with_standing(checked: Message, message: Message) -> Message:
    if checked["type"] in WITH_STANDING and "standing" in message:
        try:
            checked["standing"] = Standing.unpack(message["standing"])
        except ValueError as error:
            raise MalformedMessage(f"{checked['type']!r}: {error}") from error
    return checked


def _append_entries(message: Message) -> Message:
    checked: Message = {"type": "append_entries"}
    for name in ("term", "commit_index"):
        checked[name] = _field(message, name, int)
    if "prevLogIdx" not in message:
        checked["serialized"] = _piece(message.get("serialized"))
        return checked
    if "transmission" in message:  # entries larger than any command of the fleet; pickled
        raise MalformedMessage("an entry in parts")
    for name in ("prevLogIdx", "prevLogTerm"):
        checked[name] = _field(message, name, int)
    checked["entries"] = _entries(message, checked)
    return checked


def _entries(message: Message, checked: Message) -> list[Entry]:
    values = _field(message, "entries", tuple)
    entries: list[Entry] = []
    index, term = checked["prevLogIdx"], checked["prevLogTerm"]
    for value in values:
        match value:
            case (bytes(command), int(entry_index), int(entry_term)):
                _command(command, REGULAR + NO_OP)
                if entry_index != index + 1 or not term <= entry_term <= checked["term"]:
                    raise MalformedMessage(
                        f"entry {entry_index} of term {entry_term} after {index} of term {term}"
                    )
                index, term = entry_index, entry_term
                entries.append(Entry(command, entry_index, entry_term))
            case _:
                raise MalformedMessage("an entry is not [bytes, int, int]")
    return entries


def _piece(value: object) -> tuple[bytes, bool, bool] | None:
    match value:
        case None:
            return None
        case (bytes(data), bool(first), bool(last)):
            return data, first, last
    raise MalformedMessage("a piece of a snapshot is not [bytes, bool, bool]")


def _command(command: bytes, kinds: bytes) -> None:
    if not command or command[0] not in kinds:
        raise MalformedMessage(f"a command of kind {command[:1]!r}")
    if len(command) > MAX_COMMAND_BYTES:
        raise MalformedMessage(f"a command of {len(command)} bytes")


def _field(message: Message, name: str, expected: type) -> Any:
    value: Any = message.get(name)
    if type(value) is not expected:  # not isinstance: True is no int here
        raise MalformedMessage(f"{message.get('type')!r}: {name} is {type(value).__name__}")
    if isinstance(value, int) and not 0 <= value < _MAX_INT:
        raise MalformedMessage(f"{message.get('type')!r}: {name} is {value}")
    return value
