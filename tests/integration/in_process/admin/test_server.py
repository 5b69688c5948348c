"""fleet/admin/server.py and client.py, over real sockets on loopback."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from fleet.admin import client
from fleet.admin.connections import Connections
from fleet.admin.documents import OWNERSHIP, OwnershipDocument
from fleet.admin.server import bound_to_loopback, build_app, serve
from fleet.admin.snapshot import Check, RaftView
from fleet.config import TokenSettings
from fleet.config.secrets import Secret
from fleet.core.errors import AdminError, CommandTimeout, NoQuorum, StaleGeneration, UnknownMember
from fleet.core.model import Endpoint
from fleet.core.state import Outcome
from fleet.tls.tokens import Gate
from tests.unit.admin.sample_snapshot import Source, view

HEADER = {"X-Fleet-Admin": "1"}


def listening() -> socket.socket:
    """A socket as the supervisor binds it before control starts."""
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


class Member:
    """A served admin interface and a session for requests."""

    def __init__(self, source: Source, url: str, session: aiohttp.ClientSession) -> None:
        self.source = source
        self.url = url
        self.session = session

    async def ask(self, method: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
        async with self.session.request(method, self.url + path, headers=headers) as response:
            return response.status, await response.text()


@pytest_asyncio.fixture
async def member() -> AsyncIterator[Member]:
    source, sock = Source(), listening()
    port = sock.getsockname()[1]
    runner = await serve(source, sock)
    async with aiohttp.ClientSession() as session:
        yield Member(source, f"http://127.0.0.1:{port}", session)
    await runner.cleanup()


async def test_metrics_are_prometheus_text(member: Member) -> None:
    status, text = await member.ask("GET", "/metrics")
    assert status == 200
    assert 'fleet_identity_owner{broker_id="2",proxy_id="p3",view="advertised"} 1.0' in text
    assert "process_cpu_seconds_total" in text
    member.source.shown = view(upstream_up={})
    _, text = await member.ask("GET", "/metrics", {"Accept": "application/openmetrics-text; version=1.0.0"})
    assert "fleet_upstream_up{" not in text
    assert text.endswith("# EOF\n")


async def test_counting_pages_ask_the_workers(member: Member) -> None:
    for path, counts in (("/ownership", 0), ("/readyz", 0), ("/metrics", 1), ("/traffic", 2)):
        assert (await member.ask("GET", path))[0] == 200
        assert member.source.counts == counts


async def test_healthz_is_ok_whatever_the_checks(member: Member) -> None:
    member.source.shown = view(checks=(Check("workers", False, "0 of 1"),))
    assert await member.ask("GET", "/healthz") == (200, '{"status": "ok"}')


async def test_healthz_has_the_reason_of_a_missing_vote(member: Member) -> None:
    member.source.shown = view(raft=RaftView(error="No space left on device"))
    status, text = await member.ask("GET", "/healthz")
    assert (status, json.loads(text)) == (200, {"status": "ok", "raft": "No space left on device"})
    document = OWNERSHIP.decode((await member.ask("GET", "/ownership"))[1].encode())
    assert document.raft_error == "No space left on device"


async def test_readyz_names_each_check(member: Member) -> None:
    status, text = await member.ask("GET", "/readyz")
    assert (status, json.loads(text)["ready"]) == (200, True)
    member.source.shown = view(checks=(Check("workers", True), Check("upstream", False, "none of 3")))
    status, text = await member.ask("GET", "/readyz")
    assert status == 503
    assert json.loads(text) == {
        "ready": False,
        "checks": [
            {"name": "workers", "ok": True, "detail": ""},
            {"name": "upstream", "ok": False, "detail": "none of 3"},
        ],
    }


async def test_ownership_has_committed_and_advertised_owners(member: Member) -> None:
    status, text = await member.ask("GET", "/ownership")
    assert status == 200
    document = json.loads(text)
    assert document["identities"][1] == {
        "broker_id": 2,
        "committed": ["p2"],
        "advertised": ["p3"],
        "successors": ["p1", "p3"],
        "pinned_to": None,
        "endpoints": [{"listener": "external", "addresses": ["proxy3.test:9302"]}],
    }
    assert (document["generation"], document["leader"], document["suspects"]) == (7, "p1", ["p2"])
    assert document["quorum"] == {"present": True, "voters": ["p1", "p2", "p3"], "lost_s": 0.0}
    assert document["takeovers"][0]["advertised_mono_s"] == 100.003
    assert document["takeovers"][0]["committed_ms"] is None
    assert [each["up"] for each in document["brokers"]] == [True, False, None]
    assert document["identities"][2]["pinned_to"] == "p3"


@pytest.mark.parametrize(("verb", "drained"), [("drain", True), ("undrain", False)])
async def test_drain_and_undrain_are_committed(member: Member, verb: str, drained: bool) -> None:
    status, text = await member.ask("POST", f"/{verb}/p2", HEADER)
    assert status == 200
    assert json.loads(text) == {"proxy_id": "p2", "drained": drained, "applied": True, "generation": 8}
    assert member.source.asked == [("p2", drained)]


async def test_draining_a_drained_member_is_no_error(member: Member) -> None:
    member.source.outcome = Outcome(False, "no_change", 7)
    status, text = await member.ask("POST", "/drain/p2", HEADER)
    assert (status, json.loads(text)["applied"]) == (200, False)


@pytest.mark.parametrize(
    "headers",
    [{}, {"X-Fleet-Admin": "yes"}, {**HEADER, "Host": "attacker.example:7201"}],
    ids=["none", "wrong", "rebound"],
)
async def test_web_pages_cannot_drain(member: Member, headers: dict[str, str]) -> None:
    status, text = await member.ask("POST", "/drain/p2", headers)
    assert (status, json.loads(text)["error"]["kind"]) == (403, "forbidden")
    assert member.source.asked == []


async def test_get_does_not_drain(member: Member) -> None:
    status, text = await member.ask("GET", "/drain/p2", HEADER)
    assert (status, json.loads(text)["error"]["kind"]) == (405, "usage")
    assert member.source.asked == []


@pytest.mark.parametrize(
    ("outcome", "status", "kind"),
    [
        (UnknownMember("no"), 404, "unknown_member"),
        (Outcome(False, "unknown_member", 1), 404, "unknown_member"),
        (NoQuorum("no majority"), 503, "no_quorum"),
        (CommandTimeout("not in 5 s"), 503, "timeout"),
        (StaleGeneration("late"), 409, "conflict"),
        (Outcome(False, "stale_generation", 1), 409, "conflict"),
        (RuntimeError("a bug"), 500, "internal"),
    ],
)
async def test_failures_are_json_with_their_status(
    member: Member, outcome: Outcome | Exception, status: int, kind: str
) -> None:
    member.source.outcome = outcome
    got, text = await member.ask("POST", "/drain/p2", HEADER)
    assert (got, json.loads(text)["error"]["kind"]) == (status, kind)
    assert "a bug" not in text


async def test_unknown_page_is_json(member: Member) -> None:
    status, text = await member.ask("GET", "/owners")
    assert (status, json.loads(text)["error"]["kind"]) == (404, "not_found")


async def test_address_outside_loopback_is_read_only() -> None:
    source, sock = Source(), socket.create_server(("0.0.0.0", 0))
    sock.setblocking(False)
    port = sock.getsockname()[1]
    runner = await serve(source, sock)
    async with aiohttp.ClientSession() as session:
        member = Member(source, f"http://127.0.0.1:{port}", session)
        status, text = await member.ask("POST", "/drain/p2", HEADER)
        assert (status, json.loads(text)["error"]["kind"]) == (403, "forbidden")
        assert (await member.ask("GET", "/ownership"))[0] == 200
    await runner.cleanup()
    assert source.asked == []


def test_loopback_sockets_are_recognised() -> None:
    with socket.create_server(("127.0.0.1", 0)) as own, socket.create_server(("0.0.0.0", 0)) as every:
        assert bound_to_loopback(own)
        assert not bound_to_loopback(every)
    with socket.socket(socket.AF_UNIX) as unix:
        assert bound_to_loopback(unix)


async def test_client_reads_the_documents_of_a_member(member: Member) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        answers = await client.ask_all({"p1": member.url, "p2": dead})
    document = answers["p1"]
    assert isinstance(document, OwnershipDocument)
    assert (document.generation, document.identities[1].advertised) == (7, ("p3",))
    assert isinstance(answers["p2"], AdminError)
    assert "connection refused" in str(answers["p2"]) or "connect call failed" in str(answers["p2"])


async def test_client_gives_up_without_an_answer() -> None:
    with listening() as silent:
        port = silent.getsockname()[1]
        answers = await client.ask_all({"p1": f"http://127.0.0.1:{port}"}, timeout_s=0.1)
    assert "did not answer within 0.1 s" in str(answers["p1"])


@pytest.mark.parametrize("body", [b"{}", b"[" * 5_000, b'{"fleet":' * 5_000], ids=["empty", "lists", "maps"])
async def test_client_refuses_answers_of_other_servers(body: bytes) -> None:
    async def anything(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(anything, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        answers = await client.ask_all({"p1": f"http://127.0.0.1:{port}"})
    assert "the answer is not that of a member of this version" in str(answers["p1"])


async def test_drain_uses_the_first_member_that_can(member: Member) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        done = await client.drain([dead, member.url], "p2", drained=True)
    assert (done.proxy_id, done.applied) == ("p2", True)


@pytest.mark.parametrize("error", [NoQuorum("no majority"), CommandTimeout("late"), UnknownMember("who")])
async def test_client_raises_the_error_of_the_member(member: Member, error: Exception) -> None:
    member.source.outcome = error
    with pytest.raises(type(error), match=str(error)):
        await client.drain([member.url], "p2", drained=True)


async def test_unknown_member_is_final(member: Member) -> None:
    with pytest.raises(UnknownMember):
        await client.drain([member.url, member.url], "px", drained=True)
    assert len(member.source.asked) == 1


async def test_drain_without_writable_address_is_an_error() -> None:
    with pytest.raises(AdminError, match="no admin address accepts changes"):
        await client.drain([], "p2", drained=True)


async def test_ids_are_quoted_in_the_address(member: Member) -> None:
    with pytest.raises(UnknownMember, match=r"no member '\.\./x y'"):
        await client.drain([member.url], "../x y", drained=True)


def test_wildcard_address_is_asked_on_loopback() -> None:
    assert client.admin_url(Endpoint("0.0.0.0", 7201)) == "http://127.0.0.1:7201"
    assert client.admin_url(Endpoint("::", 7201)) == "http://[::1]:7201"
    assert client.admin_url(Endpoint("proxy1", 7201)) == "http://proxy1:7201"
    assert client.normalize_url("127.0.0.1:1/") == "http://127.0.0.1:1"


async def test_each_answer_takes_one_view(member: Member) -> None:
    member.source.shown = replace(view(), fleet="first")
    _, first = await member.ask("GET", "/ownership")
    member.source.shown = replace(view(), fleet="second")
    _, second = await member.ask("GET", "/ownership")
    assert (json.loads(first)["fleet"], json.loads(second)["fleet"]) == ("first", "second")


async def status_of(port: int, target: str, *headers: str) -> tuple[int, str]:
    """The status and the body of the answer to a raw request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"GET {target} HTTP/1.1", *headers, "Connection: close", "", ""]
    writer.write("\r\n".join(lines).encode())
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]


