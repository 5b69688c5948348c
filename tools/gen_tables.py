"""Generate fleet/proxy/wire/_tables.py from the message definitions inside a kafka-clients jar.

    python tools/gen_tables.py build/kafka/definitions/kafka-clients-4.4.0.jar [--check]

Fields with a broker's address are not listed here but found: a node id followed by a host and a port, in the
response of any API that brokers serve. Every other field that looks like an address must be blanked
(``BLANKED``, ``CONTROLLERS``) or be listed as harmless (``HARMLESS``) with a reason. Otherwise nothing is
generated.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / "fleet" / "proxy" / "wire" / "_tables.py"
DEFINITIONS = ROOT / "build" / "kafka" / "definitions"

FLOORS: dict[str, tuple[int, str]] = {
    "SaslHandshake": (1, "after v0, tokens have no header and cannot be distinguished from requests"),
}
"""API → lowest version to accept, if it is above the lowest defined one, and the reason."""

_CLIENT = "the client's own address, as the broker sees it"
_APPLICATION = "where one streams application serves others"
HARMLESS: dict[str, str] = {
    "ConsumerGroupDescribeResponse.Groups.Members.ClientHost": _CLIENT,
    "DescribeGroupsResponse.Groups.Members.ClientHost": _CLIENT,
    "ShareGroupDescribeResponse.Groups.Members.ClientHost": _CLIENT,
    "StreamsGroupDescribeResponse.Groups.Members.ClientHost": _CLIENT,
    "StreamsGroupDescribeResponse.Groups.Members.UserEndpoint.Host": _APPLICATION,
    "StreamsGroupDescribeResponse.Groups.Members.UserEndpoint.Port": _APPLICATION,
    "StreamsGroupHeartbeatResponse.PartitionsByUserEndpoint.UserEndpoint.Host": _APPLICATION,
    "StreamsGroupHeartbeatResponse.PartitionsByUserEndpoint.UserEndpoint.Port": _APPLICATION,
    "StreamsGroupHeartbeatResponse.EndpointInformationEpoch": "a number that counts changes",
    "DeleteAclsResponse.FilterResults.MatchingAcls.Host": "which clients an ACL is for",
    "DescribeAclsResponse.Resources.Acls.Host": "which clients an ACL is for",
    "DescribeClusterResponse.EndpointType": "whether brokers or controllers follow",
}
"""Fields that look like addresses but are not a broker's or a controller's."""

REPORTING = frozenset(("Metadata", "DescribeCluster"))
"""Responses that list all brokers: real addresses in them that the directory does not know are reported."""

BLANKED = {"DescribeConfigs": ("Name", "Value")}
"""API → (field with a name, field that is blanked if the name belongs to a configuration with an address)."""

CONTROLLERS = frozenset(("DescribeQuorum",))
"""Responses with listeners of controllers, whose hosts become empty and whose ports 0: see ADR 39."""

PARTITION_KEYS = {
    **dict.fromkeys(
        (
            *("Fetch", "ListOffsets", "DeleteRecords", "OffsetForLeaderEpoch", "DescribeProducers"),
            *("ShareFetch", "ShareAcknowledge"),
        ),
        ("Topics",),
    ),
    "Produce": ("TopicData",),
    "WriteTxnMarkers": ("Markers", "Topics"),
}
"""APIs that the leader of a partition serves → path to the array of topics. The first element decides."""

GROUP_KEYS = {
    **dict.fromkeys(
        (
            *("OffsetCommit", "JoinGroup", "Heartbeat", "LeaveGroup", "SyncGroup", "TxnOffsetCommit"),
            *("OffsetDelete", "ConsumerGroupHeartbeat", "ShareGroupHeartbeat", "StreamsGroupHeartbeat"),
            *("StreamsGroupTopologyDescriptionUpdate", "AlterShareGroupOffsets", "DeleteShareGroupOffsets"),
        ),
        (("GroupId",),),
    ),
    "ConsumerGroupDescribe": (("GroupIds",),),
    "ShareGroupDescribe": (("GroupIds",),),
    "StreamsGroupDescribe": (("GroupIds",),),
    "OffsetFetch": (("GroupId",), ("Groups", "GroupId")),
    "DescribeGroups": (("Groups",),),
    "DeleteGroups": (("GroupsNames",),),
    "DescribeShareGroupOffsets": (("Groups", "GroupId"),),
}
"""APIs that the coordinator of a group serves → paths to the group; the path depends on the version."""

TRANSACTION_KEYS = {
    **dict.fromkeys(("InitProducerId", "AddOffsetsToTxn", "EndTxn"), (("TransactionalId",),)),
    "AddPartitionsToTxn": (("V3AndBelowTransactionalId",), ("Transactions", "TransactionalId")),
    "DescribeTransactions": (("TransactionalIds",),),
}
"""APIs that the coordinator of a transaction serves → paths to the transactional id."""

CONFIG_KEYS = {
    **dict.fromkeys(("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs"), ("Resources",)),
}
"""APIs that the broker serves which the first resource names, if it names one → path to the resources."""

UNKEYED = {
    "ANY_BROKER": frozenset(
        (
            *("Metadata", "FindCoordinator", "CreateTopics", "DeleteTopics", "CreatePartitions"),
            *("DescribeAcls", "CreateAcls", "DeleteAcls", "ElectLeaders", "AlterPartitionReassignments"),
            *("ListPartitionReassignments", "DescribeClientQuotas", "AlterClientQuotas"),
            *("DescribeUserScramCredentials", "AlterUserScramCredentials", "DescribeQuorum"),
            *("UpdateFeatures", "DescribeCluster", "UnregisterBroker", "ListConfigResources"),
            *("DescribeTopicPartitions", "AddRaftVoter", "RemoveRaftVoter", "UnregisterController"),
            *("CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken"),
            *("DescribeDelegationToken", "GetTelemetrySubscriptions", "PushTelemetry"),
            # Only brokers send these requests.
            *("InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState"),
            *("DeleteShareGroupState", "ReadShareGroupStateSummary"),
        )
    ),
    "ALL_BROKERS": frozenset(("ListGroups", "ListTransactions")),
    "ONE_BROKER": frozenset(("DescribeLogDirs", "AlterReplicaLogDirs")),
    "API_VERSIONS_ROUTE": frozenset(("ApiVersions",)),
    "SASL": frozenset(("SaslHandshake", "SaslAuthenticate")),
}
"""Which brokers can answer a request without a key: any, all of them together, or one that the request does
not name."""

ADDRESS_WORDS = re.compile(
    "host|hosts|hostname|port|ports|endpoint|endpoints|listener|listeners|address|addresses|servers?|url|uri"
)
FIXED_SIZES = {
    **{"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4},
    **{"int64": 8, "float64": 8, "uuid": 16},
}
NEVER_FLEXIBLE = 1 << 15
MAX_VARINT_BYTES = 5


@dataclass(frozen=True, slots=True)
class Range:
    """Versions from ``low`` to ``high``, both included; empty if ``high`` is below ``low``."""

    low: int
    high: int

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    @classmethod
    def parse(cls, text: str) -> Range:
        """Read ``none``, ``3``, ``3+`` or ``3-7``."""
        if text == "none":
            return cls(0, -1)
        low, _, high = text.removesuffix("+").partition("-")
        return cls(int(low), NEVER_FLEXIBLE if text.endswith("+") else int(high or low))


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a definition; ``fields`` are the fields of its struct, wherever the struct is defined."""

    name: str
    type: str
    versions: Range
    tagged: Range
    tag: int | None
    nullable: Range
    fields: tuple[Field, ...] = ()

    @property
    def element(self) -> str:
        return self.type.removeprefix("[]")

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[]")


