"""KeyUpdate messages of TLS 1.3, which Python's `ssl` cannot send: OpenSSL is asked directly.

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
REQUESTED: Final = 1
"""SSL_KEY_UPDATE_REQUESTED: the other side has to answer with a KeyUpdate of its own."""
POINTER_AT: Final = 3 * ctypes.sizeof(ctypes.c_void_p)
"""Where `_ssl._SSLSocket` has its `SSL *`: behind the reference count, the type and the socket."""


@cache
def _openssl() -> Any:
    """The library that `ssl` has loaded."""
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "libssl" in line)
    return ctypes.CDLL(path)


def ask_for_new_keys(tls: ssl.SSLObject) -> None:
    """Have the next write begin with a KeyUpdate that wants to be answered."""
    openssl = _openssl()
    pointer = ctypes.c_void_p.from_address(id(tls._sslobj) + POINTER_AT)  # type: ignore[attr-defined]
    openssl.SSL_version.argtypes = [ctypes.c_void_p]
    openssl.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
    assert openssl.SSL_version(pointer) == TLS_1_3
    assert openssl.SSL_key_update(pointer, REQUESTED) == 1
