import asyncio
import contextlib
import json
import logging
import resource
import socket
import struct
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from fleet.control.links import MAX_FRAME_BYTES, Hello, Kind, LinkTiming, PeerLinks, digest_voters
from fleet.core.model import Endpoint
from fleet.runtime.outbound import LocalFailure
from tests import previous_release

LIMIT_S = 10.0


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition. The test fails if the condition does not become true."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - conditions are of all kinds
            await asyncio.sleep(0.002)


class Member:
    """The links of one member, and the events that they reported."""

    def __init__(self, me: str, listen: socket.socket, peers: dict[str, Endpoint], **options: object) -> None:
        self.events_seen: list[str] = []
        self.broken: list[BaseException] = []
        self.failed_here: list[tuple[str, str]] = []
        self.frames: list[tuple[str, Kind, bytes]] = []
        fleet = str(options.pop("fleet", "demo"))
        incarnation = int(str(options.pop("incarnation", 1)))
        tls, digests = options.pop("tls", None), options.pop("voter_digests", ())
        timing = LinkTiming(**options)  # type: ignore[arg-type]
        self.links = PeerLinks(me, incarnation, fleet, peers, listen, self, timing, tls, digests)  # type: ignore[arg-type]

    def on_up(self, peer: str) -> None:
        self.events_seen.append(f"+{peer}")

    def on_down(self, peer: str, reason: str) -> None:
        self.events_seen.append(f"-{peer}: {reason}")

    def on_broken(self, error: BaseException) -> None:
        self.broken.append(error)

    def on_failed_here(self, peer: str, error: LocalFailure) -> None:
        self.failed_here.append((peer, str(error)))

    def on_frame(self, peer: str, kind: Kind, payload: bytes) -> None:
        self.frames.append((peer, kind, payload))

    @property
    def changes(self) -> list[str]:
        """The reported events, without their reasons."""
        return [text.partition(":")[0] for text in self.events_seen]


class Network:
    """Members with one port each. The ports stay bound when a member stops, as with a supervisor."""

    def __init__(self) -> None:
        self.sockets = {me: socket.create_server(("127.0.0.1", 0)) for me in ("p1", "p2", "p3")}
        self.endpoints = {
            me: Endpoint("127.0.0.1", listen.getsockname()[1]) for me, listen in self.sockets.items()
        }
        self.members: list[Member] = []

    async def start(self, me: str, **options: object) -> Member:
        peers = options.pop("peers", self.endpoints)
        member = Member(me, self.sockets[me].dup(), peers, **options)  # type: ignore[arg-type]
        self.members.append(member)
        await member.links.start()
        return member

    async def connect(self, me: str) -> "Stranger":
        endpoint = self.endpoints[me]
        return Stranger(*await asyncio.open_connection(endpoint.host, endpoint.port))

    async def close(self) -> None:
        for member in self.members:
            await member.links.stop()
        for listen in self.sockets.values():
            listen.close()


