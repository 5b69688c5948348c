"""Mutual TLS between members: accepted and refused links, and rotation of certificates."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest
import pytest_asyncio
import uvloop
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from fleet.config import PeerTlsFiles
from fleet.control import links
from fleet.control.links import Hello, Kind
from fleet.core.model import Endpoint
from fleet.drills.cluster.ports import free_ports
from fleet.tls import issuing
from fleet.tls.peers import PeerTls, check_handshake, explain, make_contexts
from tests.integration.in_process.control.test_links import Member, Network, Stranger, until
from tests.integration.relay import Relays

MEMBERS = ("p1", "p2", "p3")
NOW = datetime.now(UTC)


def made(folder: Path, fleet: str = "demo", now: datetime = NOW, days: int = 30) -> Path:
    issuing.make(fleet, MEMBERS, folder, days, now)
    return folder


def tls(folder: Path, proxy_id: str, **other: Path) -> PeerTls:
    files = issuing.member_files(folder, proxy_id)
    return PeerTls(PeerTlsFiles(other.get("ca", files.ca), files.certificate, files.key))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path / "certs")


@pytest_asyncio.fixture
async def network() -> AsyncIterator[Network]:
    ports = Network()
    yield ports
    await ports.close()


async def linked(network: Network, folder: Path, **options: float) -> tuple[Member, Member]:
    """p1 and p2, linked; p2 has dialled."""
    one, two = [await network.start(me, tls=tls(folder, me), **options) for me in ("p1", "p2")]
    await until(lambda: "p2" in one.links.connected and "p1" in two.links.connected)
    return one, two


async def dialled(network: Network, context: ssl.SSLContext) -> Stranger:
    """A hand-made TLS connection to p1."""
    endpoint = network.endpoints["p1"]
    return Stranger(*await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context))


def warnings(caplog: pytest.LogCaptureFixture, containing: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if containing in each.getMessage()]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes passed to the frame reader, for each call."""
    sizes: list[int] = []
    read = links.Connection.data_received

    def reading(connection: links.Connection, data: bytes) -> None:
        sizes.append(len(data))
        read(connection, data)

    monkeypatch.setattr(links.Connection, "data_received", reading)
    return sizes


class TestLinks:
    async def test_members_of_one_authority_are_linked_and_frames_arrive(
        self, network: Network, folder: Path
    ) -> None:
        members = [await network.start(me, tls=tls(folder, me)) for me in MEMBERS]
        await until(lambda: all(len(member.links.connected) == 2 for member in members))
        payloads = [bytes((n,)) * (n * 20_011) for n in range(30)]
        for payload in payloads:
            assert members[2].links.send("p1", Kind.RAFT, payload)
        await until(lambda: len(members[0].frames) == len(payloads))

        assert members[0].frames == [("p3", Kind.RAFT, payload) for payload in payloads]

    async def test_data_written_before_a_stop_arrives(self, network: Network, folder: Path) -> None:
        one, two = await linked(network, folder)
        two.links.send("p1", Kind.RAFT, bytes(3_000_000))
        two.links.send("p1", Kind.RAFT, b"the last word")
        await two.links.stop()
        await until(lambda: len(one.frames) == 2)

        assert one.frames[-1] == ("p2", Kind.RAFT, b"the last word")

    def test_link_works_on_controls_event_loop(self, tmp_path: Path, folder: Path) -> None:
        """uvloop has its own TLS implementation."""
        foreign = made(tmp_path / "foreign")

        async def scenario() -> tuple[list[str], list[str]]:
            network = Network()
            try:
                one, two = await linked(network, folder, hello_timeout_s=0.5)
                three = await network.start("p3", tls=tls(foreign, "p3"))
                silent = await network.connect("p1")
                one.links.send("p2", Kind.RAFT, bytes(1_000_000))
                await until(lambda: two.frames)
                await silent.closed()
                await silent.close()
                assert three.events_seen == []
            finally:
                await network.close()
            return one.changes, two.changes

        assert uvloop.run(scenario()) == (["+p2", "-p2"], ["+p1", "-p1"])