@dataclass(frozen=True, slots=True)
class Message:
    """One API that brokers serve: its versions, and the fields of its response and request."""

    api_key: int
    name: str
    versions: Range
    flexible: Range
    response: tuple[Field, ...]
    request: tuple[Field, ...] = ()

    @property
    def first_flexible(self) -> int:
        return self.flexible.low if self.flexible.high >= 0 else NEVER_FLEXIBLE


def parse_json(text: str) -> dict[str, object]:
    """Parse JSON with ``//`` comments, which Kafka's definitions have outside strings only."""
    bare = re.sub(r'("(?:[^"\\]|\\.)*")|//[^\n]*', lambda found: found.group(1) or "", text)
    parsed = json.loads(bare)
    assert isinstance(parsed, dict)
    return parsed


def _fields(raw: object, structs: Mapping[str, object]) -> tuple[Field, ...]:
    assert isinstance(raw, list)
    fields = []
    for item in raw:
        nested = item.get("fields", structs.get(item["type"].removeprefix("[]"), []))
        fields.append(
            Field(
                name=item["name"],
                type=item["type"],
                versions=Range.parse(item.get("versions", "0+")),
                tagged=Range.parse(item.get("taggedVersions", "none")),
                tag=item.get("tag"),
                nullable=Range.parse(item.get("nullableVersions", "none")),
                fields=_fields(nested, structs),
            )
        )
    return tuple(fields)