class Stranger:
    """A hand-made connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, kind: int, payload: bytes) -> None:
        self.writer.write(struct.pack(">IB", len(payload) + 1, kind) + payload)

    def hello(
        self, proxy_id: str = "p3", fleet: str = "demo", incarnation: int = 1, version: int = 1
    ) -> None:
        self.send(Kind.HELLO, Hello(fleet, proxy_id, incarnation, version).encode())

    def link(self, *, incarnation: int = 1) -> None:
        """Send HELLO, and then a frame that a member sends only after the answer."""
        self.hello(incarnation=incarnation)
        self.send(Kind.PING, b"")

    async def read(self) -> tuple[int, bytes]:
        async with asyncio.timeout(LIMIT_S):
            length, kind = struct.unpack(">IB", await self.reader.readexactly(5))
            return kind, await self.reader.readexactly(length - 1)

    async def closed(self) -> bytes:
        """Wait until the other side has closed. Returns the bytes that it had sent."""
        received = b""
        async with asyncio.timeout(LIMIT_S):
            with contextlib.suppress(ConnectionResetError):
                while data := await self.reader.read(65536):
                    received += data
        return received

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@pytest_asyncio.fixture
async def network() -> AsyncIterator[Network]:
    made = Network()
    yield made
    await made.close()


async def linked(network: Network, **options: object) -> tuple[Member, Member]:
    """p1 and p2, linked by a connection that p2 dialled."""
    one, two = await network.start("p1", **options), await network.start("p2", **options)
    await until(lambda: "p2" in one.links.connected and "p1" in two.links.connected)
    return one, two


async def test_pair_of_members_has_one_link(network: Network) -> None:
    members = [await network.start(me) for me in ("p1", "p2", "p3")]
    await until(lambda: all(len(member.links.connected) == 2 for member in members))

    assert [member.links.connected for member in members] == [{"p2", "p3"}, {"p1", "p3"}, {"p1", "p2"}]
    assert [sorted(member.events_seen) for member in members] == [
        ["+p2", "+p3"],
        ["+p1", "+p3"],
        ["+p1", "+p2"],
    ]


async def test_frames_arrive_in_order_and_whole(network: Network) -> None:
    one, two = await linked(network)
    payloads = [bytes((n % 256,)) * (n * 997) for n in range(100)] + [bytes(MAX_FRAME_BYTES - 1)]
    for payload in payloads:
        assert two.links.send("p1", Kind.RAFT, payload)
    assert one.links.send("p2", Kind.REPORT, b"{}")
    await until(lambda: len(one.frames) == len(payloads) and two.frames)

    assert one.frames == [("p2", Kind.RAFT, payload) for payload in payloads]
    assert two.frames == [("p1", Kind.REPORT, b"{}")]


async def test_a_frame_of_any_cut_is_read(network: Network) -> None:
    one = await network.start("p1")
    stranger = await network.connect("p1")
    data = b""
    for kind, payload in (
        (Kind.HELLO, Hello("demo", "p3", 1).encode()),
        (Kind.RAFT, b"abc"),
        (Kind.REPORT, b""),
    ):
        data += struct.pack(">IB", len(payload) + 1, kind) + payload
    for byte in data:
        stranger.writer.write(bytes((byte,)))
        await stranger.writer.drain()
        await asyncio.sleep(0)
    await until(lambda: len(one.frames) == 2)

    assert one.frames == [("p3", Kind.RAFT, b"abc"), ("p3", Kind.REPORT, b"")]
    await stranger.close()


async def test_send_returns_false_without_a_link_or_above_the_limit(network: Network) -> None:
    one, _two = await linked(network)
    assert not one.links.send("p3", Kind.RAFT, b"nobody there")
    assert not one.links.send("p2", Kind.RAFT, bytes(MAX_FRAME_BYTES))
    assert one.links.send("p2", Kind.RAFT, b"still fine")


async def test_stop_is_reported_once_on_both_sides(network: Network) -> None:
    one, two = await linked(network)
    await two.links.stop()
    await until(lambda: not one.links.connected)

    assert one.changes == ["+p2", "-p2"]
    assert two.events_seen == ["+p1", "-p1: stopped"]
    assert not two.links.connected


async def test_frames_written_before_a_stop_arrive(network: Network) -> None:
    one, two = await linked(network)
    two.links.send("p1", Kind.RAFT, bytes(3_000_000))
    two.links.send("p1", Kind.RAFT, b"the last word")
    await two.links.stop()
    await until(lambda: len(one.frames) == 2)

    assert one.frames[-1] == ("p2", Kind.RAFT, b"the last word")


@pytest.mark.parametrize("returning", ["p1", "p2"])
async def test_a_member_that_returns_is_linked_again(network: Network, returning: str) -> None:
    one, two = await linked(network)
    gone, stays = (one, two) if returning == "p1" else (two, one)
    await gone.links.stop()
    await until(lambda: not stays.links.connected)
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    await network.start(returning, incarnation=2)
    await until(lambda: returning in stays.links.connected)

    assert loop.time() - start_s < 1.0, "the goal is 0.2 s; this machine may be busy"
    assert stays.changes == [f"+{returning}", f"-{returning}", f"+{returning}"]


async def test_reset_is_reported_immediately(network: Network) -> None:
    one = await network.start("p1", idle_s=60.0)
    stranger = await network.connect("p1")
    stranger.link()
    await until(lambda: one.links.connected)
    linger = struct.pack("ii", 1, 0)
    stranger.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    stranger.writer.transport.abort()
    await until(lambda: not one.links.connected)

    assert one.changes == ["+p3", "-p3"]


class TestHello:
    async def test_hello_answer_names_the_reached_member(self, network: Network) -> None:
        await network.start("p1", incarnation=77)
        stranger = await network.connect("p1")
        stranger.hello()
        kind, payload = await stranger.read()

        assert kind == Kind.HELLO
        expected = {"fleet": "demo", "proxy_id": "p1", "incarnation": 77, "protocol_version": 1}
        assert json.loads(payload) == expected
        await stranger.close()

    async def test_a_peer_that_does_not_hear_the_answer_is_not_linked(self, network: Network) -> None:
        """Found: such a peer dialled for ever, and its link was up during each wait."""
        one = await network.start("p1", hello_timeout_s=0.1, ping_s=0.01)
        stranger = await network.connect("p1")
        stranger.hello()
        await stranger.closed()
        assert one.events_seen == []
        await stranger.close()

    @pytest.mark.parametrize(
        ("hello", "reason"),
        [
            ({"fleet": "other"}, "belongs to fleet 'other', this member to 'demo'"),
            ({"proxy_id": "p9"}, "'p9' is not a member of this fleet"),
            ({"proxy_id": "p1"}, "'p1' is not a member of this fleet"),
            ({"version": 2}, "speaks protocol version 2, this member speaks 1"),
        ],
    )
    async def test_mismatched_hello_is_refused(
        self, network: Network, caplog: pytest.LogCaptureFixture, hello: dict[str, str], reason: str
    ) -> None:
        one = await network.start("p1")
        for _ in range(3):
            stranger = await network.connect("p1")
            stranger.hello(**hello)  # type: ignore[arg-type]
            assert await stranger.closed() == b"", "strangers get no answer"
            await stranger.close()

        assert one.events_seen == []
        assert caplog.text.count(reason) == 1, "logged once, not three times"

    async def test_the_dialling_side_checks_as_well(
        self, network: Network, caplog: pytest.LogCaptureFixture
    ) -> None:
        await network.start("p2")
        elsewhere = {"p1": network.endpoints["p2"], "p2": Endpoint("127.0.0.1", 1)}
        three = await network.start("p3", peers=elsewhere)
        await until(lambda: "'p2' answered at the address of 'p1'" in caplog.text)

        assert three.events_seen == []

    async def test_the_smaller_id_does_not_dial(
        self, network: Network, caplog: pytest.LogCaptureFixture
    ) -> None:
        two = await network.start("p2")
        stranger = await network.connect("p2")
        stranger.hello("p1")
        assert await stranger.closed() == b""
        assert two.events_seen == []
        assert "'p1' connected in the wrong direction" in caplog.text
        await stranger.close()

    @pytest.mark.parametrize(
        "data",
        [
            b"GET / HTTP/1.1\r\nHost: fleet\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"\x00\x00\x00\x00",
            b"\x00\x00\x00\x03\x01{}",
            b"\x00\x00\x00\x05\x01null",
            b"\x00\x00\x00\x03\x01\xff\xfe",
            b"\x00\x00\x00\x03\x02{}",
            b"\x00\x00\x10\x01" + b"\x01" + b" " * 4096,
            b"\x00\x00\x0f\xa1" + b"\x01" + b"[" * 4000,
        ],
        ids=lambda data: repr(data[:12]),
    )
    async def test_garbage_is_closed_at_once(self, network: Network, data: bytes) -> None:
        one = await network.start("p1", hello_timeout_s=60.0)
        stranger = await network.connect("p1")
        stranger.writer.write(data)
        assert await stranger.closed() == b""
        await stranger.close()

        stranger = await network.connect("p1")
        stranger.link()
        await until(lambda: one.links.connected)
        await stranger.close()

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"GET / HTTP/1.1\r\nHost: fleet\r\n\r\n", "it speaks HTTP to the address for members; send"),
            (
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                "it speaks TLS, and this member has no peer_tls",
            ),
            (b"SSH-2.0-OpenSSH_9.2p1\r\n", "it speaks SSH to the address for members; correct the port"),
            (
                bytes.fromhex("00000013 0012 0003 00000001 0005") + b"adminxxxx",
                "it speaks Kafka to the address for members; point clients at a listener",
            ),
        ],
        ids=["HTTP", "TLS", "SSH", "Kafka"],
    )
    async def test_other_protocol_is_named_in_the_log(
        self, network: Network, caplog: pytest.LogCaptureFixture, data: bytes, message: str
    ) -> None:
        await network.start("p1", hello_timeout_s=60.0)
        stranger = await network.connect("p1")
        stranger.writer.write(data)
        assert await stranger.closed() == b""
        await stranger.close()
        assert f"no link: a connection from 127.0.0.1: {message}" in caplog.text

    async def test_silence_is_closed(self, network: Network) -> None:
        await network.start("p1", hello_timeout_s=0.05, ping_s=0.01)
        stranger = await network.connect("p1")
        assert await stranger.closed() == b""
        await stranger.close()

    async def test_strangers_are_limited_in_number(self, network: Network) -> None:
        one = await network.start("p1", hello_timeout_s=60.0)
        strangers = [await network.connect("p1") for _ in range(128)]
        await until(lambda: len(one.links.strangers) == 128)
        late = await network.connect("p1")
        assert await strangers[0].closed() == b"", "the oldest connection makes room"
        assert len(one.links.strangers) == 128
        late.link()
        await until(lambda: one.links.connected)
        for stranger in [*strangers, late]:
            await stranger.close()

    async def test_strangers_of_one_host_leave_room_for_others(self, network: Network) -> None:
        one = await network.start("p1", hello_timeout_s=60.0)
        endpoint = network.endpoints["p1"]
        reader, writer = await asyncio.open_connection(
            endpoint.host, endpoint.port, local_addr=("127.0.0.2", 0)
        )
        slow = Stranger(reader, writer)
        strangers = [await network.connect("p1") for _ in range(300)]
        await until(lambda: len(one.links.strangers) == 128)
        assert await strangers[150].closed() == b""
        slow.link()
        await until(lambda: one.links.connected)
        for stranger in [*strangers, slow]:
            await stranger.close()


def hello_with(*digests: str) -> Hello:
    return Hello("demo", "p3", 1, voter_digests=digests)


class TestVoters:
    """A fleet with two configurations must not take either half for a majority."""

    def test_digest_ignores_order_and_distinguishes_voters(self) -> None:
        assert digest_voters(["p2", "p1", "p3"]) == digest_voters(["p1", "p2", "p3"])
        others: list[list[str]] = [["p1", "p2"], ["p1", "p2", "p4"], ["p1", "p2p3"], ["p1", "p2", "p3", "p4"]]
        assert digest_voters(["p1", "p2", "p3"]) not in map(digest_voters, others)

    async def test_members_with_the_same_voters_are_linked(self, network: Network) -> None:
        one, two = await linked(network, voter_digests=[digest_voters(["p1", "p2", "p3"])])
        assert not one.links.without_digests
        assert not two.links.without_digests

    @pytest.mark.parametrize("dialled", [False, True], ids=["accepting", "dialling"])
    async def test_a_member_that_counts_other_voters_is_refused(
        self, network: Network, caplog: pytest.LogCaptureFixture, dialled: bool
    ) -> None:
        own, other = digest_voters(["p1", "p2", "p3"]), digest_voters(["p1", "p2", "p4"])
        if dialled:
            await network.start("p1")
            network.members[0].links.hello = Hello("demo", "p1", 1, voter_digests=(other,))
            checking = await network.start("p3", voter_digests=[own])
        else:
            checking = await network.start("p1", voter_digests=[own])
            await network.start("p3", voter_digests=[other])
        await until(lambda: "counts other voters than this member" in caplog.text)

        assert own in caplog.text
        assert other in caplog.text
        assert "`voter:`" in caplog.text
        assert not checking.links.connected
        assert checking.events_seen == []

    async def test_a_member_without_a_digest_is_linked_and_reported(
        self, network: Network, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        one = await network.start("p1", voter_digests=["1:a"])
        old = await network.connect("p1")
        old.link()
        await until(lambda: one.links.connected)
        assert one.links.without_digests == {"p3"}
        assert "p3 sends no voter digest" in caplog.text

        newer = await network.connect("p1")
        newer.send(Kind.HELLO, Hello("demo", "p3", 2, voter_digests=("1:a",)).encode())
        newer.send(Kind.PING, b"")
        await until(lambda: len(one.changes) == 3)
        assert one.links.without_digests == set()
        for stranger in (old, newer):
            await stranger.close()

    @pytest.mark.parametrize(
        ("theirs", "linked"),
        [(("1:b", "1:c"), True), (("1:b",), True), (("1:c", "1:d"), False), (("1:c",), False)],
    )
    async def test_configurations_that_follow_one_another_link(
        self, network: Network, theirs: tuple[str, ...], linked: bool
    ) -> None:
        one = await network.start("p1", voter_digests=["1:a", "1:b"])
        stranger = await network.connect("p1")
        stranger.send(Kind.HELLO, hello_with(*theirs).encode())
        if linked:
            assert (await stranger.read())[0] == Kind.HELLO
        else:
            assert await stranger.closed() == b"", "a member of another fleet gets no answer"
            assert one.events_seen == []
        await stranger.close()

    @pytest.mark.parametrize(
        "value", [None, "1:a", {}, [1], [""], ["a" * 81], ["a"] * 9, [["a"]], [None], True]
    )
    async def test_malformed_digests_are_refused(self, network: Network, value: object) -> None:
        values = {**json.loads(hello_with().encode()), "voter_digests": value}
        with pytest.raises(ValueError, match="voter_digests"):
            Hello.decode(json.dumps(values).encode())
        one = await network.start("p1", voter_digests=["1:a"])
        stranger = await network.connect("p1")
        stranger.send(Kind.HELLO, json.dumps(values).encode())
        assert await stranger.closed() == b""
        assert one.events_seen == []
        await stranger.close()

    def test_previous_release_reads_a_hello_with_digests(self) -> None:
        most = hello_with(*("1:" + f"{number}" * 78 for number in range(8)))
        assert len(most.encode()) < 4096
        program = "import sys; from fleet.links import Hello; print(Hello.decode(sys.stdin.buffer.read()))"
        read = previous_release.run(program, most.encode()).decode().strip()
        assert read == "Hello(fleet='demo', proxy_id='p3', incarnation=1, protocol_version=1)"

    def test_a_hello_of_the_previous_release_is_read(self) -> None:
        program = "from fleet.links import Hello; print(Hello('demo', 'p3', 1).encode().decode())"
        assert Hello.decode(previous_release.run(program).strip()) == Hello("demo", "p3", 1)


class TestOneMemberTwice:
    async def test_later_incarnation_replaces_the_link(self, network: Network) -> None:
        one = await network.start("p1")
        first, second = await network.connect("p1"), await network.connect("p1")
        first.link(incarnation=1)
        await until(lambda: one.links.connected)
        second.link(incarnation=2)
        await until(lambda: len(one.events_seen) == 3)

        assert one.events_seen == ["+p3", "-p3: replaced by a newer connection", "+p3"]
        await first.closed()
        first.send(Kind.RAFT, b"from the past")
        second.send(Kind.RAFT, b"new")
        await until(lambda: one.frames)
        assert one.frames == [("p3", Kind.RAFT, b"new")]
        await first.close()
        await second.close()

    async def test_new_connection_of_the_incarnation_replaces_the_link(self, network: Network) -> None:
        """The peer has closed a connection, and this side has not received the end."""
        one = await network.start("p1")
        first, second = await network.connect("p1"), await network.connect("p1")
        first.link()
        await until(lambda: one.links.connected)
        second.link()
        await until(lambda: len(one.events_seen) == 3)
        await first.close()
        await second.close()

    async def test_earlier_incarnation_is_refused(
        self, network: Network, caplog: pytest.LogCaptureFixture
    ) -> None:
        one = await network.start("p1")
        first, second = await network.connect("p1"), await network.connect("p1")
        first.link(incarnation=2)
        await until(lambda: one.links.connected)
        second.hello(incarnation=1)
        await second.closed()

        assert one.events_seen == ["+p3"]
        assert "two processes use this id" in caplog.text
        await first.close()
        await second.close()


class TestOnALink:
    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (
                struct.pack(">IB", MAX_FRAME_BYTES + 1, Kind.RAFT),
                f"sent a frame of {MAX_FRAME_BYTES + 1} bytes",
            ),
            (b"\x00\x00\x00\x00", "sent a frame of 0 bytes"),
            (b"\xff\xff\xff\xff", "sent a frame of 4294967295 bytes"),
            (b"\x00\x00\x00\x01\x09", "sent a frame of kind 9"),
            (b"\x00\x00\x00\x01\x01", "sent a frame of kind 1"),
        ],
    )
    async def test_garbage_ends_the_link(self, network: Network, data: bytes, reason: str) -> None:
        one = await network.start("p1")
        stranger = await network.connect("p1")
        stranger.link()
        await until(lambda: one.links.connected)
        stranger.writer.write(data)
        await stranger.closed()

        assert one.events_seen == ["+p3", f"-p3: {reason}"]
        await stranger.close()

    async def test_pings_keep_the_link_and_are_not_events(self, network: Network) -> None:
        one, two = await linked(network, ping_s=0.01, idle_s=0.5)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + 1.2
        await until(lambda: loop.time() > end_s)

        assert (one.events_seen, two.events_seen) == (["+p2"], ["+p1"])
        assert one.frames == two.frames == []

    async def test_silence_ends_the_link(self, network: Network) -> None:
        """A half-open connection: the peer is dead, and no packet reports it."""
        one = await network.start("p1", ping_s=0.01, idle_s=0.2)
        stranger = await network.connect("p1")
        stranger.link()
        await until(lambda: one.links.connected)
        await until(lambda: not one.links.connected)

        assert one.events_seen == ["+p3", "-p3: silent for 0.2 s"]
        await stranger.close()

    async def test_a_peer_that_does_not_read_is_given_up(self, network: Network) -> None:
        one = await network.start("p1", ping_s=60.0)
        stranger = await network.connect("p1")
        stranger.link()
        await until(lambda: one.links.connected)
        stranger.writer.transport.pause_reading()  # type: ignore[attr-defined]
        sent = 0
        while one.links.send("p3", Kind.RAFT, bytes(1 << 20)):
            sent += 1
            assert sent < 200
        await until(lambda: not one.links.connected)

        assert one.events_seen == ["+p3", "-p3: the peer does not read its frames"]
        stranger.writer.transport.abort()

    async def test_failing_callback_does_not_end_the_link(
        self, network: Network, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, two = await linked(network)
        seen: list[bytes] = []

        def fail(_peer: str, _kind: Kind, payload: bytes) -> None:
            seen.append(payload)
            raise RuntimeError("a fault of control")

        monkeypatch.setattr(one, "on_frame", fail)
        two.links.send("p1", Kind.RAFT, b"1")
        two.links.send("p1", Kind.RAFT, b"2")
        await until(lambda: len(seen) == 2)

        assert one.links.connected == {"p2"}
        assert "a fault of control" in caplog.text


async def test_a_peer_that_refuses_is_not_dialled_ten_times_a_second(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    dialled = 0

    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialled
        dialled += 1
        writer.close()

    server = await asyncio.start_server(refuse, sock=network.sockets["p1"].dup())
    two = await network.start("p2", redial_s=(0.001, 0.002), refused_redial_s=60.0)
    await until(lambda: dialled >= 8)
    loop = asyncio.get_running_loop()
    before, end_s = dialled, loop.time() + 0.5
    await until(lambda: loop.time() > end_s)

    assert two.events_seen == []
    assert dialled - before <= 4, "each pause is twice the previous one"
    server.close()


async def test_invalid_name_does_not_end_the_dialling(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled = 0
    dial = PeerLinks.dial

    async def counted(self: PeerLinks, peer: str) -> object:
        nonlocal dialled
        connection = await dial(self, peer)
        dialled += 1
        return connection

    monkeypatch.setattr(PeerLinks, "dial", counted)
    await network.start("p2", peers={"p1": Endpoint("x" * 70 + ".invalid", 1)}, redial_s=(0.001, 0.002))
    await until(lambda: dialled >= 3)


async def test_failed_link_task_is_reported(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the failure showed only at the end of the process, and no peer was dialled any more."""

    async def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(PeerLinks, "dial", fail)
    two = await network.start("p2")
    await until(lambda: two.broken)
    assert isinstance(two.broken[0], MemoryError)


async def test_unknown_name_is_a_local_failure(network: Network) -> None:
    two = await network.start("p2", peers={"p1": Endpoint("no-such-host.invalid", 1)})
    await until(lambda: two.failed_here)
    peer, error = two.failed_here[0]
    assert peer == "p1"
    assert "no address for no-such-host.invalid" in error
    assert two.events_seen == []


async def test_failed_accept_is_a_local_failure(network: Network) -> None:
    """p1 is dialled, and has no descriptor left for the connection."""
    one = await network.start("p1")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    stranger = socket.socket()
    try:
        with socket.socket() as lowest:
            free = lowest.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        stranger.setblocking(False)
        stranger.connect_ex((network.endpoints["p1"].host, network.endpoints["p1"].port))
        await until(lambda: {peer for peer, _ in one.failed_here} == {"p2", "p3"})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        stranger.close()
