"""The requests for real brokers, of every API: harmless, or about objects that were made for them."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tests.conformance.real import (
    NO_ID,
    Case,
    CaseContext,
    Request,
    commit_request,
    fetch_request,
    produce_request,
)

CASES: Final[dict[str, Case]] = {}
"""Makes the requests of each API in a version, after preparing what they need."""

TOPIC_KIND, BROKER_KIND, CLIENT_METRICS_KIND = 2, 4, 16
LITERAL, ANY = 3, 1
TIMEOUT_MS: Final = 30_000
SESSION_MS: Final = 45_000
MAX_EPOCH: Final = (1 << 31) - 1
MAX_FETCHES: Final = 60

REFUSED: Final = {
    **dict.fromkeys(("AddRaftVoter", "RemoveRaftVoter", "UnregisterBroker"), "would change the cluster"),
    **dict.fromkeys(("UpdateFeatures", "UnregisterController"), "would change the cluster"),
    **dict.fromkeys(("SaslHandshake", "SaslAuthenticate"), "is for listeners with SASL: see test_sasl.py"),
    **dict.fromkeys(
        tuple(f"{each}DelegationToken" for each in ("Create", "Renew", "Expire", "Describe")),
        "is for clients with a name: see test_sasl.py",
    ),
}
"""APIs whose requests the brokers reject here, directly as well, and the reasons."""


def case(name: str) -> Callable[[Case], Case]:
    def register(new_case: Case) -> Case:
        CASES[name] = new_case
        return new_case

    return register


def register_requests(name: str, *requests: Request) -> None:
    """Register requests that are the same for all versions and need no preparation."""
    CASES[name] = lambda _context, _version: requests


# ---- records


@case("Produce")
def produce(context: CaseContext, version: int) -> Sequence[Request]:
    """To the leader, and to a broker that names the leader."""
    topic, topic_id = context.unused_topic()
    return produce_request(topic, topic_id), produce_request(
        context.single_replica_topic, context.single_replica_topic_id, leader=2
    )


@case("Fetch")
def fetch(context: CaseContext, version: int) -> Sequence[Request]:
    """From the leader, and from a broker that names the leader."""
    return fetch_request(context.topic, context.topic_id), fetch_request(
        context.single_replica_topic, context.single_replica_topic_id, leader=2
    )


@case("ListOffsets")
def list_offsets(context: CaseContext, version: int) -> Sequence[Request]:
    def list_at(timestamp: int) -> Request:
        partition = {"PartitionIndex": 0, "CurrentLeaderEpoch": -1, "Timestamp": timestamp}
        topics = [{"Name": context.topic, "Partitions": [partition]}]
        return Request({"ReplicaId": -1, "TimeoutMs": TIMEOUT_MS, "Topics": topics})

    return list_at(-1), list_at(-2), list_at(1)


@case("OffsetForLeaderEpoch")
def offset_for_leader_epoch(context: CaseContext, version: int) -> Sequence[Request]:
    partition = {"Partition": 0, "CurrentLeaderEpoch": -1, "LeaderEpoch": 0}
    return (Request({"ReplicaId": -1, "Topics": [{"Topic": context.topic, "Partitions": [partition]}]}),)


@case("DeleteRecords")
def delete_records(context: CaseContext, version: int) -> Sequence[Request]:
    topic, topic_id = context.unused_topic()
    context.prepare("Produce", produce_request(topic, topic_id))
    topics = [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Offset": -1}]}]
    return (Request({"Topics": topics, "TimeoutMs": TIMEOUT_MS}),)


@case("DescribeProducers")
def describe_producers(context: CaseContext, version: int) -> Sequence[Request]:
    return (Request({"Topics": [{"Name": context.topic, "PartitionIndexes": [0]}]}),)


# ---- topics, brokers


@case("Metadata")
def metadata(context: CaseContext, version: int) -> Sequence[Request]:
    """From each broker, because each has its own endpoint in the fleet; and of no topic."""
    flags = {
        "IncludeClusterAuthorizedOperations": True,
        "IncludeTopicAuthorizedOperations": True,
    }
    topics = [{"TopicId": NO_ID, "Name": each} for each in (context.topic, context.single_replica_topic)]
    of_topics = [Request({"Topics": topics, **flags}, broker_id) for broker_id in (1, 2, 3)]
    by_id = [Request({"Topics": [{"TopicId": context.topic_id, "Name": None}]})] if version >= 12 else []
    return *of_topics, *by_id, Request({"Topics": []})


register_requests("DescribeCluster", Request({"EndpointType": 1, "IncludeFencedBrokers": True}))
register_requests("ApiVersions", Request({"ClientSoftwareName": "conformance", "ClientSoftwareVersion": "1"}))
register_requests("SaslHandshake", Request({"Mechanism": "PLAIN"}))
register_requests("SaslAuthenticate", Request({"AuthBytes": b""}))


@case("DescribeTopicPartitions")
def describe_topic_partitions(context: CaseContext, version: int) -> Sequence[Request]:
    request_fields = {"Topics": [{"Name": context.topic}], "Cursor": None}
    return (
        Request({**request_fields, "ResponsePartitionLimit": 2000}),
        Request({**request_fields, "ResponsePartitionLimit": 1}),
    )


@case("CreateTopics")
def create_topics(context: CaseContext, version: int) -> Sequence[Request]:
    """A new topic, an existing topic, and a validated topic that is not created."""

    def make(name: str, *, only_validate: bool) -> Request:
        new_case = {
            **{"Name": name, "NumPartitions": 2, "ReplicationFactor": 2, "Assignments": []},
            "Configs": [{"Name": "retention.ms", "Value": "3600000"}],
        }
        return Request({"Topics": [new_case], "timeoutMs": TIMEOUT_MS, "validateOnly": only_validate})

    return (
        make(f"{context.name}-a", only_validate=False),
        make(context.topic, only_validate=False),
        make(f"{context.name}-b", only_validate=True),
    )


@case("DeleteTopics")
def delete_topics(context: CaseContext, version: int) -> Sequence[Request]:
    topic, _ = context.unused_topic()

    def named(name: str) -> Request:
        topics = [{"Name": name, "TopicId": NO_ID}]
        return Request({"Topics": topics, "TopicNames": [name], "TimeoutMs": TIMEOUT_MS})

    return named(topic), named(f"{context.name}-none")


@case("CreatePartitions")
def create_partitions(context: CaseContext, version: int) -> Sequence[Request]:
    topic, _ = context.unused_topic()

    def more(count: int, *, only_validate: bool) -> Request:
        topics = [{"Name": topic, "Count": count, "Assignments": None}]
        return Request({"Topics": topics, "TimeoutMs": TIMEOUT_MS, "ValidateOnly": only_validate})

    return more(3, only_validate=True), more(2, only_validate=False)


@case("DescribeConfigs")
def describe_configs(context: CaseContext, version: int) -> Sequence[Request]:
    """The configurations of brokers contain addresses, which the fleet removes."""

    def of(kind: int, name: str, broker_id: int = 1) -> Request:
        resource = {"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": None}
        flags = {"IncludeSynonyms": True, "IncludeDocumentation": True}
        return Request({"Resources": [resource], **flags}, broker_id)

    return (
        of(BROKER_KIND, "1"),
        of(BROKER_KIND, "2", 2),
        of(TOPIC_KIND, context.topic),
        of(TOPIC_KIND, "none"),
    )


def configs_of(topic: str, *, only_validate: bool) -> Request:
    config = {"Name": "retention.ms", "Value": "7200000", "ConfigOperation": 0}
    resource = {"ResourceType": TOPIC_KIND, "ResourceName": topic, "Configs": [config]}
    return Request({"Resources": [resource], "ValidateOnly": only_validate})


@case("AlterConfigs")
@case("IncrementalAlterConfigs")
def alter_configs(context: CaseContext, version: int) -> Sequence[Request]:
    topic, _ = context.unused_topic()
    return configs_of(topic, only_validate=True), configs_of(topic, only_validate=False)


register_requests("ListConfigResources", Request({"ResourceTypes": [BROKER_KIND, CLIENT_METRICS_KIND]}))


@case("DescribeLogDirs")
def describe_log_dirs(context: CaseContext, version: int) -> Sequence[Request]:
    return (Request({"Topics": [{"Topic": context.topic, "Partitions": [0, 1, 2]}]}),)


@case("AlterReplicaLogDirs")
def alter_replica_log_dirs(context: CaseContext, version: int) -> Sequence[Request]:
    """To a missing folder, and to the folder of the replica."""
    described = context.prepare(
        "DescribeLogDirs", Request({"Topics": [{"Topic": context.topic, "Partitions": [0]}]})
    )
    topics = [{"Name": context.topic, "Partitions": [0]}]
    paths = ("/nowhere", described["Results"][0]["LogDir"])
    return tuple(Request({"Dirs": [{"Path": path, "Topics": topics}]}) for path in paths)


@case("ElectLeaders")
def elect_leaders(context: CaseContext, version: int) -> Sequence[Request]:
    """Where the preferred broker already leads, and where another broker has just become the preferred
    one."""
    fresh, _ = context.unused_topic()
    partitions = [{"PartitionIndex": 0, "Replicas": [2, 1, 3]}]
    preferred = {"TimeoutMs": TIMEOUT_MS, "Topics": [{"Name": fresh, "Partitions": partitions}]}
    context.prepare("AlterPartitionReassignments", Request(preferred))

    def of(topic: str) -> Request:
        topics = [{"Topic": topic, "Partitions": [0]}]
        return Request({"ElectionType": 0, "TopicPartitions": topics, "TimeoutMs": TIMEOUT_MS})

    return of(context.topic), of(fresh)


@case("AlterPartitionReassignments")
def alter_partition_reassignments(context: CaseContext, version: int) -> Sequence[Request]:
    """Cancel a reassignment that never existed, and reassign a partition to its current replicas."""
    topic, _ = context.unused_topic()

    def to(replicas: list[int] | None) -> Request:
        topics = [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Replicas": replicas}]}]
        return Request({"TimeoutMs": TIMEOUT_MS, "AllowReplicationFactorChange": True, "Topics": topics})

    return to(None), to([1, 2, 3])


@case("ListPartitionReassignments")
def list_partition_reassignments(context: CaseContext, version: int) -> Sequence[Request]:
    topics = [{"Name": context.topic, "PartitionIndexes": [0, 1, 2]}]
    return (Request({"TimeoutMs": TIMEOUT_MS, "Topics": topics}),)


METADATA_TOPIC: Final = {"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}
register_requests("DescribeQuorum", Request({"Topics": [METADATA_TOPIC]}))
register_requests("UnregisterBroker", Request({"BrokerId": 99}))
register_requests("UnregisterController", Request({"ControllerId": 99}))
VOTER: Final = {"ClusterId": "another", "VoterId": 99, "VoterDirectoryId": uuid.UUID(int=99)}
register_requests("AddRaftVoter", Request({**VOTER, "TimeoutMs": TIMEOUT_MS}))
register_requests("RemoveRaftVoter", Request(VOTER))
UNKNOWN_FEATURE: Final = {"Feature": "conformance.version", "MaxVersionLevel": 1, "UpgradeType": 1}
register_requests("UpdateFeatures", Request({"timeoutMs": TIMEOUT_MS, "FeatureUpdates": [UNKNOWN_FEATURE]}))


# ---- groups


@case("FindCoordinator")
def find_coordinator(context: CaseContext, version: int) -> Sequence[Request]:
    """Of a group, from each broker; and of a transactional id."""

    def of(kind: int, key: str, broker_id: int = 1) -> Request:
        return Request({"Key": key, "KeyType": kind, "CoordinatorKeys": [key]}, broker_id)

    transactions = [of(1, context.group)] if version >= 1 else []
    return *(of(0, context.group, broker_id) for broker_id in (1, 2, 3)), *transactions


@case("OffsetCommit")
def offset_commit(context: CaseContext, version: int) -> Sequence[Request]:
    return (
        commit_request(context.name, context.topic, context.topic_id, context.coordinator_of(context.name)),
    )


@case("OffsetFetch")
def offset_fetch(context: CaseContext, version: int) -> Sequence[Request]:
    topics = [{"Name": context.topic, "TopicId": context.topic_id, "PartitionIndexes": [0, 1]}]
    groups = [{"GroupId": context.group, "MemberId": None, "MemberEpoch": -1, "Topics": topics}]
    return (Request({"GroupId": context.group, "Topics": topics, "Groups": groups}, context.coordinator),)


@case("OffsetDelete")
def offset_delete(context: CaseContext, version: int) -> Sequence[Request]:
    coordinator_id = context.coordinator_of(context.name)
    context.prepare(
        "OffsetCommit", commit_request(context.name, context.topic, context.topic_id, coordinator_id)
    )
    topics = [{"Name": context.topic, "Partitions": [{"PartitionIndex": 0}]}]
    return (Request({"GroupId": context.name, "Topics": topics}, coordinator_id),)


@case("DeleteGroups")
def delete_groups(context: CaseContext, version: int) -> Sequence[Request]:
    coordinator_id = context.coordinator_of(context.name)
    context.prepare(
        "OffsetCommit", commit_request(context.name, context.topic, context.topic_id, coordinator_id)
    )
    request = Request({"GroupsNames": [context.name]}, coordinator_id)
    return request, request


def join_fields(context: CaseContext, member: str) -> dict[str, Any]:
    return {
        **{"GroupId": context.name, "SessionTimeoutMs": SESSION_MS, "RebalanceTimeoutMs": TIMEOUT_MS},
        **{"MemberId": member, "GroupInstanceId": None, "ProtocolType": "consumer", "Reason": None},
        "Protocols": [{"Name": "range", "Metadata": b"\0\0"}],
    }


def join_first_member(context: CaseContext, coordinator_id: int) -> str:
    """Add a first member to a group. Returns: its id."""
    member: str = context.prepare("JoinGroup", Request(join_fields(context, ""), coordinator_id))["MemberId"]
    context.own_objects[member] = "OWN-MEMBER"
    return member


@case("JoinGroup")
def join_group(context: CaseContext, version: int) -> Sequence[Request]:
    """For a member without an id, and from v4 on for a member with an id."""
    coordinator_id = context.coordinator_of(context.name)
    if version < 4:
        return (Request(join_fields(context, ""), coordinator_id),)
    return Request(join_fields(context, ""), coordinator_id), Request(
        join_fields(context, join_first_member(context, coordinator_id)), coordinator_id
    )


def sync_fields(context: CaseContext, member: str) -> dict[str, Any]:
    return {
        **{"GroupId": context.name, "GenerationId": 1, "MemberId": member, "GroupInstanceId": None},
        **{"ProtocolType": "consumer", "ProtocolName": "range"},
        "Assignments": [{"MemberId": member, "Assignment": b"assigned"}],
    }


def create_joined_group(context: CaseContext) -> tuple[int, str]:
    """Create a group with one member, which has joined. Returns: its coordinator, and the member's id."""
    coordinator_id = context.coordinator_of(context.name)
    member = join_first_member(context, coordinator_id)
    context.prepare("JoinGroup", Request(join_fields(context, member), coordinator_id))
    return coordinator_id, member


