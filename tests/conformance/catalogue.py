"""What is asked of real brokers, of every API: harmless, or about something that was made for it alone."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tests.conformance.real import NO_ID, Case, Request, There, a_fetch, a_record, an_offset

CASES: Final[dict[str, Case]] = {}
"""By API: what is asked in a version, once what it takes is there."""

TOPIC_KIND, BROKER_KIND, CLIENT_METRICS_KIND = 2, 4, 16
LITERAL, ANY = 3, 1
TIMEOUT_MS: Final = 30_000
SESSION_MS: Final = 45_000
MAX_EPOCH: Final = (1 << 31) - 1
TRIES: Final = 60

REFUSED: Final = {
    **dict.fromkeys(("AddRaftVoter", "RemoveRaftVoter", "UnregisterBroker"), "would change the cluster"),
    **dict.fromkeys(("UpdateFeatures", "UnregisterController"), "would change the cluster"),
    **dict.fromkeys(("SaslHandshake", "SaslAuthenticate"), "is for listeners with SASL: see test_sasl.py"),
    **dict.fromkeys(
        tuple(f"{each}DelegationToken" for each in ("Create", "Renew", "Expire", "Describe")),
        "is for clients with a name: see test_sasl.py",
    ),
}
"""APIs that are refused whatever is asked here, straight as well, and why."""


def case(name: str) -> Callable[[Case], Case]:
    def keep(made: Case) -> Case:
        CASES[name] = made
        return made

    return keep


def asks(name: str, *requests: Request) -> None:
    """What is the same for all versions, and needs nothing."""
    CASES[name] = lambda _there, _version: requests


# ---- records


@case("Produce")
def produce(there: There, version: int) -> Sequence[Request]:
    """To the leader; and to another broker, which says who leads."""
    topic, topic_id = there.fresh()
    return a_record(topic, topic_id), a_record(there.lonely, there.lonely_id, leader=2)


@case("Fetch")
def fetch(there: There, version: int) -> Sequence[Request]:
    """From the leader; and from another broker, which says who leads."""
    return a_fetch(there.topic, there.topic_id), a_fetch(there.lonely, there.lonely_id, leader=2)


@case("ListOffsets")
def list_offsets(there: There, version: int) -> Sequence[Request]:
    def at(timestamp: int) -> Request:
        partition = {"PartitionIndex": 0, "CurrentLeaderEpoch": -1, "Timestamp": timestamp}
        topics = [{"Name": there.topic, "Partitions": [partition]}]
        return Request({"ReplicaId": -1, "TimeoutMs": TIMEOUT_MS, "Topics": topics})

    return at(-1), at(-2), at(1)


@case("OffsetForLeaderEpoch")
def offset_for_leader_epoch(there: There, version: int) -> Sequence[Request]:
    partition = {"Partition": 0, "CurrentLeaderEpoch": -1, "LeaderEpoch": 0}
    return (Request({"ReplicaId": -1, "Topics": [{"Topic": there.topic, "Partitions": [partition]}]}),)


@case("DeleteRecords")
def delete_records(there: There, version: int) -> Sequence[Request]:
    topic, topic_id = there.fresh()
    there.now("Produce", a_record(topic, topic_id))
    topics = [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Offset": -1}]}]
    return (Request({"Topics": topics, "TimeoutMs": TIMEOUT_MS}),)


@case("DescribeProducers")
def describe_producers(there: There, version: int) -> Sequence[Request]:
    return (Request({"Topics": [{"Name": there.topic, "PartitionIndexes": [0]}]}),)


# ---- topics, brokers


@case("Metadata")
def metadata(there: There, version: int) -> Sequence[Request]:
    """By each broker, since each has its own place in the fleet; and of no topic."""
    flags = {
        "IncludeClusterAuthorizedOperations": True,
        "IncludeTopicAuthorizedOperations": True,
    }
    topics = [{"TopicId": NO_ID, "Name": each} for each in (there.topic, there.lonely)]
    of_topics = [Request({"Topics": topics, **flags}, broker_id) for broker_id in (1, 2, 3)]
    by_id = [Request({"Topics": [{"TopicId": there.topic_id, "Name": None}]})] if version >= 12 else []
    return *of_topics, *by_id, Request({"Topics": []})


asks("DescribeCluster", Request({"EndpointType": 1, "IncludeFencedBrokers": True}))
asks("ApiVersions", Request({"ClientSoftwareName": "conformance", "ClientSoftwareVersion": "1"}))
asks("SaslHandshake", Request({"Mechanism": "PLAIN"}))
asks("SaslAuthenticate", Request({"AuthBytes": b""}))


@case("DescribeTopicPartitions")
def describe_topic_partitions(there: There, version: int) -> Sequence[Request]:
    asked = {"Topics": [{"Name": there.topic}], "Cursor": None}
    return (
        Request({**asked, "ResponsePartitionLimit": 2000}),
        Request({**asked, "ResponsePartitionLimit": 1}),
    )


@case("CreateTopics")
def create_topics(there: There, version: int) -> Sequence[Request]:
    """One that is new, one that is there, and one that is only thought of."""

    def make(name: str, *, only_validate: bool) -> Request:
        made = {
            **{"Name": name, "NumPartitions": 2, "ReplicationFactor": 2, "Assignments": []},
            "Configs": [{"Name": "retention.ms", "Value": "3600000"}],
        }
        return Request({"Topics": [made], "timeoutMs": TIMEOUT_MS, "validateOnly": only_validate})

    return (
        make(f"{there.name}-a", only_validate=False),
        make(there.topic, only_validate=False),
        make(f"{there.name}-b", only_validate=True),
    )


@case("DeleteTopics")
def delete_topics(there: There, version: int) -> Sequence[Request]:
    topic, _ = there.fresh()

    def named(name: str) -> Request:
        topics = [{"Name": name, "TopicId": NO_ID}]
        return Request({"Topics": topics, "TopicNames": [name], "TimeoutMs": TIMEOUT_MS})

    return named(topic), named(f"{there.name}-none")


@case("CreatePartitions")
def create_partitions(there: There, version: int) -> Sequence[Request]:
    topic, _ = there.fresh()

    def more(count: int, *, only_validate: bool) -> Request:
        topics = [{"Name": topic, "Count": count, "Assignments": None}]
        return Request({"Topics": topics, "TimeoutMs": TIMEOUT_MS, "ValidateOnly": only_validate})

    return more(3, only_validate=True), more(2, only_validate=False)


@case("DescribeConfigs")
def describe_configs(there: There, version: int) -> Sequence[Request]:
    """Those of brokers name addresses, which the fleet takes out."""

    def of(kind: int, name: str, broker_id: int = 1) -> Request:
        resource = {"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": None}
        flags = {"IncludeSynonyms": True, "IncludeDocumentation": True}
        return Request({"Resources": [resource], **flags}, broker_id)

    return of(BROKER_KIND, "1"), of(BROKER_KIND, "2", 2), of(TOPIC_KIND, there.topic), of(TOPIC_KIND, "none")


def configs_of(topic: str, *, only_validate: bool) -> Request:
    config = {"Name": "retention.ms", "Value": "7200000", "ConfigOperation": 0}
    resource = {"ResourceType": TOPIC_KIND, "ResourceName": topic, "Configs": [config]}
    return Request({"Resources": [resource], "ValidateOnly": only_validate})


@case("AlterConfigs")
@case("IncrementalAlterConfigs")
def alter_configs(there: There, version: int) -> Sequence[Request]:
    topic, _ = there.fresh()
    return configs_of(topic, only_validate=True), configs_of(topic, only_validate=False)


asks("ListConfigResources", Request({"ResourceTypes": [BROKER_KIND, CLIENT_METRICS_KIND]}))


@case("DescribeLogDirs")
def describe_log_dirs(there: There, version: int) -> Sequence[Request]:
    return (Request({"Topics": [{"Topic": there.topic, "Partitions": [0, 1, 2]}]}),)


@case("AlterReplicaLogDirs")
def alter_replica_log_dirs(there: There, version: int) -> Sequence[Request]:
    """To a folder that is not there, and to where the replica is."""
    described = there.now("DescribeLogDirs", Request({"Topics": [{"Topic": there.topic, "Partitions": [0]}]}))
    topics = [{"Name": there.topic, "Partitions": [0]}]
    paths = ("/nowhere", described["Results"][0]["LogDir"])
    return tuple(Request({"Dirs": [{"Path": path, "Topics": topics}]}) for path in paths)


@case("ElectLeaders")
def elect_leaders(there: There, version: int) -> Sequence[Request]:
    """Where the preferred broker leads already, and where another one is preferred since just now."""
    fresh, _ = there.fresh()
    partitions = [{"PartitionIndex": 0, "Replicas": [2, 1, 3]}]
    preferred = {"TimeoutMs": TIMEOUT_MS, "Topics": [{"Name": fresh, "Partitions": partitions}]}
    there.now("AlterPartitionReassignments", Request(preferred))

    def of(topic: str) -> Request:
        topics = [{"Topic": topic, "Partitions": [0]}]
        return Request({"ElectionType": 0, "TopicPartitions": topics, "TimeoutMs": TIMEOUT_MS})

    return of(there.topic), of(fresh)


@case("AlterPartitionReassignments")
def alter_partition_reassignments(there: There, version: int) -> Sequence[Request]:
    """One that is cancelled and was never there, and one that goes to where the partition is."""
    topic, _ = there.fresh()

    def to(replicas: list[int] | None) -> Request:
        topics = [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Replicas": replicas}]}]
        return Request({"TimeoutMs": TIMEOUT_MS, "AllowReplicationFactorChange": True, "Topics": topics})

    return to(None), to([1, 2, 3])


@case("ListPartitionReassignments")
def list_partition_reassignments(there: There, version: int) -> Sequence[Request]:
    topics = [{"Name": there.topic, "PartitionIndexes": [0, 1, 2]}]
    return (Request({"TimeoutMs": TIMEOUT_MS, "Topics": topics}),)


METADATA_TOPIC: Final = {"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}
asks("DescribeQuorum", Request({"Topics": [METADATA_TOPIC]}))
asks("UnregisterBroker", Request({"BrokerId": 99}))
asks("UnregisterController", Request({"ControllerId": 99}))
VOTER: Final = {"ClusterId": "another", "VoterId": 99, "VoterDirectoryId": uuid.UUID(int=99)}
asks("AddRaftVoter", Request({**VOTER, "TimeoutMs": TIMEOUT_MS}))
asks("RemoveRaftVoter", Request(VOTER))
UNKNOWN_FEATURE: Final = {"Feature": "conformance.version", "MaxVersionLevel": 1, "UpgradeType": 1}
asks("UpdateFeatures", Request({"timeoutMs": TIMEOUT_MS, "FeatureUpdates": [UNKNOWN_FEATURE]}))


# ---- groups


@case("FindCoordinator")
def find_coordinator(there: There, version: int) -> Sequence[Request]:
    """Of a group, asked of each broker; of a transactional id."""

    def of(kind: int, key: str, broker_id: int = 1) -> Request:
        return Request({"Key": key, "KeyType": kind, "CoordinatorKeys": [key]}, broker_id)

    transactions = [of(1, there.group)] if version >= 1 else []
    return *(of(0, there.group, broker_id) for broker_id in (1, 2, 3)), *transactions


@case("OffsetCommit")
def offset_commit(there: There, version: int) -> Sequence[Request]:
    return (an_offset(there.name, there.topic, there.topic_id, there.coordinator_of(there.name)),)


@case("OffsetFetch")
def offset_fetch(there: There, version: int) -> Sequence[Request]:
    topics = [{"Name": there.topic, "TopicId": there.topic_id, "PartitionIndexes": [0, 1]}]
    groups = [{"GroupId": there.group, "MemberId": None, "MemberEpoch": -1, "Topics": topics}]
    return (Request({"GroupId": there.group, "Topics": topics, "Groups": groups}, there.coordinator),)


@case("OffsetDelete")
def offset_delete(there: There, version: int) -> Sequence[Request]:
    at = there.coordinator_of(there.name)
    there.now("OffsetCommit", an_offset(there.name, there.topic, there.topic_id, at))
    topics = [{"Name": there.topic, "Partitions": [{"PartitionIndex": 0}]}]
    return (Request({"GroupId": there.name, "Topics": topics}, at),)


@case("DeleteGroups")
def delete_groups(there: There, version: int) -> Sequence[Request]:
    at = there.coordinator_of(there.name)
    there.now("OffsetCommit", an_offset(there.name, there.topic, there.topic_id, at))
    request = Request({"GroupsNames": [there.name]}, at)
    return request, request


def joining(there: There, member: str) -> dict[str, Any]:
    return {
        **{"GroupId": there.name, "SessionTimeoutMs": SESSION_MS, "RebalanceTimeoutMs": TIMEOUT_MS},
        **{"MemberId": member, "GroupInstanceId": None, "ProtocolType": "consumer", "Reason": None},
        "Protocols": [{"Name": "range", "Metadata": b"\0\0"}],
    }


def join(there: There, at: int) -> str:
    """Bring a first member to a group, which is to be told what it gets. Returns: its id."""
    member: str = there.now("JoinGroup", Request(joining(there, ""), at))["MemberId"]
    there.own[member] = "OWN-MEMBER"
    return member


@case("JoinGroup")
def join_group(there: There, version: int) -> Sequence[Request]:
    """By one who has no id yet, and from v4 on by one who has."""
    at = there.coordinator_of(there.name)
    if version < 4:
        return (Request(joining(there, ""), at),)
    return Request(joining(there, ""), at), Request(joining(there, join(there, at)), at)


def synchronizing(there: There, member: str) -> dict[str, Any]:
    return {
        **{"GroupId": there.name, "GenerationId": 1, "MemberId": member, "GroupInstanceId": None},
        **{"ProtocolType": "consumer", "ProtocolName": "range"},
        "Assignments": [{"MemberId": member, "Assignment": b"assigned"}],
    }


def joined(there: There) -> tuple[int, str]:
    """A group with one member, which has joined. Returns: its coordinator, and the member's id."""
    at = there.coordinator_of(there.name)
    member = join(there, at)
    there.now("JoinGroup", Request(joining(there, member), at))
    return at, member


