"""A real control process as a server: strangers hold connections to its admin and peer ports."""

from __future__ import annotations

import http.client
import os
import resource
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from fleet.admin.live import MAX_WATCHERS
from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from tests.chaos.harness import wait_for
from tests.chaos.seeded.effects import is_gone
from tests.chaos.trees import Tree, try_tree
from tests.conftest import MakeFleet

pytestmark = pytest.mark.size("test-all")

VICTIM, PEER = "p1", "p2"
STRANGER_COUNT = 1000
ANSWER_LIMIT_S = 20.0
"""The promise on a quiet machine is one second."""
LINK_LIMIT_S = 60.0
MAX_FILES = 512
MAX_GROWTH_BYTES = 64 << 20
HALF_REQUEST = b"GET /ownership HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 4000
HALF_HANDSHAKE = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


class Strangers:
    """Open connections, and leave them idle."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def connect(self, endpoint: Endpoint, count: int, say: bytes = b"") -> list[socket.socket]:
        """Open connections, and send bytes on each."""
        opened = []
        for _ in range(count):
            sock = self._stack.enter_context(socket.create_connection((endpoint.host, endpoint.port), 30.0))
            opened.append(sock)
            try:
                sock.sendall(say)
            except (BrokenPipeError, ConnectionResetError):
                continue  # the server has had to close connections already
        return opened

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def strangers() -> Iterator[Strangers]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    made = Strangers()
    yield made
    made.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(params=[False, True], ids=["open", "secured"])
def fleet(request: pytest.FixtureRequest, make_fleet: MakeFleet) -> LocalFleet:
    return make_fleet(peer_tls=request.param, admin_tokens=request.param)


def assert_answers(fleet: LocalFleet) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/ownership"):
        status, _ = fleet.get(VICTIM, path, ANSWER_LIMIT_S)
        assert (path, status) == (path, 200)


def assert_nobody_is_suspected(fleet: LocalFleet) -> None:
    for proxy_id in fleet.members:
        document = fleet.ownership(proxy_id, ANSWER_LIMIT_S)
        assert (document.suspects, document.takeovers) == ((), ())


def assert_bounded(fleet: LocalFleet, rss_before_bytes: int) -> None:
    control = Tree(fleet, VICTIM).control
    assert control.num_fds() <= MAX_FILES
    assert control.memory_info().rss - rss_before_bytes <= MAX_GROWTH_BYTES


def settled_rss_bytes(fleet: LocalFleet) -> int:
    assert_answers(fleet)
    return int(Tree(fleet, VICTIM).control.memory_info().rss)


def test_half_open_requests_block_no_other_client(fleet: LocalFleet, strangers: Strangers) -> None:
    rss_bytes = settled_rss_bytes(fleet)
    mine = fleet.settings.member(VICTIM)
    strangers.connect(mine.admin, STRANGER_COUNT, HALF_REQUEST)
    for _ in range(3):
        assert_answers(fleet)
        assert_bounded(fleet, rss_bytes)
    assert_nobody_is_suspected(fleet)


def test_idle_connections_block_no_other_client(fleet: LocalFleet, strangers: Strangers) -> None:
    """Idle connections block no client, no returning member and no new control process."""
    rss_bytes = settled_rss_bytes(fleet)
    mine = fleet.settings.member(VICTIM)

    def open_all() -> None:
        for endpoint in (mine.admin, mine.peer):
            strangers.connect(endpoint, STRANGER_COUNT)
            strangers.connect(endpoint, STRANGER_COUNT // 4, HALF_HANDSHAKE)

    open_all()
    assert_answers(fleet)
    assert_bounded(fleet, rss_bytes)
    assert_nobody_is_suspected(fleet)

    fleet.kill(PEER)
    fleet.start(PEER)
    open_all()
    fleet.await_ready(PEER)
    wait_for(partial(is_linked, fleet), f"a link to {PEER}", LINK_LIMIT_S)

    former = Tree(fleet, VICTIM)
    former.control.kill()
    wait_for(partial(is_gone, former.control), "the end of the control process", LINK_LIMIT_S)
    open_all()

    def is_replaced() -> bool:
        now = try_tree(fleet, VICTIM)
        return now is not None and now.control != former.control

    wait_for(is_replaced, "another control process", LINK_LIMIT_S)
    fleet.await_ready(VICTIM)
    assert_answers(fleet)
    wait_for(partial(is_linked, fleet), f"a link to {PEER}", LINK_LIMIT_S)
    assert Tree(fleet, VICTIM).control.num_fds() <= MAX_FILES


def is_linked(fleet: LocalFleet) -> bool:
    document = fleet.try_ownership(VICTIM)
    if document is None:
        return False
    return any(each.proxy_id == PEER and each.connected for each in document.members)


def ask_live(fleet: LocalFleet, token: str | None) -> tuple[http.client.HTTPConnection, int]:
    """A stream whose status has been read, but no event."""
    admin = fleet.settings.member(VICTIM).admin
    if token is None:
        connection = http.client.HTTPConnection(admin.host, admin.port, timeout=30.0)
    else:
        context = ssl.create_default_context(cafile=fleet.certificates / "ca.pem")
        connection = http.client.HTTPSConnection(admin.host, admin.port, timeout=30.0, context=context)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    connection.request("GET", "/live", headers=headers)
    return connection, connection.getresponse().status


def read_token(fleet: LocalFleet) -> str | None:
    file = fleet.config.parent / "read-token"
    return file.read_text() if file.exists() else None


def test_silent_watchers_block_no_other_client(fleet: LocalFleet) -> None:
    rss_bytes = settled_rss_bytes(fleet)
    watchers = [ask_live(fleet, read_token(fleet)) for _ in range(MAX_WATCHERS + 8)]
    assert [status for _, status in watchers] == [200] * MAX_WATCHERS + [503] * 8
    assert_answers(fleet)
    assert_bounded(fleet, rss_bytes)
    assert_nobody_is_suspected(fleet)
    for connection, _ in watchers:
        connection.close()

    def has_place() -> bool:
        connection, status = ask_live(fleet, read_token(fleet))
        connection.close()
        return status == 200

    wait_for(has_place, "a place for one who looks", LINK_LIMIT_S)


def test_rotated_tokens_end_streams(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(peer_tls=True, admin_tokens=True)
    former = read_token(fleet)
    assert former is not None
    admin = fleet.settings.member(VICTIM).admin
    context = ssl.create_default_context(cafile=fleet.certificates / "ca.pem")
    connection = http.client.HTTPSConnection(admin.host, admin.port, timeout=30.0, context=context)
    connection.request("GET", "/live", headers={"Authorization": f"Bearer {former}"})
    stream = connection.getresponse()
    assert stream.status == 200
    assert stream.readline().startswith(b"data: ")

    fresh, file = "fresh-0123456789abcdef", fleet.config.parent / "read-token"
    new_token = file.with_name("fresh-token")
    new_token.touch(mode=0o600)
    new_token.write_text(fresh)
    os.replace(new_token, file)
    rotated_s = time.monotonic()
    while stream.readline():
        assert time.monotonic() - rotated_s < 2 * ANSWER_LIMIT_S
    connection.close()
    found = [ask_live(fleet, token) for token in (former, fresh)]
    assert [status for _, status in found] == [401, 200]
    for each, _ in found:
        each.close()
