"""fleet/tls/admin.py and access.py: TLS of the admin address, over real sockets."""

from __future__ import annotations

import asyncio
import codecs
import os
import shutil
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from fleet.admin import client
from fleet.admin.documents import OwnershipDocument
from fleet.admin.server import serve
from fleet.config import Settings
from fleet.config.file import load
from fleet.core.errors import AdminError, ConfigError
from fleet.tls import admin as tls
from fleet.tls import issuing
from fleet.tls.access import Access, access_to
from fleet.tls.tokens import Gate
from tests.unit.admin.sample_snapshot import Source
from tests.unit.config.test_file import tree

NOW = datetime.now(UTC)
READ, WRITE = "read-0123456789abcdef", "write-0123456789abcdef"


def write_token(file: Path, token: str) -> None:
    file.touch(mode=0o600)
    file.write_text(token)


def secured(folder: Path, port: int = 7201, **admin: object) -> Settings:
    """The settings of three members whose certificates and tokens are in a folder; p1's port is given."""
    document = tree()
    document["members"]["p1"]["admin"] = f"127.0.0.1:{port}"
    places = {role: {"file": f"{role}-token"} for role in ("read", "write")}
    file = folder / "fleet.yaml"
    file.write_text(
        yaml.safe_dump(document | {"admin": {"tls": {}, "tokens": places} | admin}, sort_keys=False)
    )
    settings = load(file, {})
    if not (folder / "certs").exists():
        issuing.make(
            "demo", tuple(settings.members), folder / "certs", 30, NOW, issuing.member_hosts(settings)
        )
        write_token(folder / "read-token", READ)
        write_token(folder / "write-token", WRITE)
    return settings


@dataclass
class Member:
    """A served admin interface with tokens and TLS."""

    settings: Settings
    source: Source
    folder: Path
    port: int

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def ask(self, environ: Mapping[str, str] | None = None) -> OwnershipDocument | Exception:
        access = access_to(self.settings, environ or {})
        return (await client.ask_all({"p1": self.url}, access=access))["p1"]


@pytest_asyncio.fixture
async def member(tmp_path: Path) -> AsyncIterator[Member]:
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    port = sock.getsockname()[1]
    settings, source = secured(tmp_path, port), Source()
    assert settings.admin.tls is not None
    assert settings.admin.tokens is not None
    gate = Gate(settings.admin.tokens, settings.source, {})
    runner = await serve(
        source, sock, gate=gate, tls=tls.reloading_context(settings.admin.tls.for_member("p1"))
    )
    yield Member(settings, source, tmp_path, port)
    await runner.cleanup()


async def test_commands_use_the_configured_token_and_authority(member: Member) -> None:
    assert client.admin_urls(member.settings)["p1"] == member.url
    assert isinstance(await member.ask(), OwnershipDocument)
    (url, *_) = client.writable_urls(member.settings)
    done = await client.drain([url], "p2", True, access=access_to(member.settings, {}, writes=True))
    assert done.applied
    assert member.source.asked == [("p2", True)]


async def test_environment_overrides_the_configuration(member: Member, tmp_path: Path) -> None:
    assert isinstance(await member.ask({"FLEET_TOKEN": WRITE}), OwnershipDocument)
    write_token(tmp_path / "mine", WRITE)
    environment = {"FLEET_TOKEN": "", "FLEET_TOKEN_FILE": str(tmp_path / "mine")}
    assert access_to(member.settings, environment).token == WRITE
    message = str(
        await member.ask({"FLEET_TOKEN": "wrong-0123456789", "FLEET_TOKEN_FILE": str(tmp_path / "mine")})
    )
    assert "answered 401: the token is not in admin.tokens of this member" in message
    assert "wrong-0123456789" not in message


async def test_read_token_cannot_drain(member: Member) -> None:
    access = access_to(member.settings, {"FLEET_TOKEN": READ}, writes=True)
    with pytest.raises(
        AdminError, match=r"answered 403: this token may only read; use the token of admin\.tokens\.write"
    ):
        await client.drain([member.url], "p2", True, access=access)
    assert member.source.asked == []


async def test_command_without_a_token_names_the_fix(member: Member) -> None:
    access = replace(access_to(member.settings, {}), token=None)
    answers = await client.ask_all({"p1": member.url}, access=access)
    assert "answered 401: send `Authorization: Bearer TOKEN`" in str(answers["p1"])


def test_write_token_replaces_a_missing_read_token(tmp_path: Path) -> None:
    settings = secured(tmp_path)
    assert access_to(settings, {}).token == READ
    assert access_to(settings, {}, writes=True).token == WRITE
    (tmp_path / "read-token").unlink()
    assert access_to(settings, {}).token == WRITE
    (tmp_path / "write-token").chmod(0o640)
    for writes, first in ((False, "read"), (True, "write")):
        with pytest.raises(ConfigError) as caught:
            access_to(settings, {}, writes=writes)
        message = str(caught.value)
        assert f"admin.tokens.{first}: {tmp_path}/{first}-token: " in message
        assert message.endswith("; or set FLEET_TOKEN or FLEET_TOKEN_FILE")
        assert WRITE not in message


def test_token_file_in_the_environment_must_be_private(tmp_path: Path) -> None:
    write_token(tmp_path / "mine", READ)
    (tmp_path / "mine").chmod(0o644)
    with pytest.raises(
        ConfigError, match=r"FLEET_TOKEN_FILE: .*/mine: must be readable only by its owner; run `chmod"
    ):
        access_to(None, {"FLEET_TOKEN_FILE": str(tmp_path / "mine")})


def test_shown_access_and_settings_contain_no_token(tmp_path: Path) -> None:
    settings = secured(tmp_path)
    access = access_to(settings, {})
    assert access.token == READ
    assert READ not in f"{access!r} {settings!r}"


