"""The generator finds every address in Kafka's definitions, and the committed tables are up to date."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from fleet.proxy.wire import addresses
from fleet.proxy.wire.tail import PADDING_TAGS
from tools import gen_tables
from tools.gen_tables import FLOORS, HARMLESS, Field, Message, Range, offered, rewritten

JAR = Path(__file__).parents[2] / "build" / "kafka" / "definitions" / "kafka-clients-4.4.0.jar"
EVERY = Range(0, gen_tables.NEVER_FLEXIBLE)
NONE = Range(0, -1)

_NAME = "chosen by the user or owner of the named object"
_WORD = "one of Kafka's own words"
_APPLICATIONS = "what clients tell each other, or keep, by way of a broker"
KNOWN_TEXTS: Final = {
    **dict.fromkeys(("Name", "Topic", "TopicName", "ResourceName", "EntityName", "GroupId", "Key"), _NAME),
    **dict.fromkeys(("ClientId", "GroupInstanceId", "InstanceId", "ProcessId", "TransactionalId"), _NAME),
    **dict.fromkeys(("MemberId", "Leader", "TokenId", "ClusterId", "Hmac"), "made up by brokers, by chance"),
    **dict.fromkeys(("Principal", "PrincipalName", "TokenRequesterPrincipalName", "User"), _NAME),
    **dict.fromkeys(("Rack", "RackId"), "`broker.rack`, or `client.rack`, as operators call it"),
    **dict.fromkeys(("SubscribedTopicNames", "SubscribedTopicRegex", "SourceTopics", "SinkTopic"), _NAME),
    **dict.fromkeys(("RepartitionSinkTopics", "Stores", "Successors", "SubtopologyId"), _NAME),
    **dict.fromkeys(("EntityType", "PrincipalType", "TokenRequesterPrincipalType", "GroupState"), _WORD),
    **dict.fromkeys(("GroupType", "TransactionState", "UnknownStateFilters", "Feature"), _WORD),
    **dict.fromkeys(
        ("AssignorName", "ProtocolName", "ProtocolType", "Mechanisms", "RequestedMetrics"), _WORD
    ),
    **dict.fromkeys(("Assignment", "MemberAssignment", "MemberMetadata", "Metadata"), _APPLICATIONS),
    **dict.fromkeys(("ProtocolData", "Records"), _APPLICATIONS),
    "AuthBytes": "data of the SASL mechanism: end to end",
    "LogDir": "a path",
    "Value": "of a topic's configuration or a client's tag; of DescribeConfigs it is rewritten",
    "Documentation": "of a setting, the same for everybody",
    "StatusDetail": "what a group of Kafka Streams lacks",
    **dict.fromkeys(
        ("ErrorMessage", "AcknowledgeErrorMessage", "BatchIndexErrorMessage"),
        "for people; of brokers it has ids, and the errors of real ones are searched (tests/conformance)",
    ),
}
"""Fields that hold text or bytes, by name → why no broker's address is in them."""


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    assert JAR.exists(), f"{JAR} is brought by the Makefile"
    return gen_tables.read_jar(JAR)


def plain(name: str, kind: str, *fields: Field) -> Field:
    return Field(name, kind, EVERY, NONE, None, NONE, fields)


LISTENERS: Final = "DescribeQuorumResponse.Nodes.Listeners"
LISTENER: Final = (plain("Name", "string"), plain("Host", "string"), plain("Port", "uint16"))
"""Fields that are blanked in that API only."""


def with_field(messages: list[Message], name: str, extra: Field) -> list[Message]:
    """The definitions, with one more field at the end of one response."""
    return [
        dataclasses.replace(message, response=(*message.response, extra)) if message.name == name else message
        for message in messages
    ]


def test_committed_tables_match_the_definitions(messages: list[Message]) -> None:
    assert gen_tables.main([str(JAR), "--check"]) == 0
    assert gen_tables.render(messages, JAR.name) == gen_tables.OUTPUT.read_text()


def test_check_reports_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stale = tmp_path / "_tables.py"
    stale.write_text(
        gen_tables.OUTPUT.read_text().replace('Api("Fetch", 4, 18, 12)', 'Api("Fetch", 4, 15, 12)')
    )
    before = stale.read_text()
    assert gen_tables.main([str(JAR), "--check", "--output", str(stale)]) == 1
    assert "2 lines differ" in capsys.readouterr().err
    assert stale.read_text() == before
    assert gen_tables.main([str(JAR), "--output", str(stale)]) == 0
    assert stale.read_text() == gen_tables.OUTPUT.read_text()