def create_stable_group(context: CaseContext) -> tuple[int, str]:
    """Create a stable group with one member. Returns: its coordinator, and the member's id."""
    coordinator_id, member = create_joined_group(context)
    context.prepare("SyncGroup", Request(sync_fields(context, member), coordinator_id))
    return coordinator_id, member


@case("SyncGroup")
def sync_group(context: CaseContext, version: int) -> Sequence[Request]:
    coordinator_id, member = create_joined_group(context)
    return (Request(sync_fields(context, member), coordinator_id),)


@case("Heartbeat")
def heartbeat(context: CaseContext, version: int) -> Sequence[Request]:
    coordinator_id, member = create_stable_group(context)
    beat = {"GroupId": context.name, "GenerationId": 1, "GroupInstanceId": None}
    return Request({**beat, "MemberId": member}, coordinator_id), Request(
        {**beat, "MemberId": "nobody"}, coordinator_id
    )


@case("LeaveGroup")
def leave_group(context: CaseContext, version: int) -> Sequence[Request]:
    coordinator_id, member = create_stable_group(context)
    leaving_member = {"MemberId": member, "GroupInstanceId": None, "Reason": "done"}
    return (
        Request({"GroupId": context.name, "MemberId": member, "Members": [leaving_member]}, coordinator_id),
    )


