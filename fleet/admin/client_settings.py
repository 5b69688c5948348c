"""Recommended settings, by the names of each client library, with the reason and the measured effect.

Sources: docs/clients.md; for defaults the documentation of librdkafka 2.16, Kafka 4.3.1 (producer, consumer,
admin), aiokafka 0.14, franz-go 1.22 (package kgo), sarama 1.61, kafka-go 0.4.51, kafkajs 2.2 and Spark 4.1
(Kafka integration; the tested Spark is 4.3.0).
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

WIDTH: Final = 100
"""Width of the printed comments, as far as their words allow."""

Client: TypeAlias = Literal[
    "java", "librdkafka", "aiokafka", "franz-go", "sarama", "kafka-go", "kafkajs", "spark"
]
Basis: TypeAlias = Literal["measured", "reasoned, not measured"]


@dataclass(frozen=True, slots=True)
class ClientSetting:
    """One setting.

    Args:
        name, value: in the syntax of the client.
        default: the behaviour of the client without the setting.
        why: the reason, in one sentence.
        measured: the measured effect; None if it was not measured.
    """

    name: str
    value: str
    default: str
    why: str
    measured: str | None = None


_RECONNECT_AT_ONCE: Final = "another member answers in place of a dead one: a longer back-off only loses time"
_RETRY_SOON: Final = (
    "survivors give the right answer some 30 ms after a death: a short wait before the next request is enough"
)
_SILENT_MEMBER: Final = (
    "when the host or the network of a member is lost, clients notice only a missing answer: allow a little"
    " more time than the slowest answer of the brokers takes"
)
_LOST_MEMBER: Final = "a lost member accepts no connection"
_ACKS_ALL: Final = (
    "for producers: a record that only the leader has, or that is not acknowledged, can be lost"
)
_TAKEOVER: Final = (
    "all four together: longest delivery in a takeover 132 ms in the median of 20 kills, 284 without;"
    " on a slower machine 383 and 395"
)

LIBRDKAFKA_TAKEOVER: Final = (
    ClientSetting("reconnect.backoff.ms", "10", "100", _RECONNECT_AT_ONCE),
    ClientSetting(
        "reconnect.backoff.max.ms",
        "100",
        "10000",
        "the back-off doubles with each attempt, and would delay a second takeover that follows soon",
    ),
    ClientSetting("retry.backoff.ms", "20", "100", "failed requests are sent again after this time"),
    ClientSetting("topic.metadata.refresh.fast.interval.ms", "20", "100", _RETRY_SOON, _TAKEOVER),
)
"""The settings that only make takeovers shorter for librdkafka."""

CLIENT_SETTINGS: Final[Mapping[Client, tuple[ClientSetting, ...]]] = MappingProxyType(
    {
        "java": (
            ClientSetting(
                "request.timeout.ms",
                "5000",
                "30000",
                _SILENT_MEMBER,
                "longest stall behind a member that fell silent: 5.1 s, 30 s without (producer, median)",
            ),
            ClientSetting("reconnect.backoff.ms", "10", "50", _RECONNECT_AT_ONCE),
            ClientSetting(
                "reconnect.backoff.max.ms", "100", "1000", "the back-off doubles with each failed attempt"
            ),
        ),
        "librdkafka": (
            ClientSetting(
                "enable.idempotence",
                "true",
                "false",
                "for producers: librdkafka drops a connection with requests in flight when the address of a"
                " broker id changes, and sends them again; without idempotence, a planned move can duplicate"
                " and reorder records",
            ),
            *LIBRDKAFKA_TAKEOVER,
            ClientSetting(
                "socket.timeout.ms",
                "5000",
                "60000",
                _SILENT_MEMBER,
                "longest stall behind a member that fell silent: 6.2 s, 60 s without (producer, median)",
            ),
        ),
        "aiokafka": (
            ClientSetting(
                "request_timeout_ms",
                "5000",
                "40000",
                _SILENT_MEMBER,
                "longest stall behind a member that fell silent: 5.2 s, 40 s without (producer, median)",
            ),
            ClientSetting("retry_backoff_ms", "20", "100", _RETRY_SOON),
        ),
        "franz-go": (
            ClientSetting(
                "kgo.MetadataMinAge",
                "250*time.Millisecond",
                "5 s",
                "the client does not request Metadata again before this time",
            ),
            ClientSetting("kgo.RequestTimeoutOverhead", "5*time.Second", "10 s", _SILENT_MEMBER),
            ClientSetting("kgo.DialTimeout", "2*time.Second", "10 s", _LOST_MEMBER),
        ),
        "sarama": (
            ClientSetting(
                "config.Producer.RequiredAcks", "sarama.WaitForAll", "sarama.WaitForLocal", _ACKS_ALL
            ),
            ClientSetting(
                "config.Producer.Idempotent",
                "true",
                "false",
                "sarama sends unanswered records again; without idempotence the log may have them twice",
            ),
            ClientSetting("config.Net.MaxOpenRequests", "1", "5", "an idempotent producer requires it"),
            ClientSetting(
                "config.Consumer.Retry.Backoff",
                "50*time.Millisecond",
                "2 s",
                "after a broken connection to a broker, its partitions are not read before this time",
                "with the next one, longest pause of the group when the proxy of the coordinator is killed,"
                " median and worst of 5 kills on one core: 0.4 and 0.9 s, 1.4 and 2.2 without",
            ),
            ClientSetting("config.Metadata.Retry.Backoff", "50*time.Millisecond", "250 ms", _RETRY_SOON),
            ClientSetting("config.Net.ReadTimeout", "5*time.Second", "30 s", _SILENT_MEMBER),
            ClientSetting("config.Net.DialTimeout", "2*time.Second", "30 s", _LOST_MEMBER),
        ),
        "kafka-go": (
            ClientSetting("writer.RequiredAcks", "kafka.RequireAll", "kafka.RequireNone", _ACKS_ALL),
            ClientSetting(
                "transport.MetadataTTL",
                "1*time.Second",
                "6 s",
                "a writer learns new addresses at its next refresh, after a random part of this time",
                "with the next two, longest pause when the proxy of the coordinator is killed, median and"
                " worst of 10 kills on one core: writer 0.6 and 1.7 s, 2.0 and 5.6 without; reader 1.1 and"
                " 1.8 s, 1.7 and 4.9 without",
            ),
            ClientSetting(
                "reader.HeartbeatInterval",
                "1*time.Second",
                "3 s",
                "a reader notices at its next heartbeat that the connection to its coordinator has ended",
            ),
            ClientSetting(
                "reader.JoinGroupBackoff",
                "500*time.Millisecond",
                "5 s",
                "a reader that could not join its group waits this long before it tries again",
            ),
            ClientSetting(
                "reader.MaxWait",
                "2*time.Second",
                "10 s",
                "a reader waits this long for new records, and for the answer of a member that fell silent",
            ),
            ClientSetting("writer.WriteTimeout", "5*time.Second", "10 s", _SILENT_MEMBER),
            ClientSetting("transport.DialTimeout", "2*time.Second", "5 s", _LOST_MEMBER),
            ClientSetting("dialer.Timeout", "2*time.Second", "10 s", _LOST_MEMBER),
        ),
        "kafkajs": (
            ClientSetting(
                "consumer.sessionTimeout",
                "6000",
                "30000",
                "kafkajs keeps a dead address for its coordinator until the consumer crashes and starts again"
                " as a new member: the group then waits until the session of the old member ends (by default"
                " brokers allow no less than 6 s)",
                "this and the next three together, from the kill of the coordinator's proxy until the group"
                " is back: 6.1 to 6.4 s, 30.5 to 31.7 s without (3 kills)",
            ),
            ClientSetting(
                "consumer.heartbeatInterval", "1000", "3000", "a session of 6 s needs more than one heartbeat"
            ),
            ClientSetting(
                "consumer.retry",
                "{ initialRetryTime: 100, retries: 4 }",
                "300 ms, 5 retries",
                "the consumer crashes after its last retry, and starts again one pause later: 3 s in all,"
                " 19 s without",
            ),
            ClientSetting(
                "consumer.maxWaitTimeInMs",
                "500",
                "5000",
                "before each retry the consumer waits for the answers to all its requests for records",
            ),
            ClientSetting("client.requestTimeout", "5000", "30000", _SILENT_MEMBER),
            ClientSetting(
                "producer.idempotent",
                "true",
                "false",
                "records that are sent again are stored once, in order",
            ),
            ClientSetting(
                "producer.maxInFlightRequests",
                "1",
                "no limit",
                "an idempotent producer of kafkajs keeps order with one request in flight",
            ),
        ),
        "spark": (
            ClientSetting("kafka.request.timeout.ms", "5000", "30000", _SILENT_MEMBER),
            ClientSetting("kafka.reconnect.backoff.ms", "10", "50", _RECONNECT_AT_ONCE),
            ClientSetting(
                "fetchOffset.numRetries",
                "10",
                "3",
                "the driver gives up a batch when its requests fail this often",
            ),
            ClientSetting(
                "fetchOffset.retryIntervalMs",
                "100",
                "10",
                "three attempts within 30 ms end before a takeover ends",
            ),
        ),
    }
)


@dataclass(frozen=True, slots=True)
class TlsSetting:
    """The setting of a client that enables TLS; with SASL the value is SASL_SSL."""

    name: str
    value: str


TLS: Final[Mapping[Client, TlsSetting]] = MappingProxyType(
    {
        "java": TlsSetting("security.protocol", "SSL"),
        "librdkafka": TlsSetting("security.protocol", "ssl"),
        "aiokafka": TlsSetting("security_protocol", "SSL"),
        "franz-go": TlsSetting("kgo.DialTLSConfig", "new(tls.Config)"),
        "kafkajs": TlsSetting("client.ssl", "true"),
        "sarama": TlsSetting("config.Net.TLS.Enable", "true"),
        "kafka-go": TlsSetting("transport.TLS, dialer.TLS", "new(tls.Config), new(tls.Config)"),
        "spark": TlsSetting("kafka.security.protocol", "SSL"),
    }
)


def settings_for(client: Client, *, secured: bool) -> tuple[ClientSetting, ...]:
    """The settings of a client, besides its bootstrap servers.

    Args: secured: whether the listener that the client connects to uses TLS.
    """
    if not secured:
        return CLIENT_SETTINGS[client]
    tls = TLS[client]
    why = "this listener uses TLS; with SASL use SASL_SSL, or the name that your client has for it"
    return (*CLIENT_SETTINGS[client], ClientSetting(tls.name, tls.value, "plaintext", why))


def basis_of(client: Client) -> Basis:
    """Whether any setting of a client was measured with that client."""
    measured = any(each.measured is not None for each in CLIENT_SETTINGS[client])
    return "measured" if measured else "reasoned, not measured"


def as_text(client: Client, bootstrap_servers: Sequence[str], settings: Sequence[ClientSetting]) -> str:
    """A file or a piece of code, ready for use; comments give the reasons and the measurements."""
    text = _WRITERS[client](bootstrap_servers, settings)
    basis = basis_of(client)
    if basis == "measured":
        return text
    mark = "//" if client in ("franz-go", "sarama", "kafka-go", "kafkajs") else "#"
    note = f"{basis}: no takeover was timed with these settings; each comment gives the reason"
    return "\n".join([*_comment(mark, note), text])


def _properties(bootstrap_servers: Sequence[str], settings: Sequence[ClientSetting]) -> str:
    return _lines("#", f"bootstrap.servers={','.join(bootstrap_servers)}", settings, "{name}={value}")


def _python(bootstrap_servers: Sequence[str], settings: Sequence[ClientSetting]) -> str:
    first = f"    bootstrap_servers={list(bootstrap_servers)!r},"
    quoted = [
        ClientSetting(
            each.name,
            each.value if each.value.isdigit() else repr(each.value),
            each.default,
            each.why,
            each.measured,
        )
        for each in settings
    ]
    return f"settings = dict(\n{_lines('    #', first, quoted, '    {name}={value},')})\n"


def _franz_go(bootstrap_servers: Sequence[str], settings: Sequence[ClientSetting]) -> str:
    seeds = _go_strings(bootstrap_servers)
    lines = _lines("\t//", f"\tkgo.SeedBrokers({seeds}),", settings, "\t{name}({value}),")
    return f"options := []kgo.Opt{{\n{lines}}}\n"


def _javascript(bootstrap_servers: Sequence[str], settings: Sequence[ClientSetting]) -> str:
    brokers = ", ".join(f'"{each}"' for each in bootstrap_servers)
    first = f"settings.client.brokers = [{brokers}]"
    return (
        "// const kafka = new Kafka(settings.client); kafka.producer(settings.producer)\n"
        "// kafka.consumer({ groupId, ...settings.consumer })\n"
        "const settings = { client: {}, consumer: {}, producer: {} }\n"
        + _lines("//", first, settings, "settings.{name} = {value}")
    )


def _sarama(bootstrap_servers: Sequence[str], settings: Sequence[ClientSetting]) -> str:
    first = f"brokers := []string{{{_go_strings(bootstrap_servers)}}}\nconfig := sarama.NewConfig()"
    return _lines("//", first, settings, "{name} = {value}")


def _kafka_go(bootstrap_servers: Sequence[str], settings: Sequence[ClientSetting]) -> str:
    first = (
        f"brokers := []string{{{_go_strings(bootstrap_servers)}}}\n"
        "dialer, transport := new(kafka.Dialer), new(kafka.Transport)\n"
        "writer := &kafka.Writer{Addr: kafka.TCP(brokers...), Transport: transport}\n"
        "reader := &kafka.ReaderConfig{Brokers: brokers, Dialer: dialer}"
    )
    return _lines("//", first, settings, "{name} = {value}")


def _go_strings(values: Sequence[str]) -> str:
    return ", ".join(f'"{each}"' for each in values)


def _spark(bootstrap_servers: Sequence[str], settings: Sequence[ClientSetting]) -> str:
    first = f'    "kafka.bootstrap.servers": "{",".join(bootstrap_servers)}",'
    lines = _lines("    #", first, settings, '    "{name}": "{value}",')
    return f'# spark.readStream.format("kafka").options(**options)\noptions = {{\n{lines}}}\n'


def _lines(comment: str, first: str, settings: Sequence[ClientSetting], form: str) -> str:
    lines = [*_comment(comment, "all members: if one is dead, another one answers"), first]
    for each in settings:
        lines += _comment(comment, f"{each.why} (default: {each.default})")
        if each.measured is not None:
            lines += _comment(comment, f"measured: {each.measured}")
        lines.append(form.format(name=each.name, value=each.value))
    return "\n".join(lines) + "\n"


def _comment(mark: str, sentence: str) -> list[str]:
    return textwrap.wrap(
        f"{sentence[0].upper()}{sentence[1:]}.",
        WIDTH,
        initial_indent=f"{mark} ",
        subsequent_indent=f"{mark} ",
        break_long_words=False,
    )


_WRITERS: Final[Mapping[Client, Callable[[Sequence[str], Sequence[ClientSetting]], str]]] = MappingProxyType(
    {
        "java": _properties,
        "librdkafka": _properties,
        "aiokafka": _python,
        "franz-go": _franz_go,
        "sarama": _sarama,
        "kafka-go": _kafka_go,
        "kafkajs": _javascript,
        "spark": _spark,
    }
)
