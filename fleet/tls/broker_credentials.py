"""Credentials with which the fleet's own clients (discovery, events, weights) connect to the brokers.

The data plane does not import this module: clients of the fleet use their own credentials.
"""

from __future__ import annotations

import ssl
from typing import Final, TypedDict

from aiokafka.abc import AbstractTokenProvider

from fleet.config import Secret, UpstreamSettings
from fleet.core.errors import ConfigError
from fleet.tls.brokers import broker_tls

CLIENT_ERRORS: Final = (ConfigError, OSError, OverflowError, ValueError, KeyError)
"""Errors that a client of aiokafka may raise in addition to KafkaError.

OverflowError: the client has read a port above 65535 in Metadata. ValueError and KeyError: in SCRAM, the
broker does not prove that it knows the password.
"""


class Options(TypedDict, total=False):
    """Keyword arguments that every client of aiokafka accepts."""

    security_protocol: str
    ssl_context: ssl.SSLContext
    sasl_mechanism: str
    sasl_plain_username: str
    sasl_plain_password: str
    sasl_oauth_token_provider: AbstractTokenProvider


@AbstractTokenProvider.register
class _TokenProvider:
    """Reads the token again for each connection: a token lasts for minutes, then its issuer replaces it."""

    def __init__(self, secret: Secret, source: str) -> None:
        self._secret = secret
        self._source = source

    async def token(self) -> str:
        return self._secret.read(self._source)


class KafkaAccess:
    """TLS and SASL of a configuration, from the current content of its files; for any thread.

    Args:
        source: the name of the configuration file in errors.
    """

    def __init__(self, upstream: UpstreamSettings, source: str) -> None:
        self.tls = broker_tls(upstream)
        self._sasl = upstream.sasl
        self._source = source

    @property
    def is_anonymous(self) -> bool:
        """Whether the fleet's own clients connect without SASL."""
        return self._sasl is None

    def options(self) -> Options:
        """Arguments for a client that is created now.

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
                found["sasl_oauth_token_provider"] = _TokenProvider(self._sasl.secret, self._source)
            else:
                found["sasl_plain_username"] = self._sasl.username
                found["sasl_plain_password"] = self._sasl.secret.read(self._source)
        transport = "PLAINTEXT" if self.tls is None else "SSL"
        found["security_protocol"] = transport if self._sasl is None else f"SASL_{transport}"
        return found