def test_every_address_is_accounted_for(messages: list[Message]) -> None:
    assert gen_tables.unaccounted(messages) == []
    assert all(HARMLESS.values()), "every exception has its reason"
    assert all(reason for _, reason in FLOORS.values())


def test_sasl_handshake_is_offered_without_v0(messages: list[Message]) -> None:
    (handshake,) = (message for message in messages if message.name == "SaslHandshake")
    assert handshake.versions == Range(0, 1)
    assert offered(handshake) == Range(1, 1)


def texts(message: Message, version: int) -> Iterator[tuple[str, str]]:
    """Path and name of every field of a response that text, or bytes, may be in."""

    def visit(fields: tuple[Field, ...], path: str) -> Iterator[tuple[str, str]]:
        for item in fields:
            if version not in item.versions:
                continue
            if item.type.removeprefix("[]") in ("string", "bytes", "records"):
                yield f"{path}.{item.name}", item.name
            yield from visit(item.fields, f"{path}.{item.name}")

    return visit(message.response, f"{message.name}Response")


def test_every_text_field_is_rewritten_or_holds_no_address(messages: list[Message]) -> None:
    """A new field, with any name, fails here until a developer has read its purpose."""
    unread, met = set(), set()
    for message in messages:
        versions = offered(message)
        for version in range(versions.low, versions.high + 1):
            settled = rewritten(message, version) | HARMLESS.keys()
            for path, name in texts(message, version):
                if path in settled:
                    continue
                met.add(name)
                if name not in KNOWN_TEXTS:
                    unread.add(path)
    assert not unread
    assert met == KNOWN_TEXTS.keys(), "listed, and there is no such field"


def test_rewritten_apis_are_those_known_to_carry_addresses(messages: list[Message]) -> None:
    found = {
        message.name
        for message in messages
        for version in range(gen_tables.offered(message).low, gen_tables.offered(message).high + 1)
        if gen_tables.rewritten(message, version)
    }
    endpoints = {"Produce", "Fetch", "ShareFetch", "ShareAcknowledge"}
    blanked = {"DescribeConfigs", "DescribeQuorum"}
    assert found == {"Metadata", "FindCoordinator", "DescribeCluster"} | blanked | endpoints


def test_every_version_with_addresses_is_offered(messages: list[Message]) -> None:
    fetch, quorum = (message for message in messages if message.name in ("Fetch", "DescribeQuorum"))
    assert not rewritten(fetch, 15)
    assert rewritten(fetch, 16)
    assert offered(fetch) == Range(4, 18)
    assert not rewritten(quorum, 1)
    assert rewritten(quorum, 2) == {f"{LISTENERS}.Host", f"{LISTENERS}.Port"}
    assert offered(quorum) == quorum.versions == Range(0, 2)


def test_unblanked_listeners_are_reported(messages: list[Message], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gen_tables, "CONTROLLERS", frozenset())
    assert gen_tables.unaccounted(messages) == [
        f"{LISTENERS}.Host v2 may carry an address",
        f"{LISTENERS}.Port v2 may carry an address",
    ]
    with pytest.raises(SystemExit):
        gen_tables.render(messages, "test")


@pytest.mark.parametrize(
    "other",
    [
        plain("Listener", "Listener", plain("Host", "string"), plain("Port", "uint16")),
        plain("Listener", "Listener", *LISTENER[:2], plain("Port", "int32")),
        plain("Listener", "Listener", *LISTENER[1:], LISTENER[0]),
        plain("RaftEndpoint", "string"),
    ],
)
def test_other_controller_addresses_are_reported(messages: list[Message], other: Field) -> None:
    """A later version may add them, and only the known form is blanked."""
    grown = with_field(messages, "DescribeQuorum", other)
    problems = gen_tables.unaccounted(grown)
    assert problems
    assert all("DescribeQuorumResponse" in problem for problem in problems)
    with pytest.raises(SystemExit):
        gen_tables.render(grown, "test")


def test_addresses_behind_records_are_found(messages: list[Message]) -> None:
    behind = {
        (message.name, version, item.name, item.tag)
        for message in messages
        for version in range(gen_tables.offered(message).low, gen_tables.offered(message).high + 1)
        if (item := gen_tables.behind_records(message, version))
    }
    in_tag = {("Fetch", version, "NodeEndpoints", 0) for version in (16, 17, 18)}
    assert behind == in_tag | {("ShareFetch", version, "NodeEndpoints", None) for version in (1, 2)}