def stable(there: There) -> tuple[int, str]:
    """The same, at work."""
    at, member = joined(there)
    there.now("SyncGroup", Request(synchronizing(there, member), at))
    return at, member


@case("SyncGroup")
def sync_group(there: There, version: int) -> Sequence[Request]:
    at, member = joined(there)
    return (Request(synchronizing(there, member), at),)


@case("Heartbeat")
def heartbeat(there: There, version: int) -> Sequence[Request]:
    at, member = stable(there)
    beat = {"GroupId": there.name, "GenerationId": 1, "GroupInstanceId": None}
    return Request({**beat, "MemberId": member}, at), Request({**beat, "MemberId": "nobody"}, at)


@case("LeaveGroup")
def leave_group(there: There, version: int) -> Sequence[Request]:
    at, member = stable(there)
    leaves = {"MemberId": member, "GroupInstanceId": None, "Reason": "done"}
    return (Request({"GroupId": there.name, "MemberId": member, "Members": [leaves]}, at),)


@case("DescribeGroups")
def describe_groups(there: There, version: int) -> Sequence[Request]:
    at, _ = stable(there)
    return (Request({"Groups": [there.name], "IncludeAuthorizedOperations": True}, at),)


@case("ListGroups")
def list_groups(there: There, version: int) -> Sequence[Request]:
    """All that the coordinator has; of their states the one that nobody leaves without being told to."""
    return (Request({"StatesFilter": ["Empty"], "TypesFilter": ["classic"]}, there.coordinator),)


