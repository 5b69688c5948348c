"""Joins the answers of all brokers to ListGroups and ListTransactions.

Source: ListGroupsResponse.json, ListTransactionsResponse.json: in both, the list is the last field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fleet.core.errors import MalformedFrame
from fleet.proxy.wire._tables import APIS
from fleet.proxy.wire.primitives import (
    OUT_OF_BYTES,
    encode_varint,
    pack_int32,
    read_int16,
    read_int32,
    read_varint,
)

LIST_GROUPS: Final = 16
LIST_TRANSACTIONS: Final = 66


def merge(key: int, version: int, responses: Sequence[bytes]) -> bytes:
    """Return the whole response that lists what all responses list; the first one with an error, if any.

    Args:   responses: at least one, of one request, without size fields.
    Raises: MalformedFrame: a response is not one to such a request
    """
    is_flexible = version >= APIS[key].first_flexible
    total, elements, head = 0, b"", b""
    for response in responses:
        try:
            error_at = _error_at(key, version, is_flexible)
            (error_code,) = read_int16(response, error_at)
            if error_code:
                return pack_int32(len(response)) + response
            list_at = _list_at(key, response, error_at + 2)
            count, pos = _read_count(response, list_at, is_flexible)
        except OUT_OF_BYTES as error:
            detail = f"response of {len(response)} bytes to API key {key} is too short"
            raise MalformedFrame("broker", detail) from error
        if is_flexible and response[-1]:
            raise MalformedFrame("broker", f"response to API key {key} has unknown tagged fields")
        head = head or response[:list_at]
        total += count
        elements += response[pos : len(response) - is_flexible]
    encoded = encode_varint(total + 1) if is_flexible else pack_int32(total)
    merged = head + encoded + elements + (b"\0" if is_flexible else b"")
    return pack_int32(len(merged)) + merged


def _error_at(key: int, version: int, is_flexible: bool) -> int:
    """Where the error code is: behind the correlation id, the tags of the header, and the throttle time."""
    has_throttle = key == LIST_TRANSACTIONS or version > 0
    return 4 + is_flexible + (4 if has_throttle else 0)


def _list_at(key: int, response: bytes, pos: int) -> int:
    """Where the list begins; ListTransactions names unknown states before it."""
    if key == LIST_TRANSACTIONS:
        count, pos = _read_count(response, pos, is_flexible=True)
        for _ in range(count):
            length, pos = read_varint(response, pos)
            pos += length - 1
    return pos


def _read_count(response: bytes, pos: int, is_flexible: bool) -> tuple[int, int]:
    if is_flexible:
        count, pos = read_varint(response, pos)
        return max(count - 1, 0), pos
    (count,) = read_int32(response, pos)
    return max(int(count), 0), pos + 4