@case("DescribeGroups")
def describe_groups(context: CaseContext, version: int) -> Sequence[Request]:
    coordinator_id, _ = create_stable_group(context)
    return (Request({"Groups": [context.name], "IncludeAuthorizedOperations": True}, coordinator_id),)


@case("ListGroups")
def list_groups(context: CaseContext, version: int) -> Sequence[Request]:
    """All groups of the coordinator, in the one state that a group does not leave by itself."""
    return (Request({"StatesFilter": ["Empty"], "TypesFilter": ["classic"]}, context.coordinator),)


def heartbeat_request(context: CaseContext, topic: str = "") -> Request:
    request_fields = {
        **{"GroupId": context.name, "MemberId": str(uuid.uuid5(NO_ID, context.name)), "MemberEpoch": 0},
        **{"InstanceId": None, "RackId": None, "RebalanceTimeoutMs": TIMEOUT_MS, "ServerAssignor": None},
        **{
            "SubscribedTopicNames": [topic or context.topic],
            "SubscribedTopicRegex": None,
            "TopicPartitions": [],
        },
    }
    return Request(request_fields, context.coordinator_of(context.name))


@case("ConsumerGroupHeartbeat")
@case("ShareGroupHeartbeat")
def group_heartbeat(context: CaseContext, version: int) -> Sequence[Request]:
    return (heartbeat_request(context),)