def beating(there: There, topic: str = "") -> Request:
    asked = {
        **{"GroupId": there.name, "MemberId": str(uuid.uuid5(NO_ID, there.name)), "MemberEpoch": 0},
        **{"InstanceId": None, "RackId": None, "RebalanceTimeoutMs": TIMEOUT_MS, "ServerAssignor": None},
        **{
            "SubscribedTopicNames": [topic or there.topic],
            "SubscribedTopicRegex": None,
            "TopicPartitions": [],
        },
    }
    return Request(asked, there.coordinator_of(there.name))


@case("ConsumerGroupHeartbeat")
@case("ShareGroupHeartbeat")
def group_heartbeat(there: There, version: int) -> Sequence[Request]:
    return (beating(there),)


def describing(there: There, heartbeat: Request, api: str) -> Sequence[Request]:
    there.now(api, heartbeat)
    asked = {"GroupIds": [there.name], "IncludeAuthorizedOperations": True}
    return (Request(asked, heartbeat.broker_id),)


@case("ConsumerGroupDescribe")
def consumer_group_describe(there: There, version: int) -> Sequence[Request]:
    return describing(there, beating(there), "ConsumerGroupHeartbeat")


@case("ShareGroupDescribe")
def share_group_describe(there: There, version: int) -> Sequence[Request]:
    return describing(there, beating(there), "ShareGroupHeartbeat")