SECRET_PATHS = ("/ownership", "/traffic", "/metrics", "/live", "/owners")
OWN_HOSTS = (
    "127.0.0.1",
    "127.0.0.1:7201",
    "10.1.2.3:1",
    "[::1]:7201",
    "localhost",
    "LOCALHOST:80",
    "Proxy1:7201",
)
OTHER_HOSTS = (
    "attacker.example",
    "attacker.example:7201",
    "127.0.0.1.attacker.example",
    "localhost.attacker.example",
    "proxy1.attacker.example",
    "127.0.0.1@attacker.example",
    "[::1",
    "",
)


@pytest_asyncio.fixture
async def named_port() -> AsyncIterator[int]:
    """A member without tokens, whose configuration contains a name."""
    sock = listening()
    server = await serve(Source(), sock, hosts={"proxy1"})
    yield sock.getsockname()[1]
    await server.cleanup()


@pytest.mark.parametrize("path", [each for each in SECRET_PATHS if each != "/live"])
async def test_reads_without_tokens_check_the_host(named_port: int, path: str) -> None:
    """A page whose name resolves to this address could read the addresses of brokers."""
    expected = 404 if path == "/owners" else 200
    for host in OWN_HOSTS:
        assert (host, (await status_of(named_port, path, f"Host: {host}"))[0]) == (host, expected)