def describe_after_heartbeat(context: CaseContext, heartbeat: Request, api: str) -> Sequence[Request]:
    context.prepare(api, heartbeat)
    request_fields = {"GroupIds": [context.name], "IncludeAuthorizedOperations": True}
    return (Request(request_fields, heartbeat.broker_id),)


@case("ConsumerGroupDescribe")
def consumer_group_describe(context: CaseContext, version: int) -> Sequence[Request]:
    return describe_after_heartbeat(context, heartbeat_request(context), "ConsumerGroupHeartbeat")


@case("ShareGroupDescribe")
def share_group_describe(context: CaseContext, version: int) -> Sequence[Request]:
    return describe_after_heartbeat(context, heartbeat_request(context), "ShareGroupHeartbeat")


def streams_heartbeat(context: CaseContext) -> Request:
    subtopology = {
        **{"SubtopologyId": "0", "SourceTopics": [context.topic], "SourceTopicRegex": []},
        **{"StateChangelogTopics": [], "RepartitionSinkTopics": [], "RepartitionSourceTopics": []},
        "CopartitionGroups": [],
    }
    request_fields = {
        **{"GroupId": context.name, "MemberId": str(uuid.uuid5(NO_ID, context.name)), "MemberEpoch": 0},
        **{"EndpointInformationEpoch": 0, "InstanceId": None, "RackId": None, "ProcessId": "process"},
        **{"RebalanceTimeoutMs": TIMEOUT_MS, "Topology": {"Epoch": 0, "Subtopologies": [subtopology]}},
        **{"ActiveTasks": [], "StandbyTasks": [], "WarmupTasks": [], "ClientTags": []},
        **{"UserEndpoint": None, "TaskOffsets": None, "TaskEndOffsets": None},
    }
    return Request(request_fields, context.coordinator_of(context.name))


