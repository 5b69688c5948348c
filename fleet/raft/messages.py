"""Raft's messages on the wire, in msgpack; only messages that pysyncobj expects pass.

The library sends pickled dicts and trusts its input. This module defines the fields and types of each kind of
message, and refuses a whole message if one field is wrong.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgpack  # type: ignore[import-untyped]

from fleet.raft.identity import Standing
from fleet.raft.journal import Entry

Message: TypeAlias = dict[str, Any]
"""A message in the form of pysyncobj: a dict whose ``type`` determines the other keys."""

REGULAR: Final = b"\x00"
NO_OP: Final = b"\x01"
"""First byte of a command in the log. The library has two more kinds and unpickles both: refused."""

MAX_COMMAND_BYTES: Final = 1 << 17
_MAX_INT: Final = 1 << 62

KINDS_FROM_VOTERS: Final = frozenset(
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
KINDS_FROM_OBSERVERS: Final = frozenset({"next_node_idx", "apply_command"})

KINDS_WITH_STANDING: Final = frozenset(
    {"request_vote", "response_vote", "append_entries", "next_node_idx", "rejoin_answer"}
)
"""Messages between voters that carry ``standing``, the state of the sender's journal. A release before 0.3.0
does not send the field and ignores it."""

_PLAIN_FIELDS: Final[dict[str, dict[str, type]]] = {
    "request_vote": {"term": int, "last_log_index": int, "last_log_term": int},
    "response_vote": {"term": int},
    "next_node_idx": {"term": int, "next_node_idx": int, "reset": bool, "success": bool},
    "apply_command": {"command": bytes},
    # The fleet's own messages, which the library does not get: see rejoin.py. A rejoin_answer with an empty
    # reset answers no question. Every release accepts it, and it carries the standing.
    "rejoin": {"reset": str},
    "rejoin_answer": {"reset": str, "term": int, "last_log_index": int, "leads": bool, "rejoining": bool},
    # Sent only to voters that have stated their journal: see memory.py.
    "distrusted": {"journal_id": str, "starts": int, "life": str},
}


class MalformedMessage(ValueError):
    """A payload that is not a message of the fleet's Raft."""


def encode_message(message: Message) -> bytes:
    payload: bytes = msgpack.packb(message)
    return payload


def decode_message(payload: bytes) -> Message:
    """Read and check one message.

    Returns: a dict with exactly the keys of its type, and ``standing`` if the message has one
    Raises:  MalformedMessage: the payload is anything else
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
        raise MalformedMessage(f"unknown type {kind!r}")
    checked: Message = {"type": kind}
    for name, expected in _PLAIN_FIELDS[kind].items():
        checked[name] = _field(message, name, expected)
    if kind == "apply_command":
        _command(checked["command"], REGULAR)
    return _with_standing(checked, message)


def _with_standing(checked: Message, message: Message) -> Message:
    if checked["type"] in KINDS_WITH_STANDING and "standing" in message:
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
    if "transmission" in message:  # pickled parts of an entry that is larger than any command of the fleet
        raise MalformedMessage("append_entries has a part of an entry; this fleet sends whole entries only")
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
                        f"entry {entry_index} of term {entry_term} cannot follow entry {index} of term {term}"
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
        raise MalformedMessage(f"unknown kind of command {command[:1]!r}")
    if len(command) > MAX_COMMAND_BYTES:
        raise MalformedMessage(f"command of {len(command)} bytes is above {MAX_COMMAND_BYTES}")


def _field(message: Message, name: str, expected: type) -> Any:
    value: Any = message.get(name)
    if type(value) is not expected:  # refuses True for int, which isinstance accepts
        raise MalformedMessage(
            f"{message.get('type')!r}: {name} is {type(value).__name__}, expected {expected.__name__}"
        )
    if isinstance(value, int) and not 0 <= value < _MAX_INT:
        raise MalformedMessage(f"{message.get('type')!r}: {name} {value} is out of range")
    return value
