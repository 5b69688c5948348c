"""Unusual frames, and a simple parser of answers."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from dataclasses import dataclass
from types import TracebackType

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v0.response import ListGroupsResponse
from kio.schema.metadata.v1.response import MetadataResponse
from kio.serial import entity_reader

from fleet.core.model import Endpoint

PRODUCE, FETCH, METADATA, SASL_HANDSHAKE, API_VERSIONS, DESCRIBE_QUORUM = 0, 1, 3, 17, 18, 55
FIND_COORDINATOR, DESCRIBE_CONFIGS = 10, 32
LIST_GROUPS, DESCRIBE_LOG_DIRS = 16, 35
COORDINATOR_NOT_AVAILABLE = 15
CLIENT_ID = b"raw"
LIMIT_S = 60.0


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def request(key: int, version: int, correlation_id: int, body: bytes = b"") -> bytes:
    """A whole frame with request header v1."""
    header = struct.pack(">hhih", key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID
    return struct.pack(">i", len(header) + len(body)) + header + body


def produce(correlation_id: int, acks: int) -> bytes:
    """Produce v7 with no topic: a broker answers it unless acks is 0. Source: ProduceRequest.json"""
    return request(PRODUCE, 7, correlation_id, struct.pack(">hhii", -1, acks, 30_000, 0))


def one_record() -> bytes:
    """A batch of record format 2."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 10)
    builder.append(0, None, None, b"value", [])
    return bytes(builder.build())


def produce_record(correlation_id: int, topic: str, partition: int, records: bytes) -> bytes:
    """Produce v7 to one partition with acks=all. Source: ProduceRequest.json"""
    body = struct.pack(">hhi", -1, -1, 30_000)
    body += struct.pack(">i", 1) + string(topic) + struct.pack(">iii", 1, partition, len(records)) + records
    return request(PRODUCE, 7, correlation_id, body)


def metadata(correlation_id: int) -> bytes:
    """Metadata v1 for no topic. Source: MetadataRequest.json"""
    return request(METADATA, 1, correlation_id, struct.pack(">i", 0))


def brokers_of(body: bytes) -> dict[int, Endpoint]:
    """The brokers of a Metadata response v1. Source: MetadataResponse.json"""
    (count,) = struct.unpack_from(">i", body)
    position, found = 4, {}
    for _ in range(count):
        broker_id, size = struct.unpack_from(">ih", body, position)
        position += 6 + size
        host = body[position - size : position].decode()
        port, rack_size = struct.unpack_from(">ih", body, position)
        position += 6 + max(0, rack_size)
        found[broker_id] = Endpoint(host, port)
    return found


def metadata_of(correlation_id: int, topic: str) -> bytes:
    """Metadata v1 for one topic. Source: MetadataRequest.json"""
    return request(METADATA, 1, correlation_id, struct.pack(">i", 1) + string(topic))


def led_partitions(body: bytes) -> int:
    """The number of partitions with a leader, in a Metadata response v1 for one topic.

    Source: MetadataResponse.json
    """
    response, _ = entity_reader(MetadataResponse)(body, 0)
    (topic,) = response.topics
    return sum(each.error_code == ErrorCode.none for each in topic.partitions)


def fetch(correlation_id: int, topic: str, partition: int, max_wait_ms: int) -> bytes:
    """Fetch v4 from the start of one partition. Source: FetchRequest.json"""
    body = struct.pack(">iiiib", -1, max_wait_ms, 1, 1 << 20, 0)
    body += struct.pack(">i", 1) + string(topic) + struct.pack(">iiqi", 1, partition, 0, 1 << 20)
    return request(FETCH, 4, correlation_id, body)


def describe_broker_config(correlation_id: int, broker_id: int, name: str) -> bytes:
    """DescribeConfigs v1 for one configuration of a broker. Source: DescribeConfigsRequest.json"""
    of_broker = struct.pack(">ib", 1, 4) + string(str(broker_id))
    body = of_broker + struct.pack(">i", 1) + string(name) + b"\0"
    return request(DESCRIBE_CONFIGS, 1, correlation_id, body)


def describe_log_dirs(correlation_id: int) -> bytes:
    """DescribeLogDirs v1 for all topics. Source: DescribeLogDirsRequest.json"""
    return request(DESCRIBE_LOG_DIRS, 1, correlation_id, struct.pack(">i", -1))


def list_groups(correlation_id: int) -> bytes:
    """ListGroups v0. Source: ListGroupsRequest.json"""
    return request(LIST_GROUPS, 0, correlation_id)


def groups_of(body: bytes) -> set[str]:
    """The groups in a ListGroups response v0. Source: ListGroupsResponse.json"""
    response, _ = entity_reader(ListGroupsResponse)(body, 0)
    assert response.error_code == ErrorCode.none
    return {each.group_id for each in response.groups}


def describe_quorum(correlation_id: int) -> bytes:
    """DescribeQuorum v2 for the cluster's metadata. Source: DescribeQuorumRequest.json"""
    name = b"__cluster_metadata"
    partition = struct.pack(">i", 0) + b"\0"
    topic = bytes([len(name) + 1]) + name + b"\2" + partition + b"\0"
    return request(DESCRIBE_QUORUM, 2, correlation_id, b"\0\2" + topic + b"\0")


