"""How the fleet's own clients (discovery, events, weights) are let in by the brokers.

The data plane does not know this module: what a client of the fleet may do, its own credentials decide.
"""

from __future__ import annotations

import ssl
from typing import Final, TypedDict

from aiokafka.abc import AbstractTokenProvider

from fleet.config import Secret, UpstreamSettings
from fleet.core.errors import ConfigError
from fleet.tls.brokers import to_brokers

FAILURES: Final = (ConfigError, OSError, OverflowError, ValueError, KeyError)
"""What a client may raise in addition to KafkaError. OverflowError: the client itself has read a port above
65535 in Metadata. The last two are of SCRAM, where a broker does not prove that it knows the password."""


class Options(TypedDict, total=False):
    """Keyword arguments that every client of aiokafka takes."""

    security_protocol: str
    ssl_context: ssl.SSLContext
    sasl_mechanism: str
    sasl_plain_username: str
    sasl_plain_password: str
    sasl_oauth_token_provider: AbstractTokenProvider


@AbstractTokenProvider.register
class _Token:
    """Read anew for each connection: a token lasts for minutes, and whoever issues it replaces the file."""

    def __init__(self, secret: Secret, source: str) -> None:
        self._secret = secret
        self._source = source

    async def token(self) -> str:
        return self._secret.read(self._source)


class KafkaAccess:
    """TLS and the principal of a configuration, as its files are at each moment; for any thread.

    Args:
        source: what errors call the configuration file.
    """

    def __init__(self, upstream: UpstreamSettings, source: str) -> None:
        self.tls = to_brokers(upstream)
        self._sasl = upstream.sasl
        self._source = source

    @property
    def is_anonymous(self) -> bool:
        """Whether the fleet's own clients log in as nobody."""
        return self._sasl is None

    def options(self) -> Options:
        """For a client that is made now.

        Raises:
            ConfigError: the password cannot be read.
            OSError: the certificates cannot be used.
        """
        found = Options()
        if self.tls is not None:
            found["ssl_context"] = self.tls.get()
        if self._sasl is not None:
            found["sasl_mechanism"] = self._sasl.mechanism
            if self._sasl.username is None:
                found["sasl_oauth_token_provider"] = _Token(self._sasl.secret, self._source)
            else:
                found["sasl_plain_username"] = self._sasl.username
                found["sasl_plain_password"] = self._sasl.secret.read(self._source)
        transport = "PLAINTEXT" if self.tls is None else "SSL"
        found["security_protocol"] = transport if self._sasl is None else f"SASL_{transport}"
        return found