@case("StreamsGroupHeartbeat")
def streams_group_heartbeat(context: CaseContext, version: int) -> Sequence[Request]:
    return (streams_heartbeat(context),)


@case("StreamsGroupDescribe")
def streams_group_describe(context: CaseContext, version: int) -> Sequence[Request]:
    return describe_after_heartbeat(context, streams_heartbeat(context), "StreamsGroupHeartbeat")


@case("StreamsGroupTopologyDescriptionUpdate")
def streams_group_topology(context: CaseContext, version: int) -> Sequence[Request]:
    topology: dict[str, Any] = {"Subtopologies": [], "GlobalStores": []}
    request_fields = {"GroupId": context.name, "MemberId": "nobody", "TopologyDescription": topology}
    return (Request(request_fields, context.coordinator_of(context.name)),)


# ---- share groups


@case("ShareFetch")
def share_fetch(context: CaseContext, version: int) -> Sequence[Request]:
    """From the leader, and from a broker that names the leader."""
    heartbeat = heartbeat_request(context)
    context.prepare("ShareGroupHeartbeat", heartbeat)

    def of(topic_id: Any, broker_id: int) -> Request:
        request_fields = {
            **{"GroupId": context.name, "MemberId": heartbeat.values["MemberId"], "ShareSessionEpoch": 0},
            **{"MaxWaitMs": 500, "MinBytes": 0, "MaxBytes": 1 << 20, "MaxRecords": 100, "BatchSize": 100},
            "Topics": [
                {"TopicId": topic_id, "Partitions": [{"PartitionIndex": 0, "AcknowledgementBatches": []}]}
            ],
        }
        return Request(request_fields, broker_id)

    return of(context.topic_id, 1), of(context.single_replica_topic_id, 2)