@pytest.mark.parametrize("path", SECRET_PATHS)
@pytest.mark.parametrize("host", OTHER_HOSTS)
async def test_reads_without_tokens_refuse_other_hosts(named_port: int, path: str, host: str) -> None:
    status, body = await status_of(named_port, path, f"Host: {host}")
    assert status in (400, 403)
    assert "kafka" not in body
    if status == 403:
        error = json.loads(body)["error"]
        assert error["kind"] == "forbidden"
        assert "use an address or a name" in error["message"]


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("http://attacker.example/ownership", ("Host: 127.0.0.1",)),
        ("http://127.0.0.1/ownership", ("Host: attacker.example",)),
        ("/ownership", ("Host: 127.0.0.1", "Host: attacker.example")),
        ("/ownership", ("Host: attacker.example", "Host: 127.0.0.1")),
    ],
)
async def test_second_host_name_does_not_hide_the_first(
    named_port: int, target: str, headers: tuple[str, ...]
) -> None:
    assert (await status_of(named_port, target, *headers))[0] in (400, 403)


async def test_client_without_host_header_may_read(named_port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", named_port)
    writer.write(b"GET /ownership HTTP/1.0\r\n\r\n")
    assert (await reader.read()).split()[1] == b"200"
    writer.close()


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz"])
async def test_health_is_answered_under_any_name(named_port: int, path: str) -> None:
    assert (await status_of(named_port, path, "Host: attacker.example"))[0] == 200


async def test_tokens_make_the_host_irrelevant(guarded: Member) -> None:
    headers = {"Host": "fleet.example", **bearer(READ)}
    assert (await guarded.ask("GET", "/ownership", headers))[0] == 200


READ, WRITE = "read-0123456789abcdef", "write-0123456789abcdef"


@pytest_asyncio.fixture
async def guarded() -> AsyncIterator[Member]:
    """With tokens, and not on loopback only: the token decides what is allowed."""
    source, sock = Source(), socket.create_server(("0.0.0.0", 0))
    sock.setblocking(False)
    places = TokenSettings(Secret(None, "READ", (), 0), Secret(None, "WRITE", (), 0))
    runner = await serve(source, sock, gate=Gate(places, "fleet.yaml", {"READ": READ, "WRITE": WRITE}))
    async with aiohttp.ClientSession() as session:
        yield Member(source, f"http://127.0.0.1:{sock.getsockname()[1]}", session)
    await runner.cleanup()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("method", "path", "by_nobody", "by_reader", "by_writer"),
    [
        ("GET", "/healthz", 200, 200, 200),
        ("GET", "/readyz", 200, 200, 200),
        ("GET", "/", 200, 200, 200),
        ("GET", "/traffic", 401, 200, 200),
        ("GET", "/metrics", 401, 200, 200),
        ("HEAD", "/metrics", 401, 200, 200),
        ("GET", "/ownership", 401, 200, 200),
        ("GET", "/owners", 401, 404, 404),
        ("GET", "//healthz", 401, 404, 404),
        ("POST", "/healthz", 405, 405, 405),
        ("POST", "/drain/p2", 401, 403, 200),
        ("POST", "/undrain/p2", 401, 403, 200),
        ("POST", "/pin/1/p2", 401, 403, 200),
        ("POST", "/unpin/1", 401, 403, 200),
        ("DELETE", "/ownership", 401, 403, 405),
    ],
)
async def test_tokens_decide_reads_and_writes(
    guarded: Member, method: str, path: str, by_nobody: int, by_reader: int, by_writer: int
) -> None:
    asked = [({}, by_nobody), (HEADER, by_nobody), (bearer("wrong"), by_nobody)]
    for headers, expected in [*asked, (bearer(READ), by_reader), (bearer(WRITE), by_writer)]:
        before = guarded.source.changes
        status, _ = await guarded.ask(method, path, headers)
        assert (headers, status) == (headers, expected)
        assert (guarded.source.changes > before) == (status == 200 and method == "POST")