def _all_fields(raw: Mapping[str, object]) -> tuple[Field, ...]:
    shared = raw.get("commonStructs", [])
    assert isinstance(shared, list)
    return _fields(raw["fields"], {struct["name"]: struct["fields"] for struct in shared})


def read_messages(texts: Mapping[str, str]) -> list[Message]:
    """Return the APIs that brokers serve, sorted by key.

    Args: texts: file name → definition.
    """
    parsed = [parse_json(text) for text in texts.values()]
    responses = {raw["apiKey"]: raw for raw in parsed if raw["type"] == "response"}
    messages = []
    for raw in parsed:
        listeners = raw.get("listeners")
        if raw["type"] != "request" or not isinstance(listeners, list) or "broker" not in listeners:
            continue
        versions = Range.parse(str(raw["validVersions"]))
        response = responses[raw["apiKey"]]
        name = str(raw["name"]).removesuffix("Request")
        assert response["flexibleVersions"] == raw["flexibleVersions"], name
        messages.append(
            Message(
                api_key=int(str(raw["apiKey"])),
                name=name,
                versions=versions,
                flexible=Range.parse(str(raw["flexibleVersions"])),
                response=_all_fields(response),
                request=_all_fields(raw),
            )
        )
    return sorted(messages, key=lambda message: message.api_key)


def read_jar(path: Path) -> list[Message]:
    """Return the APIs that brokers serve, sorted by key, from a kafka-clients jar."""
    with zipfile.ZipFile(path) as jar:
        names = [name for name in jar.namelist() if re.fullmatch(r"common/message/\w+\.json", name)]
        return read_messages({name: jar.read(name).decode() for name in sorted(names)})


def offered(message: Message) -> Range:
    """Return the versions of an API that the fleet offers."""
    low = message.versions.low
    floor, _ = FLOORS.get(message.name, (low, ""))
    return Range(max(low, floor), message.versions.high)


def active(fields: tuple[Field, ...], version: int) -> list[Field]:
    """Return the untagged fields of a struct in one version."""
    return [item for item in fields if version in item.versions and version not in item.tagged]


def tagged(fields: tuple[Field, ...], version: int) -> list[Field]:
    """Return the tagged fields of a struct in one version."""
    return [item for item in fields if version in item.versions and version in item.tagged]


def is_address(fields: list[Field], index: int) -> bool:
    """Whether a broker id, a host and a port start at the field."""
    window = [(item.name, item.type) for item in fields[index : index + 3]]
    return window[1:] == [("Host", "string"), ("Port", "int32")] and window[0] in (
        ("NodeId", "int32"),
        ("BrokerId", "int32"),
    )


def is_blanked(message: Message, fields: list[Field], index: int) -> bool:
    """Whether a name, and the value that the name may blank, start at the field."""
    names = tuple(item.name for item in fields[index : index + 2])
    return message.name in BLANKED and names == BLANKED[message.name]


def is_listener(message: Message, fields: list[Field], index: int) -> bool:
    """Whether the name, the host and the port of a controller's listener start at the field."""
    window = [(item.name, item.type) for item in fields[index : index + 3]]
    listener = [("Name", "string"), ("Host", "string"), ("Port", "uint16")]
    return message.name in CONTROLLERS and window == listener


def rewritten(message: Message, version: int) -> set[str]:
    """Return the paths of the fields that the generated function of one version rewrites."""
    paths: set[str] = set()

    def visit(fields: tuple[Field, ...], path: str) -> None:
        plain = active(fields, version)
        for index, item in enumerate(plain):
            if is_address(plain, index) or is_listener(message, plain, index):
                paths.update((f"{path}.Host", f"{path}.Port"))
            if is_blanked(message, plain, index):
                paths.add(f"{path}.Value")
            visit(item.fields, f"{path}.{item.name}")
        for item in tagged(fields, version):
            visit(item.fields, f"{path}.{item.name}")

    visit(message.response, f"{message.name}Response")
    return paths


def carries(message: Message, version: int, item: Field) -> bool:
    """Whether there is anything to rewrite in one field of a response."""
    return bool(rewritten(replace(message, response=(item,)), version))


def has_records(item: Field) -> bool:
    """Whether record batches are in a field."""
    return item.type == "records" or any(map(has_records, item.fields))


def behind_records(message: Message, version: int) -> Field | None:
    """Return the field with the addresses if the response has record batches before it; else None.

    Such a response passes unchanged up to this field, which is the last untagged field or a tagged one.
    """
    plain = active(message.response, version)
    found = [item for item in (*plain, *tagged(message.response, version)) if carries(message, version, item)]
    if not found or not any(map(has_records, plain)):
        return None
    (item,) = found
    assert item.is_array, f"{message.name}.{item.name} is not an array"
    assert item is plain[-1] or item not in plain, f"{message.name}.{item.name} is not at the end"
    return item