@pytest.mark.parametrize("name", ["Fetch", "ShareFetch"])
def test_padding_matches_no_definition(messages: list[Message], name: str) -> None:
    (message,) = (message for message in messages if message.name == name)
    numbers = {item.tag for item in message.response if item.tag is not None}
    assert not numbers & {*PADDING_TAGS[-2:]}


def test_addresses_before_the_end_are_reported(messages: list[Message]) -> None:
    """Rewritten fields behind records must be last; the generator supports no other place."""
    grown = with_field(messages, "ShareFetch", plain("After", "int32"))
    with pytest.raises(AssertionError, match=r"ShareFetch\.NodeEndpoints is not at the end"):
        gen_tables.render(grown, "test")


@pytest.mark.parametrize(
    "extra",
    [
        plain("LeaderHost", "string"),
        plain("Port", "int32"),
        plain("AdvertisedListeners", "[]string"),
        plain(
            "Nodes", "[]Node", plain("Id", "int32"), plain("Inner", "Deep", plain("RaftEndpoint", "string"))
        ),
        plain("Node", "Node", plain("NodeId", "int32"), plain("Host", "string"), plain("Port", "uint16")),
        plain("Listeners", "[]Listener", *LISTENER),
    ],
)
def test_new_address_like_field_is_reported(messages: list[Message], extra: Field) -> None:
    grown = with_field(messages, "Heartbeat", extra)
    problems = gen_tables.unaccounted(grown)
    assert problems
    assert all("HeartbeatResponse" in problem for problem in problems)
    with pytest.raises(SystemExit):
        gen_tables.render(grown, "test")


def test_new_field_of_the_known_form_is_rewritten(messages: list[Message]) -> None:
    """Also in a tag and in classic versions; the generated functions work."""
    node = (plain("NodeId", "int32"), plain("Host", "string"), plain("Port", "int32"))
    grown = with_field(messages, "Heartbeat", plain("Nodes", "[]Node", *node))
    assert gen_tables.unaccounted(grown) == []
    text = gen_tables.render(grown, "test")
    namespace: dict[str, object] = {"__name__": "generated"}
    exec(compile(text, "generated", "exec"), namespace)
    rows = namespace["PATCHED"]
    assert isinstance(rows, tuple)
    layouts = {(low, high): layout for key, low, high, layout in rows if key == 12}
    assert set(layouts) == {(0, 0), (1, 3), (4, 4)}

    class One(addresses.Addresses):
        __slots__ = ()

        def __missing__(self, broker_id: int) -> addresses.Address:
            return addresses.Address(b"\x02z\0\0\0\7", b"\0\1z\0\0\0\7", b"", b"")

    raw = b"size" + b"corr" + b"\0\0\0\0" + b"\0\0" + b"\0\0\0\1" + b"\0\0\0\5" + b"\0\3abc" + b"\0\0\x23\x84"
    parts: addresses.Parts = []
    assert layouts[(1, 3)].patch(memoryview(raw), One(), parts) == len(raw)
    assert b"".join(parts) == raw[4:22] + b"\0\1z\0\0\0\7"


def test_exception_without_a_field_is_reported(messages: list[Message]) -> None:
    without = [message for message in messages if message.name != "DescribeAcls"]
    assert gen_tables.unaccounted(without) == [
        "DescribeAclsResponse.Resources.Acls.Host is listed as harmless and does not exist"
    ]


def test_only_apis_that_brokers_serve_are_offered(messages: list[Message]) -> None:
    keys = {message.api_key for message in messages}
    assert {0, 1, 3, 10, 18, 32, 60, 78, 79} <= keys
    assert not keys & {4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82}


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [("none", [], [0, 1, 99]), ("3", [3], [2, 4]), ("3+", [3, 4, 999], [2]), ("3-7", [3, 7], [2, 8])],
)
def test_version_range_is_parsed(text: str, inside: list[int], outside: list[int]) -> None:
    parsed = Range.parse(text)
    assert all(version in parsed for version in inside)
    assert not any(version in parsed for version in outside)


def test_comments_are_not_data() -> None:
    text = '// licence\n{ "a": "http://x // y", // why\n  "b": [1, 2] // "c": 3\n}'
    assert gen_tables.parse_json(text) == {"a": "http://x // y", "b": [1, 2]}