def streaming(there: There) -> Request:
    subtopology = {
        **{"SubtopologyId": "0", "SourceTopics": [there.topic], "SourceTopicRegex": []},
        **{"StateChangelogTopics": [], "RepartitionSinkTopics": [], "RepartitionSourceTopics": []},
        "CopartitionGroups": [],
    }
    asked = {
        **{"GroupId": there.name, "MemberId": str(uuid.uuid5(NO_ID, there.name)), "MemberEpoch": 0},
        **{"EndpointInformationEpoch": 0, "InstanceId": None, "RackId": None, "ProcessId": "process"},
        **{"RebalanceTimeoutMs": TIMEOUT_MS, "Topology": {"Epoch": 0, "Subtopologies": [subtopology]}},
        **{"ActiveTasks": [], "StandbyTasks": [], "WarmupTasks": [], "ClientTags": []},
        **{"UserEndpoint": None, "TaskOffsets": None, "TaskEndOffsets": None},
    }
    return Request(asked, there.coordinator_of(there.name))


@case("StreamsGroupHeartbeat")
def streams_group_heartbeat(there: There, version: int) -> Sequence[Request]:
    return (streaming(there),)


@case("StreamsGroupDescribe")
def streams_group_describe(there: There, version: int) -> Sequence[Request]:
    return describing(there, streaming(there), "StreamsGroupHeartbeat")