async def test_token_is_not_sent_unencrypted() -> None:
    access = Access(token=READ)
    answers = await client.ask_all({"p1": "http://192.0.2.1:7201"}, access=access)
    message = str(answers["p1"])
    assert ": plain http would expose the token; use https" in message
    assert READ not in message


async def test_certificate_of_another_authority_is_refused(member: Member, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    strange = secured(other, member.port)
    answers = await client.ask_all({"p1": member.url}, access=access_to(strange, {}))
    message = str(answers["p1"])
    assert f"{member.url}/ownership: the certificate is not trusted: its certificate is refused: " in message
    assert "set admin.tls.ca to its issuer" in message
    system = secured(tmp_path, member.port, tls={"ca": None})
    answers = await client.ask_all({"p1": member.url}, access=access_to(system, {}))
    assert "the certificate is not trusted" in str(answers["p1"])


async def test_certificate_of_another_host_is_refused(member: Member) -> None:
    own = {proxy_id: ("p1.example",) for proxy_id in member.settings.members}
    issuing.renew("demo", ["p1"], member.folder / "certs", 30, NOW, own)
    assert "certificate is not valid for '127.0.0.1'" in str(await member.ask())


def test_missing_authority_is_named(tmp_path: Path) -> None:
    settings = secured(tmp_path)
    (tmp_path / "certs" / "ca.pem").unlink()
    with pytest.raises(
        ConfigError,
        match=r"admin\.tls\.ca: .*/certs/ca\.pem: cannot be read \(no such file or directory\); copy",
    ):
        access_to(settings, {})
    (tmp_path / "certs" / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"admin\.tls\.ca: .*/certs/ca\.pem: is not a PEM certificate"):
        access_to(settings, {})


def test_authority_that_commands_cannot_use_is_explained(tmp_path: Path) -> None:
    settings = secured(tmp_path)
    file = tmp_path / "certs" / "ca.pem"
    file.write_bytes(2 * codecs.BOM_UTF8 + file.read_bytes())
    message = "the file begins with a byte-order mark; save it as UTF-8 without BOM"
    with pytest.raises(ConfigError, match=rf"admin\.tls\.ca: {file}: {message}"):
        access_to(settings, {})


async def test_peer_without_tls_is_recognized(member: Member) -> None:
    access = access_to(member.settings, {})
    answers = await client.ask_all({"p1": f"http://127.0.0.1:{member.port}"}, access=access)
    assert "cannot be reached" in str(answers["p1"])
    assert "try https" in str(answers["p1"])

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        answers = await client.ask_all({"p1": f"https://127.0.0.1:{port}"}, access=access)
    assert "it does not speak TLS" in str(answers["p1"])


async def shown_certificate(member: Member) -> bytes:
    context = ssl.create_default_context(cafile=member.folder / "certs" / "ca.pem")
    _, writer = await asyncio.open_connection("127.0.0.1", member.port, ssl=context)
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return shown


async def test_new_certificate_is_used_without_losing_connections(
    member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    folder = member.folder / "certs"
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    reader, writer = await asyncio.open_connection("127.0.0.1", member.port, ssl=context)
    before = await shown_certificate(member)
    issuing.renew("demo", ["p1"], folder, 60, NOW, issuing.member_hosts(member.settings))
    after = await shown_certificate(member)
    assert after != before
    assert writer.get_extra_info("ssl_object").getpeercert(binary_form=True) == before
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert (await reader.readuntil(b'"ok"}')).startswith(b"HTTP/1.1 200 OK")
    writer.close()
    # In the middle of a copy, certificate and key do not match.
    shutil.copy(folder / "p2.key", folder / "p1.key")
    assert await shown_certificate(member) == after
    assert "keeping the previous one" in caplog.text
    (folder / "p1.key").unlink()
    assert await shown_certificate(member) == after


async def test_tls_1_2_is_the_least(member: Member) -> None:
    assert member.settings.admin.tls is not None
    assert (
        tls.reloading_context(member.settings.admin.tls.for_member("p1")).minimum_version
        == ssl.TLSVersion.TLSv1_2
    )
    context = ssl.create_default_context(cafile=member.folder / "certs" / "ca.pem")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    _, writer = await asyncio.open_connection("127.0.0.1", member.port, ssl=context)
    assert writer.get_extra_info("ssl_object").version() == "TLSv1.2"
    writer.close()


async def test_missing_certificate_fails_handshakes_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Like a control process that restarts after the file was removed: the member continues."""
    settings, sock = secured(tmp_path), socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    port = sock.getsockname()[1]
    assert settings.admin.tls is not None
    key = tmp_path / "certs" / "p1.key"
    content = key.read_bytes()
    key.unlink()
    runner = await serve(Source(), sock, tls=tls.reloading_context(settings.admin.tls.for_member("p1")))
    ask = {"p1": f"https://127.0.0.1:{port}"}
    answers = await client.ask_all(ask, access=access_to(settings, {}))
    assert isinstance(answers["p1"], AdminError)
    assert "admin address is closed: cannot load its certificate" in caplog.text
    assert "p1.key" in caplog.text
    key.write_bytes(content)
    answers = await client.ask_all(ask, access=access_to(settings, {}))
    assert isinstance(answers["p1"], OwnershipDocument)
    await runner.cleanup()


async def test_system_authorities_are_trusted_by_default(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(member.folder / "certs" / "ca.pem"))
    system = secured(member.folder, member.port, tls={"ca": None})
    answers = await client.ask_all({"p1": member.url}, access=access_to(system, os.environ))
    assert isinstance(answers["p1"], OwnershipDocument)


def test_created_files_are_private(tmp_path: Path) -> None:
    secured(tmp_path)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "certs").glob("*.key")} == {0o600}