@case("ShareAcknowledge")
def share_acknowledge(context: CaseContext, version: int) -> Sequence[Request]:
    """In a missing session, and in a session that has acquired a record."""
    topic, topic_id = context.unused_topic()
    heartbeat = heartbeat_request(context, topic)
    context.prepare("ShareGroupHeartbeat", heartbeat)

    def request_fields(epoch: int, *batches: Mapping[str, Any]) -> Request:
        partition = {"PartitionIndex": 0, "AcknowledgementBatches": batches}
        session = {
            **{"GroupId": context.name, "MemberId": heartbeat.values["MemberId"], "ShareSessionEpoch": epoch},
            "Topics": [{"TopicId": topic_id, "Partitions": [partition]}],
        }
        limits = {"MaxWaitMs": 500, "MinBytes": 1, "MaxBytes": 1 << 20, "MaxRecords": 1, "BatchSize": 1}
        return Request({**session, **limits})

    # A group starts at the end of the log, and a client that has just fetched does not know whether it has
    # started.
    context.prepare("ShareFetch", request_fields(0))
    newest = context.ranges["ShareFetch"].high
    for epoch in range(1, MAX_FETCHES):
        context.prepare("Produce", produce_request(topic, topic_id))
        answer = context.direct.answer("ShareFetch", newest, request_fields(epoch))
        partitions = [each for topic in answer["Responses"] for each in topic["Partitions"]]
        for taken in (each for partition in partitions for each in partition["AcquiredRecords"]):
            accepted = {name: taken[name] for name in ("FirstOffset", "LastOffset")}
            accepted["AcknowledgeTypes"] = [1]
            return request_fields(MAX_EPOCH, accepted), request_fields(epoch + 1, accepted)
    raise AssertionError(f"{topic}: records are given to nobody")


@case("DescribeShareGroupOffsets")
def describe_share_group_offsets(context: CaseContext, version: int) -> Sequence[Request]:
    groups = [{"GroupId": context.name, "Topics": [{"TopicName": context.topic, "Partitions": [0]}]}]
    return (Request({"Groups": groups}, context.coordinator_of(context.name)),)


@case("AlterShareGroupOffsets")
def alter_share_group_offsets(context: CaseContext, version: int) -> Sequence[Request]:
    partition = {"PartitionIndex": 0, "StartOffset": 1}
    topics = [{"TopicName": context.topic, "Partitions": [partition]}]
    return (Request({"GroupId": context.name, "Topics": topics}, context.coordinator_of(context.name)),)


@case("DeleteShareGroupOffsets")
def delete_share_group_offsets(context: CaseContext, version: int) -> Sequence[Request]:
    (altering,) = alter_share_group_offsets(context, version)
    context.prepare("AlterShareGroupOffsets", altering)
    return (altering,)


def share_state(context: CaseContext, version: int) -> Sequence[Request]:
    """The requests that group coordinators send to share coordinators."""
    topic_id = base64.urlsafe_b64encode(context.topic_id.bytes).decode().rstrip("=")
    coordinator_id = context.coordinator_of(f"{context.name}:{topic_id}:0", 2)
    partition = {
        **{"Partition": 0, "StateEpoch": 0, "LeaderEpoch": 0, "StartOffset": 0},
        **{"DeliveryCompleteCount": 0, "StateBatches": []},
    }
    request_fields = {
        "GroupId": context.name,
        "Topics": [{"TopicId": context.topic_id, "Partitions": [partition]}],
    }
    return (Request(request_fields, coordinator_id),)


