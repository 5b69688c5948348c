"""Joins the answers of all brokers to ListGroups and ListTransactions.

Source: ListGroupsResponse.json, ListTransactionsResponse.json: in both, the list is the last field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fleet.core.errors import MalformedFrame
from fleet.proxy.wire._tables import APIS
from fleet.proxy.wire.body_reader import BodyReader
from fleet.proxy.wire.primitives import OUT_OF_BYTES, encode_varint, pack_int32

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
        body = BodyReader(response, 4, is_flexible=is_flexible, peer="broker")
        try:
            body.tags()
            if key == LIST_TRANSACTIONS or version > 0:
                body.int32()  # throttle time
            if body.int16():  # error code
                return pack_int32(len(response)) + response
            if key == LIST_TRANSACTIONS:
                for _ in range(body.count()):
                    body.text()  # an unknown state of the request
            head = head or response[: body.pos]
            total += body.count()
        except OUT_OF_BYTES as error:
            detail = f"response of {len(response)} bytes to API key {key} is too short"
            raise MalformedFrame("broker", detail) from error
        if is_flexible and response[-1]:
            raise MalformedFrame("broker", f"response to API key {key} has unknown tagged fields")
        elements += response[body.pos : len(response) - is_flexible]
    encoded = encode_varint(total + 1) if is_flexible else pack_int32(total)
    merged = head + encoded + elements + (b"\0" if is_flexible else b"")
    return pack_int32(len(merged)) + merged