@case("StreamsGroupTopologyDescriptionUpdate")
def streams_group_topology(there: There, version: int) -> Sequence[Request]:
    topology: dict[str, Any] = {"Subtopologies": [], "GlobalStores": []}
    asked = {"GroupId": there.name, "MemberId": "nobody", "TopologyDescription": topology}
    return (Request(asked, there.coordinator_of(there.name)),)


# ---- share groups


@case("ShareFetch")
def share_fetch(there: There, version: int) -> Sequence[Request]:
    """From the leader; and from another broker, which says who leads."""
    heartbeat = beating(there)
    there.now("ShareGroupHeartbeat", heartbeat)

    def of(topic_id: Any, broker_id: int) -> Request:
        asked = {
            **{"GroupId": there.name, "MemberId": heartbeat.values["MemberId"], "ShareSessionEpoch": 0},
            **{"MaxWaitMs": 500, "MinBytes": 0, "MaxBytes": 1 << 20, "MaxRecords": 100, "BatchSize": 100},
            "Topics": [
                {"TopicId": topic_id, "Partitions": [{"PartitionIndex": 0, "AcknowledgementBatches": []}]}
            ],
        }
        return Request(asked, broker_id)

    return of(there.topic_id, 1), of(there.lonely_id, 2)


@case("ShareAcknowledge")
def share_acknowledge(there: There, version: int) -> Sequence[Request]:
    """In a session that is not there, and in one that has taken a record."""
    topic, topic_id = there.fresh()
    heartbeat = beating(there, topic)
    there.now("ShareGroupHeartbeat", heartbeat)

    def asked(epoch: int, *batches: Mapping[str, Any]) -> Request:
        partition = {"PartitionIndex": 0, "AcknowledgementBatches": batches}
        session = {
            **{"GroupId": there.name, "MemberId": heartbeat.values["MemberId"], "ShareSessionEpoch": epoch},
            "Topics": [{"TopicId": topic_id, "Partitions": [partition]}],
        }
        limits = {"MaxWaitMs": 500, "MinBytes": 1, "MaxBytes": 1 << 20, "MaxRecords": 1, "BatchSize": 1}
        return Request({**session, **limits})

    # A group begins at the end of the log, and who has just asked does not know whether it has begun.
    there.now("ShareFetch", asked(0))
    newest = there.ranges["ShareFetch"].high
    for epoch in range(1, TRIES):
        there.now("Produce", a_record(topic, topic_id))
        answer = there.straight.answer("ShareFetch", newest, asked(epoch))
        partitions = [each for topic in answer["Responses"] for each in topic["Partitions"]]
        for taken in (each for partition in partitions for each in partition["AcquiredRecords"]):
            accepted = {name: taken[name] for name in ("FirstOffset", "LastOffset")}
            accepted["AcknowledgeTypes"] = [1]
            return asked(MAX_EPOCH, accepted), asked(epoch + 1, accepted)
    raise AssertionError(f"{topic}: records are given to nobody")


@case("DescribeShareGroupOffsets")
def describe_share_group_offsets(there: There, version: int) -> Sequence[Request]:
    groups = [{"GroupId": there.name, "Topics": [{"TopicName": there.topic, "Partitions": [0]}]}]
    return (Request({"Groups": groups}, there.coordinator_of(there.name)),)