def suspicious(message: Message, version: int) -> Iterator[str]:
    """Yield the paths of all fields of one response whose name contains host, port or a similar word."""

    def visit(fields: tuple[Field, ...], path: str) -> Iterator[str]:
        for item in fields:
            if version not in item.versions:
                continue
            words = re.findall(r"[A-Z][a-z0-9]*", item.name)
            if not item.fields and any(ADDRESS_WORDS.fullmatch(word.lower()) for word in words):
                yield f"{path}.{item.name}"
            yield from visit(item.fields, f"{path}.{item.name}")

    return visit(message.response, f"{message.name}Response")


def unaccounted(messages: list[Message]) -> list[str]:
    """Return the fields that look like an address and are neither rewritten nor listed as harmless.

    Returns: one line for each field and version, and for each entry of ``HARMLESS`` without a field.
    """
    problems = []
    harmless = set()
    for message in messages:
        versions = offered(message)
        for version in range(versions.low, versions.high + 1):
            handled = rewritten(message, version)
            for path in suspicious(message, version):
                if path in HARMLESS:
                    harmless.add(path)
                elif path not in handled:
                    problems.append(f"{path} v{version} may carry an address")
    missing = sorted(set(HARMLESS) - harmless)
    problems += [f"{path} is listed as harmless and does not exist" for path in missing]
    return problems