@pytest.mark.parametrize(
    "path",
    [
        "/healthz/../metrics",
        "/%6Detrics",
        "/metrics?/healthz",
        "/metrics#/healthz",
        "/healthz%2F..%2Fmetrics",
        "http://127.0.0.1/metrics",
        "//metrics",
    ],
)
async def test_no_spelling_of_a_path_bypasses_the_token(guarded: Member, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(guarded.url.rpartition(":")[2]))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    assert b"fleet_" not in answer
    assert answer.split()[1] in (b"400", b"401", b"404")


async def test_refused_request_has_a_reason_and_is_counted(
    guarded: Member, caplog: pytest.LogCaptureFixture
) -> None:
    for headers, said in (
        ({}, "send `Authorization: Bearer TOKEN`"),
        (bearer("hidden-01234"), "not in admin.tokens"),
    ):
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{guarded.url}/metrics", headers=headers) as answer,
        ):
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            error = (await answer.json())["error"]
        assert error["kind"] == "unauthorized"
        assert said in error["message"]
    status, text = await guarded.ask("POST", "/drain/p2", bearer(READ))
    assert (status, json.loads(text)["error"]["kind"]) == (403, "forbidden")
    _, metrics = await guarded.ask("GET", "/metrics", bearer(READ))
    assert re.findall(r"^fleet_admin_refused_total\{reason=\"(\w+)\"\} (\S+)$", metrics, re.MULTILINE) == [
        ("no_token", "1.0"),
        ("wrong_token", "1.0"),
        ("read_only", "1.0"),
        ("unreadable", "0.0"),
    ]
    assert [each.getMessage() for each in caplog.records] == [
        "admin request refused: source=127.0.0.1 reason=no_token"
    ]
    assert not any(each in caplog.text + text + metrics for each in ("hidden", READ, WRITE))


