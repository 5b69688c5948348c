"""Issues tokens for SASL OAUTHBEARER: signed JWTs, and the keys for the brokers."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

AUDIENCE: Final = "kafka"
ISSUER: Final = "https://issuer.example"
_KEY_ID: Final = "of-the-tests"


class Issuer:
    """Signs with its own key. All issuers have the same name, so that only the key distinguishes them."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(65_537, 2048)

    def write_keys(self, file: Path) -> None:
        """The public key, as a JWKS. Source: RFC 7517"""
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "kid": _KEY_ID, "use": "sig", "alg": "RS256"}
        key |= {"n": _number(numbers.n), "e": _number(numbers.e)}
        file.write_text(json.dumps({"keys": [key]}))

    def issue(self, subject: str, lifetime_s: int = 3600, audience: str = AUDIENCE) -> str:
        """A token for one principal. Source: RFC 7519"""
        now_s = int(time.time())
        claims: dict[str, str | int] = {"sub": subject, "iss": ISSUER, "aud": audience, "scope": "all"}
        claims |= {"iat": now_s - 60 + min(0, lifetime_s), "exp": now_s + lifetime_s}
        parts = [_text(json.dumps(each).encode()) for each in ({"alg": "RS256", "kid": _KEY_ID}, claims)]
        signature = self._key.sign(".".join(parts).encode(), padding.PKCS1v15(), hashes.SHA256())
        return ".".join((*parts, _text(signature)))


def _number(value: int) -> str:
    return _text(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