def share_state_that_is_there(context: CaseContext, version: int) -> Sequence[Request]:
    (request,) = share_state(context, version)
    context.prepare("InitializeShareGroupState", request)
    return (request,)


for _name in ("InitializeShareGroupState", "DeleteShareGroupState", "ReadShareGroupStateSummary"):
    CASES[_name] = share_state
for _name in ("ReadShareGroupState", "WriteShareGroupState"):
    CASES[_name] = share_state_that_is_there


# ---- transactions


def init_producer_fields(transactional_id: str | None) -> dict[str, Any]:
    return {
        **{"TransactionalId": transactional_id, "TransactionTimeoutMs": TIMEOUT_MS},
        **{"ProducerId": -1, "ProducerEpoch": -1},
    }


@case("InitProducerId")
def init_producer_id(context: CaseContext, version: int) -> Sequence[Request]:
    coordinator_id = context.coordinator_of(context.name, 1)
    return Request(init_producer_fields(None)), Request(init_producer_fields(context.name), coordinator_id)


def start_producer(context: CaseContext) -> tuple[int, dict[str, Any]]:
    """Start a transactional producer. Returns: its coordinator, and fields that name it."""
    coordinator_id = context.coordinator_of(context.name, 1)
    new_case = context.prepare("InitProducerId", Request(init_producer_fields(context.name), coordinator_id))
    mine = {"ProducerId": new_case["ProducerId"], "ProducerEpoch": new_case["ProducerEpoch"]}
    return coordinator_id, {"TransactionalId": context.name, **mine}


def add_partitions_fields(context: CaseContext, producer: dict[str, Any], topic: str) -> dict[str, Any]:
    topics = [{"Name": topic, "Partitions": [0]}]
    return {
        **{f"V3AndBelow{name}": value for name, value in producer.items()},
        "V3AndBelowTopics": topics,
        "Transactions": [{**producer, "VerifyOnly": False, "Topics": topics}],
    }


@case("AddPartitionsToTxn")
def add_partitions_to_txn(context: CaseContext, version: int) -> Sequence[Request]:
    coordinator_id, producer = start_producer(context)
    topic, _ = context.unused_topic()
    return (Request(add_partitions_fields(context, producer, topic), coordinator_id),)


@case("AddOffsetsToTxn")
def add_offsets_to_txn(context: CaseContext, version: int) -> Sequence[Request]:
    coordinator_id, producer = start_producer(context)
    return (Request({**producer, "GroupId": context.name}, coordinator_id),)


@case("EndTxn")
def end_txn(context: CaseContext, version: int) -> Sequence[Request]:
    coordinator_id, producer = start_producer(context)
    context.prepare("AddOffsetsToTxn", Request({**producer, "GroupId": context.name}, coordinator_id))
    return (Request({**producer, "Committed": True}, coordinator_id),)


@case("TxnOffsetCommit")
def txn_offset_commit(context: CaseContext, version: int) -> Sequence[Request]:
    coordinator_id, producer = start_producer(context)
    context.prepare("AddOffsetsToTxn", Request({**producer, "GroupId": context.name}, coordinator_id))
    to = context.coordinator_of(context.name)
    offset = commit_request(context.name, context.topic, context.topic_id, to)
    return (Request({**offset.values, **producer}, to),)


@case("WriteTxnMarkers")
def write_txn_markers(context: CaseContext, version: int) -> Sequence[Request]:
    """The markers that coordinators write when a transaction ends; here for a transaction that never
    existed."""
    _, producer = start_producer(context)
    topic, _ = context.unused_topic()
    marker = {
        **{"ProducerId": producer["ProducerId"], "ProducerEpoch": producer["ProducerEpoch"]},
        **{"TransactionResult": False, "CoordinatorEpoch": 0},
        "Topics": [{"Name": topic, "PartitionIndexes": [0]}],
    }
    return (Request({"Markers": [marker]}),)


@case("DescribeTransactions")
def describe_transactions(context: CaseContext, version: int) -> Sequence[Request]:
    coordinator_id, _ = start_producer(context)
    return (Request({"TransactionalIds": [context.name]}, coordinator_id),)