@case("AlterShareGroupOffsets")
def alter_share_group_offsets(there: There, version: int) -> Sequence[Request]:
    partition = {"PartitionIndex": 0, "StartOffset": 1}
    topics = [{"TopicName": there.topic, "Partitions": [partition]}]
    return (Request({"GroupId": there.name, "Topics": topics}, there.coordinator_of(there.name)),)


@case("DeleteShareGroupOffsets")
def delete_share_group_offsets(there: There, version: int) -> Sequence[Request]:
    (altering,) = alter_share_group_offsets(there, version)
    there.now("AlterShareGroupOffsets", altering)
    return (altering,)


def share_state(there: There, version: int) -> Sequence[Request]:
    """What group coordinators ask of share coordinators."""
    topic_id = base64.urlsafe_b64encode(there.topic_id.bytes).decode().rstrip("=")
    at = there.coordinator_of(f"{there.name}:{topic_id}:0", 2)
    partition = {
        **{"Partition": 0, "StateEpoch": 0, "LeaderEpoch": 0, "StartOffset": 0},
        **{"DeliveryCompleteCount": 0, "StateBatches": []},
    }
    asked = {
        "GroupId": there.name,
        "Topics": [{"TopicId": there.topic_id, "Partitions": [partition]}],
    }
    return (Request(asked, at),)


def share_state_that_is_there(there: There, version: int) -> Sequence[Request]:
    (request,) = share_state(there, version)
    there.now("InitializeShareGroupState", request)
    return (request,)


for _name in ("InitializeShareGroupState", "DeleteShareGroupState", "ReadShareGroupStateSummary"):
    CASES[_name] = share_state
for _name in ("ReadShareGroupState", "WriteShareGroupState"):
    CASES[_name] = share_state_that_is_there


# ---- transactions


def starting(transactional_id: str | None) -> dict[str, Any]:
    return {
        **{"TransactionalId": transactional_id, "TransactionTimeoutMs": TIMEOUT_MS},
        **{"ProducerId": -1, "ProducerEpoch": -1},
    }


@case("InitProducerId")
def init_producer_id(there: There, version: int) -> Sequence[Request]:
    at = there.coordinator_of(there.name, 1)
    return Request(starting(None)), Request(starting(there.name), at)


def started(there: There) -> tuple[int, dict[str, Any]]:
    """A transactional producer. Returns: its coordinator, and fields that name it."""
    at = there.coordinator_of(there.name, 1)
    made = there.now("InitProducerId", Request(starting(there.name), at))
    mine = {"ProducerId": made["ProducerId"], "ProducerEpoch": made["ProducerEpoch"]}
    return at, {"TransactionalId": there.name, **mine}


def adding(there: There, producer: dict[str, Any], topic: str) -> dict[str, Any]:
    topics = [{"Name": topic, "Partitions": [0]}]
    return {
        **{f"V3AndBelow{name}": value for name, value in producer.items()},
        "V3AndBelowTopics": topics,
        "Transactions": [{**producer, "VerifyOnly": False, "Topics": topics}],
    }


@case("AddPartitionsToTxn")
def add_partitions_to_txn(there: There, version: int) -> Sequence[Request]:
    at, producer = started(there)
    topic, _ = there.fresh()
    return (Request(adding(there, producer, topic), at),)


@case("AddOffsetsToTxn")
def add_offsets_to_txn(there: There, version: int) -> Sequence[Request]:
    at, producer = started(there)
    return (Request({**producer, "GroupId": there.name}, at),)


@case("EndTxn")
def end_txn(there: There, version: int) -> Sequence[Request]:
    at, producer = started(there)
    there.now("AddOffsetsToTxn", Request({**producer, "GroupId": there.name}, at))
    return (Request({**producer, "Committed": True}, at),)


@case("TxnOffsetCommit")
def txn_offset_commit(there: There, version: int) -> Sequence[Request]:
    at, producer = started(there)
    there.now("AddOffsetsToTxn", Request({**producer, "GroupId": there.name}, at))
    to = there.coordinator_of(there.name)
    offset = an_offset(there.name, there.topic, there.topic_id, to)
    return (Request({**offset.values, **producer}, to),)