@dataclass(slots=True)
class Emitter:
    """Writes the body of the patching function of one response and version, as straight-line Python.

    ``skip`` is how far the position in the generated code lags behind. Fields of fixed size are not read:
    their sizes are added up until a field behind them is read.
    """

    message: Message
    version: int
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    skip: int = 0
    blank: str = ""
    brokers_known: bool = False
    sliced: bool = False
    """Whether the function pauses between slices, as a generator."""

    @property
    def flexible(self) -> bool:
        return self.version in self.message.flexible

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def at(self) -> str:
        return f"pos + {self.skip}" if self.skip else "pos"

    def flush(self) -> None:
        if self.skip:
            self.line(f"pos += {self.skip}")
            self.skip = 0

    def number(self, name: str, classic: str, size: int) -> None:
        """Read a length or count: a varint in flexible versions, else an integer of ``size`` bytes."""
        if self.flexible:
            self.line(f"{name} = buf[{self.at()}]")
            self.skip += 1
            self.flush()
            self.line(f"if {name} > 127:")
            self.line(f"    {name}, pos = read_varint(buf, pos - 1)")
        else:
            self.line(f"({name},) = {classic}(buf, {self.at()})")
            self.skip += size
            self.flush()

    def variable(self, kind: str) -> None:
        """Skip a string or bytes; the generated variable ``length`` keeps the encoded length."""
        wide = kind in ("bytes", "records")
        self.number("length", "read_int32" if wide else "read_int16", 4 if wide else 2)
        self.pass_length()

    def pass_length(self) -> None:
        if self.flexible:
            self.line("if length > 1:")
            self.line("    pos += length - 1")
        else:
            self.line("if length > 0:")
            self.line("    pos += length")
            self.line("elif length < -1:")
            self.line("    reject_negative_length(length, pos)")

    def address(self, fields: list[Field], index: int) -> None:
        """Read a broker id, a host and a port; replace host and port, and report them if necessary."""
        self.flush()
        encoding = "compact" if self.flexible else "classic"
        if self.flexible:
            self.line("broker_id, length = read_id_and_compact_length(buf, pos)")
            self.line("host = pos + 4")
            self.line("pos += 5")
            self.line("if length > 127:")
            self.line("    length, pos = read_varint(buf, pos - 1)")
            self.line("pos += (length or 1) + 3")
            self.line("if length > 1 and broker_id != -1:")
        else:
            self.line("broker_id, length = read_id_and_length(buf, pos)")
            self.line("host = pos + 4")
            self.line("pos += 10")
            self.pass_length()
            self.line("if length > 0 and broker_id != -1:")
        self.line("    address = addresses[broker_id]")
        self.line(f"    parts += (buf[mark:host], address.{encoding})")
        self.line("    mark = pos")
        if self.message.name in REPORTING:
            guard = "of_brokers and " if self.brokers_known else ""
            has_rack = index + 3 < len(fields) and fields[index + 3].name == "Rack"
            self.line(f"    if {guard}buf[host:pos] != address.real_{encoding}:")
            self.line(f"        addresses.report_{encoding}(buf, broker_id, host, {has_rack})")
            self.line("else:")
            self.line("    addresses.left_out += 1")

    def named_value(self) -> None:
        """Read a name and its value, which is blanked if the name or the enclosing name requires it."""
        self.number("length", "read_int16", 2)
        self.line("name = pos")
        self.pass_length()
        enclosing = self.blank
        self.blank = "blank_synonym" if enclosing else "blank"
        found = "carries_address(buf[name:pos])"
        self.line(f"{self.blank} = {f'{enclosing} or {found}' if enclosing else found}")
        self.line("value = pos")
        self.variable("string")
        self.line(f"if {self.blank} and length > {1 if self.flexible else 0}:")
        empty = "EMPTY_COMPACT" if self.flexible else "EMPTY_CLASSIC"
        self.line(f"    parts += (buf[mark:value], {empty})")
        self.line("    mark = pos")

    def listener(self) -> None:
        """Read a name, which stays, and a host and a port, which become empty and 0."""
        assert self.flexible, f"{self.message.name} v{self.version} has listeners in classic encoding"
        self.variable("string")
        self.line("host = pos")
        self.variable("string")
        self.line("pos += 2")
        self.line("parts += (buf[mark:host], NO_ADDRESS)")
        self.line("mark = pos")

    def any_field(self, item: Field) -> None:
        """Skip one field, rewriting the addresses in it."""
        if item.is_array:
            self.array(item)
        elif item.type in FIXED_SIZES:
            if item.name == "EndpointType":
                self.line(f"of_brokers = buf[{self.at()}] == 1")
                self.brokers_known = True
            self.skip += FIXED_SIZES[item.type]
        elif item.fields:
            assert self.version not in item.nullable, f"nullable struct {item.name}"
            self.struct(item.fields)
        else:
            assert item.type in ("string", "bytes", "records"), item.type
            self.variable(item.type)

    def pause(self) -> None:
        """End the slice if it is long enough; the caller then takes the segments."""
        if self.sliced:
            self.line("if pos > pause:")
            self.line("    parts.append(buf[mark:pos])")
            self.line("    mark = pos")
            self.line("    yield")
            self.line("    pause = pos + SLICE_BYTES")

    def array(self, item: Field) -> None:
        # Each loop has its own count: mypyc would end a loop by the current value of a shared one.
        count = "count" if self.depth == 1 else f"count_{self.depth}"
        self.number(count, "read_int32", 4)
        if not self.flexible:
            self.line(f"if {count} < -1:")
            self.line(f"    reject_negative_length({count}, pos)")
        self.line(f"for _ in range({count}{' - 1' if self.flexible else ''}):")
        self.depth += 1
        self.pause()
        blank = self.blank
        if item.fields:
            self.struct(item.fields)
        else:
            self.any_field(Field("", item.element, item.versions, item.tagged, None, item.nullable))
        self.flush()
        self.blank = blank
        self.depth -= 1

    def struct(self, fields: tuple[Field, ...], upto: int | None = None) -> None:
        """Walk the untagged fields (the first ``upto``, if given), then the tagged ones."""
        plain = active(fields, self.version)
        index = 0
        while index < (len(plain) if upto is None else upto):
            if is_address(plain, index):
                self.address(plain, index)
                index += 3
            elif is_blanked(self.message, plain, index):
                self.named_value()
                index += 2
            elif is_listener(self.message, plain, index):
                self.listener()
                index += 3
            else:
                self.any_field(plain[index])
                index += 1
        if upto is None and self.flexible:
            self.tags(tagged(fields, self.version))

    def tags(self, fields: list[Field]) -> None:
        """Skip a section of tagged fields, except the field with addresses."""
        found = [item for item in fields if carries(self.message, self.version, item)]
        if not found:
            self.line(f"if buf[{self.at()}]:")
            self.line(f"    pos = skip_tags(buf, {self.at()})")
            self.line("else:")
            self.line(f"    pos += {self.skip + 1}")
            self.skip = 0
            return
        self.flush()
        (item,) = found
        self.line("tags, pos = read_varint(buf, pos)")
        self.line("if tags > MAX_TAGS_PER_SECTION:")
        self.line("    reject_tag_count(tags)")
        self.line("for _ in range(tags):")
        self.depth += 1
        self.pause()
        self.line("tag, pos = read_varint(buf, pos)")
        self.line("sized = pos")
        self.line("size, pos = read_varint(buf, pos)")
        self.line("stop = pos + size")
        self.line(f"if tag != {item.tag}:")
        self.line("    pos = stop")
        self.line("    continue")
        # A tagged field begins with its length, which changes with the addresses in the field.
        if self.sliced:  # the length comes first, so the whole field is in one slice
            self.line("if size > TAG_LIMIT_BYTES:")
            self.line("    reject_long_field(size)")
        self.line("slot = len(parts) + 1")
        self.line('parts += (buf[mark:sized], b"")')
        self.line("mark = pos")
        sliced, self.sliced = self.sliced, False
        self.any_field(item)
        self.sliced = sliced
        self.line("if pos != stop:")
        self.line("    reject_uneven_field(pos, stop)")
        self.line("parts[slot] = encode_varint(sum(map(len, parts[slot + 1 :])) + pos - mark)")
        self.depth -= 1

    def fill(self, template: str) -> str:
        """Return the function with the generated lines."""
        return template.format("\n".join(self.lines))

    def body(self) -> bool:
        """Write the whole function.

        Returns: whether an address can be at any position: behind an array of other elements, or in an array
            whose length depends on the client's request.
        """
        plain = active(self.message.response, self.version)
        carrying = [carries(self.message, self.version, item) for item in plain]
        last = max((i + 1 for i, found in enumerate(carrying) if found), default=0)
        for index in range(len(plain)):
            if is_address(plain, index):
                last = max(last, index + 3)
        in_tags = any(
            carries(self.message, self.version, item) for item in tagged(self.message.response, self.version)
        )
        first = next((i for i, found in enumerate(carrying) if found), last)
        whole = in_tags or self.message.name in BLANKED or any(item.is_array for item in plain[:first])
        if self.message.name not in REPORTING:
            # The length depends on how much the client requests.
            whole = whole or any(item.is_array and found for item, found in zip(plain, carrying, strict=True))
        self.line("mark = 4")
        self.line("pos = 8")
        if self.sliced:
            self.line("pause = SLICE_BYTES")
        if self.flexible:
            self.tags([])
        self.struct(self.message.response, None if in_tags else last)
        self.flush()
        self.line("if pos > len(buf):")
        self.line("    raise IndexError(pos)")
        self.line("return mark")
        return whole

    def endpoints(self, item: Field) -> None:
        """Write the function that rewrites one array of addresses."""
        self.line("mark = pos")
        self.array(item)
        self.line("return mark, pos")