@case("ListTransactions")
def list_transactions(context: CaseContext, version: int) -> Sequence[Request]:
    coordinator_id, producer = start_producer(context)
    request_fields = {"ProducerIdFilters": [producer["ProducerId"]], "DurationFilter": -1}
    return (Request({**request_fields, "TransactionalIdPattern": None}, coordinator_id),)


# ---- permissions and quotas


def acl_fields(context: CaseContext) -> dict[str, Any]:
    return {
        **{"ResourceType": TOPIC_KIND, "ResourceName": context.name, "ResourcePatternType": LITERAL},
        **{"Principal": "User:conformance", "Host": "*", "Operation": 3, "PermissionType": 3},
    }


def acl_filter_fields(context: CaseContext) -> dict[str, Any]:
    return {
        **{"ResourceTypeFilter": TOPIC_KIND, "ResourceNameFilter": context.name},
        **{"PatternTypeFilter": LITERAL, "PrincipalFilter": None, "HostFilter": None},
        **{"Operation": ANY, "PermissionType": ANY},
    }


@case("CreateAcls")
def create_acls(context: CaseContext, version: int) -> Sequence[Request]:
    return (Request({"Creations": [acl_fields(context)]}),)


@case("DescribeAcls")
def describe_acls(context: CaseContext, version: int) -> Sequence[Request]:
    context.prepare("CreateAcls", Request({"Creations": [acl_fields(context)]}))
    return (Request(acl_filter_fields(context)),)


@case("DeleteAcls")
def delete_acls(context: CaseContext, version: int) -> Sequence[Request]:
    context.prepare("CreateAcls", Request({"Creations": [acl_fields(context)]}))
    return (Request({"Filters": [acl_filter_fields(context)]}),)


def quota(context: CaseContext) -> Request:
    entity = {"EntityType": "client-id", "EntityName": context.name}
    rate = {"Key": "producer_byte_rate", "Value": 1e9, "Remove": False}
    return Request({"Entries": [{"Entity": [entity], "Ops": [rate]}], "ValidateOnly": False})


@case("AlterClientQuotas")
def alter_client_quotas(context: CaseContext, version: int) -> Sequence[Request]:
    return (quota(context),)


@case("DescribeClientQuotas")
def describe_client_quotas(context: CaseContext, version: int) -> Sequence[Request]:
    context.prepare("AlterClientQuotas", quota(context))
    component = {"EntityType": "client-id", "MatchType": 0, "Match": context.name}
    return (Request({"Components": [component], "Strict": True}),)


def credentials(context: CaseContext) -> Request:
    new_case = {
        **{"Name": context.name, "Mechanism": 1, "Iterations": 4096},
        **{"Salt": b"salt", "SaltedPassword": bytes(32)},
    }
    return Request({"Deletions": [], "Upsertions": [new_case]})


@case("AlterUserScramCredentials")
def alter_user_scram_credentials(context: CaseContext, version: int) -> Sequence[Request]:
    return (credentials(context),)


@case("DescribeUserScramCredentials")
def describe_user_scram_credentials(context: CaseContext, version: int) -> Sequence[Request]:
    context.prepare("AlterUserScramCredentials", credentials(context))
    request = Request({"Users": [{"Name": context.name}]})
    context.prepare("DescribeUserScramCredentials", request)
    return (request,)


OWNER: Final = {"PrincipalType": "User", "PrincipalName": "conformance"}
register_requests(
    "CreateDelegationToken", Request({"Renewers": [OWNER], "MaxLifetimeMs": -1, "OwnerPrincipalName": ""})
)
register_requests("RenewDelegationToken", Request({"Hmac": b"x", "RenewPeriodMs": -1}))
register_requests("ExpireDelegationToken", Request({"Hmac": b"x", "ExpiryTimePeriodMs": -1}))
register_requests("DescribeDelegationToken", Request({"Owners": [OWNER]}))
register_requests("GetTelemetrySubscriptions", Request({"ClientInstanceId": NO_ID}))
register_requests("PushTelemetry", Request({"ClientInstanceId": uuid.UUID(int=7), "Terminating": True}))