@case("WriteTxnMarkers")
def write_txn_markers(there: There, version: int) -> Sequence[Request]:
    """What coordinators write where a transaction ends; here of one that never was."""
    _, producer = started(there)
    topic, _ = there.fresh()
    marker = {
        **{"ProducerId": producer["ProducerId"], "ProducerEpoch": producer["ProducerEpoch"]},
        **{"TransactionResult": False, "CoordinatorEpoch": 0},
        "Topics": [{"Name": topic, "PartitionIndexes": [0]}],
    }
    return (Request({"Markers": [marker]}),)


@case("DescribeTransactions")
def describe_transactions(there: There, version: int) -> Sequence[Request]:
    at, _ = started(there)
    return (Request({"TransactionalIds": [there.name]}, at),)


@case("ListTransactions")
def list_transactions(there: There, version: int) -> Sequence[Request]:
    at, producer = started(there)
    asked = {"ProducerIdFilters": [producer["ProducerId"]], "DurationFilter": -1}
    return (Request({**asked, "TransactionalIdPattern": None}, at),)


# ---- who may do what, and how much


def rule(there: There) -> dict[str, Any]:
    return {
        **{"ResourceType": TOPIC_KIND, "ResourceName": there.name, "ResourcePatternType": LITERAL},
        **{"Principal": "User:conformance", "Host": "*", "Operation": 3, "PermissionType": 3},
    }


def rules_of(there: There) -> dict[str, Any]:
    return {
        **{"ResourceTypeFilter": TOPIC_KIND, "ResourceNameFilter": there.name},
        **{"PatternTypeFilter": LITERAL, "PrincipalFilter": None, "HostFilter": None},
        **{"Operation": ANY, "PermissionType": ANY},
    }


@case("CreateAcls")
def create_acls(there: There, version: int) -> Sequence[Request]:
    return (Request({"Creations": [rule(there)]}),)


@case("DescribeAcls")
def describe_acls(there: There, version: int) -> Sequence[Request]:
    there.now("CreateAcls", Request({"Creations": [rule(there)]}))
    return (Request(rules_of(there)),)


@case("DeleteAcls")
def delete_acls(there: There, version: int) -> Sequence[Request]:
    there.now("CreateAcls", Request({"Creations": [rule(there)]}))
    return (Request({"Filters": [rules_of(there)]}),)


def quota(there: There) -> Request:
    entity = {"EntityType": "client-id", "EntityName": there.name}
    rate = {"Key": "producer_byte_rate", "Value": 1e9, "Remove": False}
    return Request({"Entries": [{"Entity": [entity], "Ops": [rate]}], "ValidateOnly": False})


@case("AlterClientQuotas")
def alter_client_quotas(there: There, version: int) -> Sequence[Request]:
    return (quota(there),)


@case("DescribeClientQuotas")
def describe_client_quotas(there: There, version: int) -> Sequence[Request]:
    there.now("AlterClientQuotas", quota(there))
    component = {"EntityType": "client-id", "MatchType": 0, "Match": there.name}
    return (Request({"Components": [component], "Strict": True}),)


def credentials(there: There) -> Request:
    made = {
        **{"Name": there.name, "Mechanism": 1, "Iterations": 4096},
        **{"Salt": b"salt", "SaltedPassword": bytes(32)},
    }
    return Request({"Deletions": [], "Upsertions": [made]})


@case("AlterUserScramCredentials")
def alter_user_scram_credentials(there: There, version: int) -> Sequence[Request]:
    return (credentials(there),)


@case("DescribeUserScramCredentials")
def describe_user_scram_credentials(there: There, version: int) -> Sequence[Request]:
    there.now("AlterUserScramCredentials", credentials(there))
    request = Request({"Users": [{"Name": there.name}]})
    there.now("DescribeUserScramCredentials", request)
    return (request,)


OWNER: Final = {"PrincipalType": "User", "PrincipalName": "conformance"}
asks("CreateDelegationToken", Request({"Renewers": [OWNER], "MaxLifetimeMs": -1, "OwnerPrincipalName": ""}))
asks("RenewDelegationToken", Request({"Hmac": b"x", "RenewPeriodMs": -1}))
asks("ExpireDelegationToken", Request({"Hmac": b"x", "ExpiryTimePeriodMs": -1}))
asks("DescribeDelegationToken", Request({"Owners": [OWNER]}))
asks("GetTelemetrySubscriptions", Request({"ClientInstanceId": NO_ID}))
asks("PushTelemetry", Request({"ClientInstanceId": uuid.UUID(int=7), "Terminating": True}))