async def test_unreadable_tokens_refuse_every_request(caplog: pytest.LogCaptureFixture) -> None:
    """Like a control process that restarts after the files were removed: the member continues."""
    sock = listening()
    port = sock.getsockname()[1]
    places = TokenSettings(Secret(Path("/none"), None, (), 0), Secret(None, "WRITE", (), 0))
    runner = await serve(Source(), sock, gate=Gate(places, "fleet.yaml", {"WRITE": WRITE}))
    async with aiohttp.ClientSession() as session:
        member = Member(Source(), f"http://127.0.0.1:{port}", session)
        status, text = await member.ask("POST", "/drain/p2", bearer(WRITE))
        assert (status, "see its log" in text, "/none" in text) == (503, True, False)
        assert (await member.ask("GET", "/healthz"))[0] == 200
    await runner.cleanup()
    assert "admin API is closed: cannot read the tokens: fleet.yaml: /none: cannot be read" in caplog.text


def test_request_is_not_answered_in_the_reading_turn() -> None:
    """From Python 3.12 on, aiohttp runs a handler at once. Found: requests sent ahead then froze control."""
    app = build_app(Source(), writable=False, connections=Connections())
    guarded = app.middlewares[-1]

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response()

    answering: Any = guarded(make_mocked_request("GET", "/healthz"), answer)
    assert answering.send(None) is None, "others come first"
    with pytest.raises(StopIteration):
        answering.send(None)
