"""A Kafka cluster of combined KRaft nodes on this machine, for the demo and the tests.

    with KafkaCluster(3, folder) as kafka:          # or: async with
        kafka.bootstrap_servers                     # "127.0.0.1:20417,127.0.0.1:20418,127.0.0.1:20419"
        kafka.kill(2); kafka.start_broker(2); kafka.await_ready()
        kafka.tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", kafka.bootstrap_servers, "…")

Start the cluster from the main thread. The kernel ends the brokers with the thread that started them, so
no broker survives a crash (see `fleet.drills.cluster.spawn`).
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from fleet.core.errors import DemoError
from fleet.core.model import Broker, BrokerId, Endpoint
from fleet.drills.cluster.kafka_jars import CHECKOUT_LIBS, JAR_PATTERN, has_kafka
from fleet.drills.cluster.ports import free_ports
from fleet.drills.cluster.spawn import end, spawn, tail

START_LIMIT_S = 90.0
STOPPED = 128 + signal.SIGTERM
"""The exit code of a Java virtual machine that shuts down cleanly after SIGTERM."""
_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_BROKER_HEAP = ("-Xms128m", "-Xmx512m")
_PROPERTIES = """\
process.roles=broker,controller
node.id={broker_id}
broker.rack={rack}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}{more_listeners}
advertised.listeners=PLAINTEXT://{host}:{port}{more_advertised}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{more_protocols}
controller.listener.names=CONTROLLER
log.dirs={data_dir}
default.replication.factor={replication}
min.insync.replicas={in_sync}
num.partitions=3
num.network.threads=2
num.io.threads=4
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=9
offsets.topic.replication.factor={replication}
transaction.state.log.num.partitions=9
transaction.state.log.replication.factor={replication}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.num.partitions=9
share.coordinator.state.topic.replication.factor={replication}
share.coordinator.state.topic.min.isr={in_sync}
log.cleaner.backoff.ms=1000
metadata.max.idle.interval.ms=5000
"""
LOGGING = """\
status=ERROR
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %-5p %c{1} %m%n
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
"""
"""Properties of Log4j 2 for every Kafka program: warnings and errors on standard output."""
_LOGGING = f"""\
{LOGGING}\
logger.server.name=kafka.server
logger.server.level=INFO
logger.config.name=org.apache.kafka.common.config
logger.config.level=WARN
"""


class KafkaCluster:
    """N brokers that are also the controllers, with their data in one folder.

    Args:
        brokers: number of brokers. Their ids are 1 to N, their racks are a, b, c, a, b, c, …
        folder: has data, properties and logs. A folder that was used before still has its records.
        libs: the folder of Kafka's jars; see `fleet.drills.cluster.kafka_jars`.
        host_of: returns the address that a broker binds and advertises.
        ephemeral: whether `stop` may kill the brokers, which is faster, and remove their data.
        more_listeners: by listener name (letters, not PLAINTEXT or CONTROLLER), the address that each broker
            advertises there: a forwarder in front of the broker. `listener` returns where the broker listens.
        secured: by listener name, the security protocol of an additional listener. Further settings of the
            protocol go into `properties`. Unless `more_listeners` has the same name, the broker advertises
            the address where it listens.
        properties: additional properties of each broker.
        scram: passwords by user, for both SCRAM mechanisms.
        jvm: additional options of the brokers' Java virtual machines.
    """

    def __init__(
        self,
        brokers: int,
        folder: Path,
        *,
        libs: Path = CHECKOUT_LIBS,
        host_of: Callable[[BrokerId], str] = lambda _: "127.0.0.1",
        ephemeral: bool = True,
        more_listeners: Mapping[str, Mapping[BrokerId, Endpoint]] | None = None,
        secured: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        scram: Mapping[str, str] | None = None,
        jvm: Sequence[str] = (),
    ) -> None:
        self._folder = folder.resolve()
        self._libs = libs.resolve()
        self._ephemeral = ephemeral
        ids = range(1, brokers + 1)
        hosts = {broker_id: host_of(broker_id) for broker_id in ids}
        self._secured = {name.upper(): protocol for name, protocol in (secured or {}).items()}
        self._more_properties = "".join(f"{name}={value}\n" for name, value in (properties or {}).items())
        self._scram = dict(scram or {})
        self._machine = (*_BROKER_HEAP, *jvm)
        self._advertised = {name.upper(): advertised for name, advertised in (more_listeners or {}).items()}
        names = tuple(dict.fromkeys((*self._advertised, *self._secured, "CONTROLLER")))
        ports = free_ports((1 + len(names)) * brokers, tuple(dict.fromkeys(hosts.values())))
        places = [(name, broker_id) for name in names for broker_id in ids]
        self._more_ports = dict(zip(places, ports[brokers:], strict=True))
        self.brokers: dict[BrokerId, Broker] = {
            broker_id: Broker(broker_id, hosts[broker_id], port, "abc"[(broker_id - 1) % 3])
            for broker_id, port in zip(ids, ports[:brokers], strict=True)
        }
        for name in self._secured:
            self._advertised.setdefault(
                name, {broker_id: self.listener(name, broker_id) for broker_id in ids}
            )
        self._processes: dict[BrokerId, subprocess.Popen[bytes]] = {}

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(Endpoint(broker.host, broker.port) for broker in self.brokers.values())

    def listener(self, name: str, broker_id: BrokerId) -> Endpoint:
        """The address where a broker listens for a listener of `more_listeners` or `secured`."""
        return Endpoint(self.brokers[broker_id].host, self._more_ports[name.upper(), broker_id])

    @property
    def bootstrap_servers(self) -> str:
        """The real brokers' addresses, as a value of a client's `bootstrap.servers`."""
        return ",".join(map(str, self.endpoints))

    @property
    def logs(self) -> Path:
        return self._folder / "logs"

    def log(self, broker_id: BrokerId) -> Path:
        return self.logs / f"kafka-{broker_id}.log"

    # ------------------------------------------------------------------------------------ whole cluster

    def launch(self) -> None:
        """Format new data folders and start every broker, without waiting until they are ready.

        Raises: DemoError: there are no jars or no Java, or a data folder cannot be formatted.
        """
        if not has_kafka(self._libs):
            raise DemoError(
                f"{self._libs}: no {JAR_PATTERN} in this folder; run `make test` in a checkout, or give the "
                "folder of another Kafka"
            )
        self._write_properties()
        self.format_storage()
        for broker_id in self.brokers:
            self.start_broker(broker_id)

    def await_ready(self, limit_s: float = START_LIMIT_S) -> None:
        """Wait until each started broker lists every started broker.

        Raises: DemoError: a broker ended, or the brokers are not ready in time; names the logs.
        """
        deadline_s = time.monotonic() + limit_s
        expected = {broker_id for broker_id, process in self._processes.items() if process.poll() is None}
        clients = [
            AdminClient({"bootstrap.servers": str(at), "log_level": 0}) for at in self._addresses_of(expected)
        ]
        while clients:
            self._check_alive(expected)
            if _registered(clients[0], self.cluster_id()) >= expected:
                clients.pop(0)
            elif time.monotonic() > deadline_s:
                raise DemoError(f"Kafka is not ready after {limit_s:.0f} s; see its logs in {self.logs}")
            else:
                time.sleep(0.05)  # a client that cannot connect returns at once

    def start(self) -> None:
        """`launch` and `await_ready`. Stops every broker if that fails."""
        try:
            self.launch()
            self.await_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every broker, and remove the data of an ephemeral cluster. The logs stay."""
        # Combined nodes that stop together wait for a controller that has ended: a long wait is wasted.
        end(list(self._processes.values()), patience_s=0.0 if self._ephemeral else 8.0)
        self._processes.clear()
        if self._ephemeral:
            shutil.rmtree(self._folder / "data", ignore_errors=True)

    # --------------------------------------------------------------------------------------- one broker

    def start_broker(self, broker_id: BrokerId) -> None:
        """Start a broker that is not running, with its former port and data, without waiting for it."""
        running = self._processes.get(broker_id)
        if running is not None and running.poll() is None:
            raise DemoError(f"broker {broker_id} is already running")
        command = self._java(self._machine, "kafka.Kafka", str(self._properties(broker_id)))
        self._processes[broker_id] = spawn(command, self.log(broker_id), cwd=self._folder)

    def stop_broker(self, broker_id: BrokerId, patience_s: float = 30.0) -> int:
        """Stop one broker, which hands its partitions over; after `patience_s` the broker gets SIGKILL.

        Returns: the exit code; `STOPPED` if the broker ended in time.
        """
        process = self._processes[broker_id]
        end([process], patience_s)
        return process.wait()

    def kill(self, broker_id: BrokerId) -> None:
        """SIGKILL one broker."""
        end([self._processes[broker_id]], 0.0)

    def pid(self, broker_id: BrokerId) -> int:
        """The process id of a broker that was started, even if the broker has ended."""
        return self._processes[broker_id].pid

    def restart_broker(self, broker_id: BrokerId, limit_s: float = START_LIMIT_S) -> None:
        """Stop one broker cleanly, start it again, and wait until every broker is ready."""
        self.stop_broker(broker_id)
        self.start_broker(broker_id)
        self.await_ready(limit_s)

    # -------------------------------------------------------------------------------------------- tools

    def tool(
        self, java_class: str, *arguments: str, stdin: str = "", limit_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's own command-line tools to its end.

        Args:
            java_class: for example `org.apache.kafka.tools.TopicCommand`.
            arguments, stdin: the tool's command line and input.
        Raises:
            DemoError: the tool has not ended within `limit_s`.
        """
        try:
            return subprocess.run(
                self.tool_command(java_class, *arguments),
                input=stdin,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"{java_class} did not end within {limit_s:.0f} s: {error.stderr!r}") from error

    def dump(self, broker_id: BrokerId, topic: str, partition: int) -> str:
        """A partition's batches on one broker, as Kafka's DumpLogSegments prints them.

        Raises: DemoError: the broker has no log of the partition, or the log cannot be read.
        """
        segments = sorted((self._data(broker_id) / f"{topic}-{partition}").glob("*.log"))
        if not segments:
            raise DemoError(f"broker {broker_id} has no log of partition {partition} of {topic}")
        files = ",".join(map(str, segments))
        done = self.tool("org.apache.kafka.tools.DumpLogSegments", "--files", files)
        if done.returncode != 0:
            raise DemoError(f"cannot dump partition {partition} of {topic}: {done.stderr}")
        return done.stdout

    def tool_command(self, java_class: str, *arguments: str) -> list[str]:
        """The command line of one of Kafka's tools, for callers that start the tool themselves."""
        logging = self._folder / "tools-log4j2.properties"
        if not logging.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            target = "appender.console.target=SYSTEM_ERR\nrootLogger.level=WARN\n"
            logging.write_text(_LOGGING.replace("rootLogger.level=WARN\n", target))
        return self._java(("-Xmx256m",), java_class, *arguments, logging=logging)

    # -------------------------------------------------------------------------------- as a context manager

    def __enter__(self) -> KafkaCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> KafkaCluster:
        try:
            self.launch()  # in the main thread: see `spawn`
            await asyncio.to_thread(self.await_ready)
        except BaseException:
            self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------------------------------ internals

    def _java(self, heap: Sequence[str], *arguments: str, logging: Path | None = None) -> list[str]:
        return java(self._libs, logging or self._folder / "log4j2.properties", *heap, *arguments)

    def _properties(self, broker_id: BrokerId) -> Path:
        return self._folder / f"kafka-{broker_id}.properties"

    def _data(self, broker_id: BrokerId) -> Path:
        return self._folder / "data" / f"kafka-{broker_id}"

    def _addresses_of(self, broker_ids: set[BrokerId]) -> list[Endpoint]:
        return [Endpoint(self.brokers[known].host, self.brokers[known].port) for known in sorted(broker_ids)]

    def _write_properties(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "log4j2.properties").write_text(_LOGGING)
        replication = min(3, len(self.brokers))
        voters = ",".join(f"{known}@{self.listener('CONTROLLER', known)}" for known in self.brokers)
        for broker_id, broker in self.brokers.items():
            self._properties(broker_id).write_text(
                _PROPERTIES.format(
                    broker_id=broker_id,
                    rack=broker.rack,
                    voters=voters,
                    host=broker.host,
                    port=broker.port,
                    controller_port=self.listener("CONTROLLER", broker_id).port,
                    more_listeners="".join(
                        f",{name}://{self.listener(name, broker_id)}" for name in self._advertised
                    ),
                    more_advertised="".join(
                        f",{name}://{at[broker_id]}" for name, at in self._advertised.items()
                    ),
                    more_protocols="".join(
                        f",{name}:{self._secured.get(name, 'PLAINTEXT')}" for name in self._advertised
                    ),
                    data_dir=self._data(broker_id),
                    replication=replication,
                    in_sync=max(1, replication - 1),
                )
                + self._more_properties
            )

    def cluster_id(self) -> str:
        known = self._folder / "cluster-id"
        if not known.exists():
            known.write_text(base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))
        return known.read_text()

    def format_storage(self) -> None:
        """Format every new data folder with the cluster's id, all of them in parallel."""
        formatting: dict[BrokerId, subprocess.Popen[bytes]] = {}
        try:
            for broker_id in self.brokers:
                if (self._data(broker_id) / "meta.properties").exists():
                    continue
                self._data(broker_id).mkdir(parents=True, exist_ok=True)
                # One word, because one id in 64 begins with a dash.
                settings = (f"--cluster-id={self.cluster_id()}", "-c", str(self._properties(broker_id)))
                scram = [
                    f"--add-scram={mechanism}=[name={user},password={password}]"
                    for user, password in self._scram.items()
                    for mechanism in _SCRAM
                ]
                command = self._java((), "kafka.tools.StorageTool", "format", *settings, *scram)
                formatting[broker_id] = spawn(command, self.log(broker_id), cwd=self._folder)
            for broker_id, process in formatting.items():
                if process.wait(timeout=START_LIMIT_S) != 0:
                    raise DemoError(f"cannot format Kafka's data folder:\n{tail(self.log(broker_id))}")
        finally:
            end(list(formatting.values()), 0.0)

    def _check_alive(self, broker_ids: set[BrokerId]) -> None:
        for broker_id in broker_ids:
            code = self._processes[broker_id].poll()
            if code is not None:
                log = self.log(broker_id)
                raise DemoError(f"broker {broker_id} ended with code {code}; see {log}:\n{tail(log)}")


def java(libs: Path, logging: Path, *arguments: str) -> list[str]:
    """The command line of a Java program in Kafka's jars.

    Args:
        libs: the folder of Kafka's jars.
        logging: the file with properties of Log4j 2.
        arguments: options of the Java virtual machine, the class, and the arguments of the class.
    """
    archive = archive_of(libs)
    shared = (f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ()
    return ["java", *_JVM, *shared, f"-Dlog4j2.configurationFile={logging}", "-cp", f"{libs}/*", *arguments]


def archive_of(libs: Path) -> Path:
    """The class data sharing archive of a folder of jars, which makes Java start faster."""
    return libs.with_name(f"{libs.name}.jsa")


def _registered(client: AdminClient, cluster_id: str) -> set[BrokerId]:
    """The brokers that a cluster's Metadata lists; empty if no broker, or another cluster, answers."""
    with suppress(KafkaException):
        seen = client.list_topics(timeout=2.0)
        if seen.cluster_id == cluster_id:
            return set(seen.brokers)
    return set()