@dataclass(slots=True)
class ScanEmitter(Emitter):
    """Writes the scanner of one response and version, which can stop wherever the arrived bytes end.

    ``pos`` may be beyond ``end``: the bytes between them are skipped before they arrive. Only a varint must
    have arrived completely.
    """

    def number(self, name: str, classic: str, size: int) -> None:
        """Read a length or count, which are varints in all versions that have addresses behind records."""
        assert self.flexible, self.message.name
        self.flush()
        self.line(f"{name} = buf[pos] if pos < end else 128")
        self.line("pos += 1")
        self.line(f"if {name} > 127:")
        self.line(f"    if pos + {MAX_VARINT_BYTES - 1} <= end:")
        self.line(f"        {name}, pos = read_varint(buf, pos - 1)")
        self.line("    else:")
        self.line(f"        {name}, buf, pos, end = yield from await_varint(buf, pos - 1, end)")

    def tags(self, fields: list[Field]) -> None:
        """Skip a section of tagged fields."""
        self.number("tags", "", 0)
        self.line("if tags:")
        self.line("    buf, pos, end = yield from pass_tags(tags, buf, pos, end, budget)")

    def scanner(self, item: Field) -> None:
        """Write the whole scanner, up to the field with the addresses: see ``behind_records``."""
        plain = active(self.message.response, self.version)
        self.skip = 8
        self.tags([])
        self.struct(self.message.response, plain.index(item) if item in plain else len(plain))
        self.flush()
        self.line("return pos")


@dataclass(frozen=True, slots=True)
class RouteCode:
    """The route of one request and version: its kind, and the fields in front of the key."""

    kind: str
    skipped: tuple[str, ...] = ()

    def __str__(self) -> str:
        steps = ", ".join(self.skipped) + ("," if len(self.skipped) == 1 else "")
        return f"Route({self.kind}, ({steps}))"


def fields_before(fields: tuple[Field, ...], path: tuple[str, ...], version: int) -> list[str] | None:
    """Return the steps from the beginning of a struct to the field at a path: bytes to skip, or SKIP_STRING,
    or ENTER_ARRAY. None if the version has no such field, or a field of another type in front of it.
    """
    steps: list[str] = []
    size = 0
    for item in active(fields, version):
        if item.name == path[0]:
            steps += [str(size)] if size else []
            if item.is_array:
                steps.append("ENTER_ARRAY")
            if len(path) == 1:
                return steps
            inner = fields_before(item.fields, path[1:], version)
            return None if inner is None else steps + inner
        if item.type in FIXED_SIZES:
            size += FIXED_SIZES[item.type]
            continue
        if item.type != "string":
            return None
        steps += [*([str(size)] if size else []), "SKIP_STRING"]
        size = 0
    return None