class TestRefusals:
    """Both sides log each refusal once, and read no frame."""

    async def refused(
        self, network: Network, caplog: pytest.LogCaptureFixture, one: Member, two: Member, *reasons: str
    ) -> None:
        await until(lambda: all(reason in caplog.text for reason in reasons))
        endpoint = network.endpoints["p1"]
        await until(lambda: warnings(caplog, "a connection from 127.0.0.1"))
        await until(lambda: warnings(caplog, f"'p1' at {endpoint}"))

        assert one.events_seen == two.events_seen == []
        for reason in reasons:
            logged = warnings(caplog, reason)
            assert len(logged) == len(set(logged)), "each line once"
        with mock.patch.object(two.links, "dial", wraps=two.links.dial) as dial:
            await until(lambda: dial.await_count >= 3)
        assert len(caplog.records) <= 6, "each retry is not logged"

    async def test_link_with_another_authority_is_refused(
        self, network: Network, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        foreign = made(tmp_path / "foreign")
        one = await network.start("p1", tls=tls(folder, "p1"))
        two = await network.start("p2", tls=tls(foreign, "p2"))
        await self.refused(network, caplog, one, two, "its certificate is refused")

    async def test_link_trusting_another_authority_is_refused(
        self, network: Network, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The dialling side trusts both; with TLS 1.3 it learns of the refusal after its own handshake."""
        foreign = made(tmp_path / "foreign")
        both = tmp_path / "both.pem"
        both.write_bytes((folder / "ca.pem").read_bytes() + (foreign / "ca.pem").read_bytes())
        one = await network.start("p1", tls=tls(folder, "p1"))
        two = await network.start("p2", tls=tls(foreign, "p2", ca=both))
        await self.refused(
            network,
            caplog,
            one,
            two,
            "its certificate is refused",
            "refused; see the peer's log",
        )

    @pytest.mark.parametrize("shift", [timedelta(days=-40), timedelta(days=2)], ids=["expired", "not yet"])
    async def test_certificate_outside_its_validity_is_refused(
        self,
        network: Network,
        folder: Path,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
        shift: timedelta,
    ) -> None:
        issuing.renew("demo", ["p2"], folder, 30, NOW + shift)
        one = await network.start("p1", tls=tls(folder, "p1"))
        two = await network.start("p2", tls=tls(folder, "p2"))
        reason = "certificate has expired" if shift.days < 0 else "certificate is not yet valid"
        await self.refused(network, caplog, one, two, reason, "refused; see the peer's log")

    async def test_dialling_with_another_members_certificate_is_refused(
        self, network: Network, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        one = await network.start("p1", tls=tls(folder, "p1"))
        two = await network.start("p2", tls=tls(folder, "p3"))
        await self.refused(
            network,
            caplog,
            one,
            two,
            "'p2' has a certificate that names fleet://demo/p3",
            "refused; see the peer's log",
        )

    async def test_answering_with_another_members_certificate_is_refused(
        self, network: Network, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        one = await network.start("p1", tls=tls(folder, "p3"))
        two = await network.start("p2", tls=tls(folder, "p2"))
        await self.refused(network, caplog, one, two, "the certificate names fleet://demo/p3")

    async def test_certificate_of_another_fleet_is_refused(
        self,
        network: Network,
        folder: Path,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        issuing.renew("other", ["p2"], folder, 30, NOW)
        monkeypatch.setattr(Hello, "decode", lambda _payload: pytest.fail("a frame was looked at"))
        one = await network.start("p1", tls=tls(folder, "p1"))
        two = await network.start("p2", tls=tls(folder, "p2"))
        await self.refused(network, caplog, one, two, "the certificate names fleet://other/p2")

    async def test_plaintext_link_to_a_tls_member_is_refused(
        self, network: Network, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        one = await network.start("p1", tls=tls(folder, "p1"))
        two = await network.start("p2")
        await self.refused(
            network,
            caplog,
            one,
            two,
            "it does not speak TLS",
            "refused; see the peer's log",
        )

    async def test_tls_link_to_a_plaintext_member_is_refused(
        self, network: Network, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        one = await network.start("p1")
        two = await network.start("p2", tls=tls(folder, "p2"))
        await self.refused(network, caplog, one, two, "it speaks TLS, and this member has no peer_tls")

    @pytest.mark.parametrize("kind", ["no certificate", "TLS 1.2", "a HELLO", "a pickle"])
    async def test_stranger_gets_no_data_and_is_ignored(
        self, network: Network, folder: Path, taken: list[int], caplog: pytest.LogCaptureFixture, kind: str
    ) -> None:
        one = await network.start("p1", tls=tls(folder, "p1"))
        context = make_contexts(issuing.member_files(folder, "p3"))[1]
        if kind == "no certificate":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(folder / "ca.pem")
        elif kind == "TLS 1.2":
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        received = b""
        with contextlib.suppress(OSError):
            if kind in ("a HELLO", "a pickle"):
                stranger = await network.connect("p1")
            else:
                stranger = await dialled(network, context)
            if kind == "a pickle":
                stranger.writer.write(pickle.dumps({"type": "append_entries"}))
            else:
                stranger.hello()
            received = await stranger.closed()
            await stranger.close()
        await until(lambda: warnings(caplog, "a connection from 127.0.0.1"))

        # A peer without TLS gets an alert, which is a record of seven bytes.
        assert received == b"" or (kind in ("a HELLO", "a pickle") and received[:1] == b"\x15")
        assert (taken, one.events_seen) == ([], [])

    async def test_silent_connection_blocks_no_other_connection(
        self, network: Network, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        one = await network.start("p1", tls=tls(folder, "p1"), hello_timeout_s=1.0)
        silent = [await network.connect("p1") for _ in range(200)]
        two = await network.start("p2", tls=tls(folder, "p2"))
        await until(lambda: one.links.connected and two.links.connected)
        assert len(one.links.strangers) <= 128
        for stranger in silent:
            assert await stranger.closed() == b""
            await stranger.close()

        await until(lambda: not one.links.strangers)
        assert (one.events_seen, two.events_seen) == (["+p2"], ["+p1"])


class TestReplay:
    """An attacker cannot replay recorded traffic between members."""

    @pytest.fixture
    def relays(self) -> Iterator[Relays]:
        made = Relays()
        yield made
        made.close()

    async def recorded(self, network: Network, folder: Path, relays: Relays) -> tuple[Member, bytes, bytes]:
        """p1, and the bytes that p2, which dialled, and p1 sent to each other while three frames passed."""
        (port,) = free_ports(1)
        between = Endpoint("127.0.0.1", port)
        relays.forward(between, network.endpoints["p1"])
        with relays.recording(both=True) as recording:
            one = await network.start("p1", tls=tls(folder, "p1"))
            peers = {**network.endpoints, "p1": between}
            two = await network.start("p2", tls=tls(folder, "p2"), peers=peers)
            await until(lambda: one.links.connected and two.links.connected)
            for number in range(3):
                assert two.links.send("p1", Kind.RAFT, bytes((number,)) * 1000)
            await until(lambda: len(one.frames) == 3)
            await two.links.stop()
            await until(lambda: one.changes == ["+p2", "-p2"])
        assert recording.sent is not None
        (sent_bytes,), (answered,) = recording.sent.values(), recording.streams.values()
        assert len(sent_bytes) > 3000
        return one, bytes(sent_bytes), bytes(answered)

    @pytest.mark.parametrize("pace", ["at once", "as it was sent"])
    async def test_listening_member_refuses_an_unverified_peer(
        self,
        network: Network,
        folder: Path,
        relays: Relays,
        taken: list[int],
        caplog: pytest.LogCaptureFixture,
        pace: str,
    ) -> None:
        one, sent_bytes, _ = await self.recorded(network, folder, relays)
        before = len(taken)
        assert before >= 4, "HELLO and three frames"

        stranger = await network.connect("p1")
        (first,) = struct.unpack(">H", sent_bytes[3:5])  # the first record of TLS: type, version, length
        greeting = 5 + first if pace == "as it was sent" else len(sent_bytes)
        stranger.writer.write(sent_bytes[:greeting])
        if sent_bytes[greeting:]:
            assert await stranger.reader.readexactly(1), "the server's part of a handshake"
            stranger.writer.write(sent_bytes[greeting:])
        await stranger.closed()
        await stranger.close()
        await until(lambda: warnings(caplog, "a connection from 127.0.0.1: TLS: "))
        assert len(taken) == before
        assert (len(one.frames), one.changes) == (3, ["+p2", "-p2"])

    async def test_dialling_member_refuses_an_unverified_peer(
        self,
        network: Network,
        folder: Path,
        relays: Relays,
        taken: list[int],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        _, _, answered = await self.recorded(network, folder, relays)
        before = len(taken)
        dialled = 0

        async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal dialled
            dialled += 1
            await reader.readexactly(1)
            writer.write(answered)
            with contextlib.suppress(OSError):
                await reader.read()
            writer.close()

        player = await asyncio.start_server(play, "127.0.0.1", 0)
        at = Endpoint("127.0.0.1", player.sockets[0].getsockname()[1])
        two = await network.start("p2", tls=tls(folder, "p2"), peers={**network.endpoints, "p1": at})
        await until(lambda: dialled >= 2 and warnings(caplog, f"'p1' at {at}: "))
        await two.links.stop()
        player.close()
        assert len(taken) == before
        assert (two.frames, two.changes) == ([], [])


class TestRotation:
    async def test_new_connections_use_the_new_files_and_links_stay(
        self, network: Network, folder: Path, tmp_path: Path
    ) -> None:
        one, two = await linked(network, folder)
        fresh = made(tmp_path / "fresh")
        for name in ("ca.pem", "p1.crt", "p1.key", "p2.crt", "p2.key"):
            (fresh / name).replace(folder / name)
        three = await network.start("p3", tls=tls(fresh, "p3", ca=folder / "ca.pem"))
        await until(lambda: three.links.connected == {"p1", "p2"})

        await until(lambda: (one.events_seen, two.events_seen) == (["+p2", "+p3"], ["+p1", "+p3"]))

    async def test_previous_files_stay_in_use_during_a_rotation(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        held = tls(folder, "p1")
        before = held.context(server=True)
        assert held.context(server=True) is before
        key = (folder / "p1.key").read_bytes()
        (folder / "p1.key").write_bytes((folder / "p2.key").read_bytes())
        for _ in range(3):
            assert held.context(server=True) is before
        (folder / "p1.key").unlink()
        for _ in range(3):
            assert held.context(server=True) is before
        (folder / "p1.key").write_bytes(key)

        assert held.context(server=True) is not before
        assert (
            len(
                warnings(
                    caplog,
                    "cannot load the new certificates of this member's links, keeping the previous one",
                )
            )
            == 2
        )

    async def test_late_files_are_used_as_soon_as_they_exist(
        self, network: Network, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        away = (folder / "p1.crt").rename(folder / "away")
        one = await network.start("p1", tls=tls(folder, "p1"))
        two = await network.start("p2", tls=tls(folder, "p2"))
        await until(lambda: str(folder / "p1.crt") in caplog.text)
        assert "cannot use the certificates of this member" in caplog.text
        away.rename(folder / "p1.crt")
        await until(lambda: one.links.connected and two.links.connected)


class TestFiles:
    def test_handshake_check_rejects_files_of_another_authority(self, folder: Path, tmp_path: Path) -> None:
        check_handshake(*make_contexts(issuing.member_files(folder, "p1")))
        foreign = made(tmp_path / "foreign")
        mixed = PeerTlsFiles(foreign / "ca.pem", folder / "p1.crt", folder / "p1.key")
        with pytest.raises(ssl.SSLCertVerificationError):
            check_handshake(*make_contexts(mixed))

    def test_encrypted_key_raises_without_a_prompt(self, folder: Path) -> None:
        key = load_pem_private_key((folder / "p1.key").read_bytes(), None)
        secret = BestAvailableEncryption(b"secret")
        (folder / "p1.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
        with pytest.raises(OSError, match="cannot use the certificates of this member"):
            tls(folder, "p1").context(server=True)

    def test_every_end_of_a_connection_is_explained(self) -> None:
        assert explain(ConnectionResetError(104, "reset")) == "connection lost: [Errno 104] reset"
        assert explain(ConnectionResetError()) == "closed during the handshake; see the peer's log"
        assert explain(ssl.SSLError("as it is")) == "as it is"
        assert explain(ssl.SSLError()) == "TLS failed"
