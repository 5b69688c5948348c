"""KeyUpdate messages of TLS 1.3, which Python's `ssl` cannot send: this module calls OpenSSL directly.

    ask_for_new_keys(tls)      # tls: an ssl.SSLObject of TLS 1.3 whose handshake is done
    tls.write(b"")             # now the message is in its outgoing BIO

Source: RFC 8446, section 4.6.3; SSL_key_update(3)
"""

from __future__ import annotations

import ctypes
import ctypes.util
import ssl
from functools import cache
from typing import Any, Final

TLS_1_3: Final = 0x0304
UPDATE_REQUESTED: Final = 1
"""SSL_KEY_UPDATE_REQUESTED: the other side must answer with its own KeyUpdate."""
SSL_POINTER_OFFSET_BYTES: Final = 3 * ctypes.sizeof(ctypes.c_void_p)
"""Offset of the `SSL *` in `_ssl._SSLSocket`: after the reference count, the type and the socket."""


@cache
def _openssl() -> Any:
    """The OpenSSL library that `ssl` has loaded."""
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "libssl" in line)
    return ctypes.CDLL(path)


def request_key_update(tls: ssl.SSLObject) -> None:
    """Let the next write begin with a KeyUpdate that requests an answer."""
    openssl = _openssl()
    pointer = ctypes.c_void_p.from_address(id(tls._sslobj) + SSL_POINTER_OFFSET_BYTES)  # type: ignore[attr-defined]
    openssl.SSL_version.argtypes = [ctypes.c_void_p]
    openssl.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
    assert openssl.SSL_version(pointer) == TLS_1_3
    assert openssl.SSL_key_update(pointer, UPDATE_REQUESTED) == 1