def route_of(message: Message, version: int) -> RouteCode:
    """Return the route of one request.

    Raises: SystemExit: the API is in none of the tables of routes, or its request has another form.
    """
    name, request = message.name, message.request
    for kind, names in UNKEYED.items():
        if name in names:
            return RouteCode(kind)
    if name in CONFIG_KEYS:
        steps = fields_before(request, CONFIG_KEYS[name], version)
        assert steps is not None, name
        return RouteCode("CONFIG", tuple(steps))
    if name in PARTITION_KEYS:
        steps = fields_before(request, PARTITION_KEYS[name], version)
        assert steps is not None, name
        fields = request
        for each in PARTITION_KEYS[name]:
            fields = next(item for item in active(fields, version) if item.name == each).fields
        topic, partitions = active(fields, version)[:2]
        first = active(partitions.fields, version)[0].type if partitions.fields else partitions.element
        assert (topic.type in ("string", "uuid"), partitions.is_array, first) == (True, True, "int32"), name
        return RouteCode("TOPIC_NAME" if topic.type == "string" else "TOPIC_ID", tuple(steps))
    for kind, keys in (("GROUP", GROUP_KEYS), ("TRANSACTION", TRANSACTION_KEYS)):
        for path in keys.get(name, ()):
            steps = fields_before(request, path, version)
            if steps is not None:
                return RouteCode(kind, tuple(steps))
    raise SystemExit(f"{name} v{version} is in none of the tables of routes: which broker can answer it?")


def routes(messages: list[Message]) -> Iterator[str]:
    """Yield a row for each API and range of versions with the same route."""
    for message in messages:
        versions = offered(message)
        first, known = versions.low, route_of(message, versions.low)
        for version in range(versions.low + 1, versions.high + 2):
            found = route_of(message, version) if version <= versions.high else None
            if found != known:
                yield f"    ({message.api_key}, {first}, {version - 1}, {known}),"
                if found is not None:
                    first, known = version, found


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


HEADER = '''"""Generated by tools/gen_tables.py from {source}: do not edit."""

from __future__ import annotations

from typing import NoReturn

from fleet.core.errors import MalformedFrame, OversizeFrame
from fleet.proxy.wire.addresses import (
    NEVER_FLEXIBLE,
    SLICE_BYTES,
    TAG_LIMIT_BYTES,
    Addresses,
    Api,
    Layout,
    Parts,
    Slices,
    Streamed,
)
from fleet.proxy.wire.configs import carries_address
from fleet.proxy.wire.primitives import (
    MAX_TAGS_PER_SECTION,
    encode_varint,
    read_id_and_compact_length,
    read_id_and_length,
    read_int16,
    read_int32,
    read_varint,
    reject_negative_length,
    reject_tag_count,
    skip_tags,
)
from fleet.proxy.wire.routes import (
    ALL_BROKERS,
    ANY_BROKER,
    API_VERSIONS_ROUTE,
    CONFIG,
    ENTER_ARRAY,
    GROUP,
    ONE_BROKER,
    SASL,
    SKIP_STRING,
    TOPIC_ID,
    TOPIC_NAME,
    TRANSACTION,
    Route,
)
from fleet.proxy.wire.scan import FieldBudget, Scan, await_varint, pass_tags

EMPTY_COMPACT = b"\\x01"
EMPTY_CLASSIC = b"\\x00\\x00"
NO_ADDRESS = b"\\x01\\x00\\x00"
"""An empty compact host, and port 0 of two bytes."""


def reject_uneven_field(pos: int, stop: int) -> NoReturn:
    """Refuse a tagged field whose value does not have the given length."""
    raise MalformedFrame("broker", f"tagged field ends at byte {{pos}}, expected {{stop}}")


def reject_long_field(size: int) -> NoReturn:
    """Refuse a tagged field with addresses that is too long for one slice."""
    raise OversizeFrame("broker", f"tagged field of {{size}} bytes is above {{TAG_LIMIT_BYTES}}")
'''


@dataclass(frozen=True, slots=True)
class Code:
    """The functions of one response and the expression for its layout, as templates for the name."""

    functions: tuple[str, ...]
    layout: str