def named(correlation_id: int, software: str) -> bytes:
    """ApiVersions v3 of a client that names its library. Source: ApiVersionsRequest.json"""
    name = bytes([len(software) + 1]) + software.encode()
    return request(API_VERSIONS, 3, correlation_id, b"\0" + name + b"\x021\0")


def find_coordinator(correlation_id: int, group: str) -> bytes:
    """FindCoordinator v0. Source: FindCoordinatorRequest.json"""
    return request(FIND_COORDINATOR, 0, correlation_id, string(group))


def coordinator_of(body: bytes) -> int | None:
    """The broker in a FindCoordinator response v0; None if there is none yet.

    Source: FindCoordinatorResponse.json
    """
    error_code, broker_id = struct.unpack_from(">hi", body)
    assert error_code in (0, COORDINATOR_NOT_AVAILABLE)
    return None if error_code else int(broker_id)


@dataclass(frozen=True, slots=True)
class ApiVersions:
    """Source: ApiVersionsResponse.json v0"""

    error_code: int
    ranges: dict[int, tuple[int, int]]

    @staticmethod
    def parse(body: bytes) -> ApiVersions:
        error_code, count = struct.unpack_from(">hi", body)
        triples = [struct.unpack_from(">hhh", body, 6 + 6 * index) for index in range(count)]
        assert len(body) == 6 + 6 * count
        return ApiVersions(error_code, {key: (low, high) for key, low, high in triples})


IN_ORDER = "end of file after 0 of 4 bytes"
"""The ends of an orderly closed connection: between two answers, and without a reset."""


def advertised(
    endpoint: Endpoint, tls: ssl.SSLContext | None = None, server_name: str | None = None
) -> dict[int, Endpoint]:
    """The brokers in the Metadata that a member gives."""
    with Connection(endpoint, tls, server_name) as connection:
        return brokers_of(connection.ask(metadata(1)))


class Connection:
    """A blocking connection that sends and receives frames.

    Args:
        source: the address that it comes from, where that matters.
        tls, server_name: how to speak TLS, where it does.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        source: str | None = None,
    ) -> None:
        local = None if source is None else (source, 0)
        self._socket = socket.create_connection((endpoint.host, endpoint.port), LIMIT_S, local)
        self.certificate: bytes | None = None
        """The certificate of the other side; DER."""
        if tls is not None:
            secured = tls.wrap_socket(self._socket, server_hostname=server_name or endpoint.host)
            self._socket, self.certificate = secured, secured.getpeercert(binary_form=True)

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> tuple[int, bytes]:
        """Receive the next response: correlation id, and the bytes after it.

        Raises: EOFError: the connection ended.
        """
        (size,) = struct.unpack(">i", self._read(4))
        frame = self._read(size)
        (correlation_id,) = struct.unpack_from(">i", frame)
        return correlation_id, frame[4:]

    def receive_bare(self) -> bytes:
        """Receive the next frame, which has no header. Raises: EOFError: the connection ended."""
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def ask(self, frame: bytes) -> bytes:
        """Send a request, and receive its response, which must be the next one."""
        self.send(frame)
        correlation_id, body = self.receive()
        assert correlation_id == struct.unpack_from(">i", frame, 8)[0]
        return body

    def ends(self) -> bool:
        """Wait for bytes or the end of the connection. Returns: whether it ended. Raises: TimeoutError"""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise EOFError(f"end of file after {len(data)} of {size} bytes")
            data += more
        return data

    def __enter__(self) -> Connection:
        return self

    def close(self) -> None:
        self._socket.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Pipeline:
    """Produces to one partition over one connection, with several requests in flight, until it ends.

    It never repeats a request. Where the connection ends as it should, what was forwarded has been answered,
    and what was not answered has not been forwarded: there are as many answers as records in the log.
    """

    WINDOW = 16

    def __init__(self, endpoint: Endpoint, topic: str, partition: int) -> None:
        self._endpoint = endpoint
        self._topic = topic
        self._partition = partition
        self._thread = threading.Thread(target=self._work, name="pipeline")
        self._stopping = threading.Event()
        self.sent = 0
        self.answered = 0
        self.refused: list[int] = []
        """The error codes in answers."""
        self.end = ""

    def __enter__(self) -> Pipeline:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def _work(self) -> None:
        records = one_record()
        try:
            with Connection(self._endpoint) as connection:
                while not self._stopping.is_set():
                    if self.sent - self.answered < self.WINDOW:
                        self.sent += 1
                        connection.send(produce_record(self.sent, self._topic, self._partition, records))
                    else:
                        self._receive(connection)
        except (EOFError, OSError) as error:
            self.end = str(error)

    def _receive(self, connection: Connection) -> None:
        correlation_id, body = connection.receive()
        self.answered += 1
        assert correlation_id == self.answered
        at = 4 + 2 + len(self._topic) + 4 + 4  # ProduceResponse.json v7: one topic, one partition, its index
        (error_code,) = struct.unpack_from(">h", body, at)
        if error_code:
            self.refused.append(error_code)