PATCH = '''\
def {{name}}(buf: memoryview, addresses: Addresses, parts: Parts) -> int:
    """Patch {{title}}."""
{}
'''
SLICES = '''\
def {{name}}_slices(buf: memoryview, addresses: Addresses, parts: Parts) -> Slices:
    """Patch {{title}} in slices."""
{}
'''
SCAN = '''\
def {{name}}_scan(buf: memoryview, pos: int, end: int, budget: FieldBudget) -> Scan:
    """Scan {{title}} up to the end of the bytes that pass unchanged."""
{}
'''
NODES = '''\
def {{name}}_nodes(buf: memoryview, pos: int, addresses: Addresses, parts: Parts) -> tuple[int, int]:
    """Rewrite the addresses of {{title}}."""
{}
'''


def code_of(message: Message, version: int) -> Code:
    """Return the code for one response."""
    item = behind_records(message, version)
    if item is None:
        emitter = Emitter(message, version)
        if not emitter.body():
            return Code((emitter.fill(PATCH),), 'Layout("{name}", {name}, False)')
        slices = Emitter(message, version, sliced=True)
        slices.body()
        return Code(
            (emitter.fill(PATCH), slices.fill(SLICES)), 'Layout("{name}", {name}, True, {name}_slices)'
        )
    scan, endpoints = ScanEmitter(message, version), Emitter(message, version)
    scan.scanner(item)
    endpoints.endpoints(item)
    tag = item.tag if version in item.tagged else None
    return Code(
        (scan.fill(SCAN), endpoints.fill(NODES)),
        f'Streamed("{{name}}", {{name}}_scan, {{name}}_nodes, {tag})',
    )


def render(messages: list[Message], source: str) -> str:
    """Return the text of the generated module.

    Raises: SystemExit: a field looks like an address, and is neither rewritten nor listed as harmless.
    """
    problems = unaccounted(messages)
    if problems:
        raise SystemExit("\n".join(problems))
    functions: list[str] = []
    rows: list[str] = []
    for message in messages:
        versions = offered(message)
        known: dict[Code, list[int]] = {}
        for version in range(versions.low, versions.high + 1):
            if rewritten(message, version):
                known.setdefault(code_of(message, version), []).append(version)
        for code, same in known.items():
            assert same == list(range(same[0], same[-1] + 1)), message.name
            name = f"{snake(message.name)}_v{same[0]}"
            span = f"v{same[0]}" if len(same) == 1 else f"v{same[0]}-{same[-1]}"
            functions += [
                text.format(name=name, title=f"{message.name} response {span}") for text in code.functions
            ]
            rows.append(f"    ({message.api_key}, {same[0]}, {same[-1]}, {code.layout.format(name=name)}),")
    out = [HEADER.format(source=source), *functions]
    apis = []
    for message in messages:
        versions = offered(message)
        first = "NEVER_FLEXIBLE" if message.first_flexible == NEVER_FLEXIBLE else message.first_flexible
        apis.append(
            f'    {message.api_key}: Api("{message.name}", {versions.low}, {versions.high}, {first}),'
        )
    floors = [f"# {name} begins at v{floor}: {reason}." for name, (floor, reason) in FLOORS.items()]
    tables = [*floors, "APIS: dict[int, Api] = {", *apis, "}"]
    tables += ['"""API key → the API of brokers, as the fleet offers it."""', ""]
    tables += ["PATCHED: tuple[tuple[int, int, int, Layout | Streamed], ...] = (", *rows, ")"]
    tables += ['"""API key, first version, last version, and the layout of these responses."""', ""]
    tables += ["ROUTES: tuple[tuple[int, int, int, Route], ...] = (", *routes(messages), ")"]
    tables += ['"""API key, first version, last version, and the route of these requests."""', ""]
    return "\n\n".join(out) + "\n\n" + "\n".join(tables)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jar", type=Path, nargs="?", help="the kafka-clients jar (default: that of `make`)")
    parser.add_argument("--check", action="store_true", help="compare with the existing file, write nothing")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args(argv)
    jar = arguments.jar or next(iter(sorted(DEFINITIONS.glob("kafka-clients-*.jar"))), None)
    if jar is None:
        parser.error(f"no kafka-clients jar in {DEFINITIONS}; pass one, or run `make lint` to fetch it")
    text = render(read_jar(jar), jar.name)
    before = arguments.output.read_text() if arguments.output.exists() else ""
    if not arguments.check:
        arguments.output.write_text(text)
        return 0
    if before == text:
        return 0
    changes = list(
        difflib.unified_diff(before.splitlines(), text.splitlines(), "committed", "generated", lineterm="")
    )
    changed = sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in changes)
    print(f"{arguments.output} is out of date with {jar}: {changed} lines differ", file=sys.stderr)
    print("\n".join(changes[:40]), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
