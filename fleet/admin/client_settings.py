"""What clients are best told, by the names that each has for it: why, and what it was measured to do.

Sources: docs/clients.md; for defaults the documentation of librdkafka 2.16, Kafka 4.4 (producer, consumer,
admin), aiokafka 0.14, franz-go 1.22 (package kgo), sarama 1.61, kafka-go 0.4.51, kafkajs 2.2 and Spark 4.1
(Kafka integration).
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

WIDTH: Final = 100
"""Of the lines that are printed, where their words allow it."""

Client: TypeAlias = Literal[
    "java", "librdkafka", "aiokafka", "franz-go", "sarama", "kafka-go", "kafkajs", "spark"
]
Basis: TypeAlias = Literal["measured", "reasoned, not measured"]


@dataclass(frozen=True, slots=True)
class ClientSetting:
    """One setting.

    Args:
        name, value: as the client wants them.
        default: what the client does without it.
        why: in a sentence.
        measured: what it changed, where that was measured.
    """

    name: str
    value: str
    default: str
    why: str
    measured: str | None = None


_AT_ONCE: Final = "where a member died another one answers in its place: waiting for it is lost time"
_ASK_AGAIN: Final = (
    "the survivors' answer is right some 30 ms after a death: a short wait before asking again is enough"
)
_SILENT: Final = (
    "a member that is lost without a word (its host, its network) is noticed where an answer stays out:"
    " give brokers a little more than their slowest answer takes"
)
_NO_CONNECTION: Final = "a member that is lost takes no connection"
_ALL: Final = "for producers: a record that only its leader has, or nobody has acknowledged, can be lost"
_TAKEOVER: Final = (
    "all four together: longest delivery in a takeover 132 ms in the median of 20 kills, 284 without;"
    " on a slower machine 383 and 395"
)

LIBRDKAFKA_TAKEOVER: Final = (
    ClientSetting("reconnect.backoff.ms", "10", "100", _AT_ONCE),
    ClientSetting(
        "reconnect.backoff.max.ms",
        "100",
        "10000",
        "the back-off doubles with each attempt, and a second takeover soon would wait that long",
    ),
    ClientSetting("retry.backoff.ms", "20", "100", "what failed is sent again that soon"),
    ClientSetting("topic.metadata.refresh.fast.interval.ms", "20", "100", _ASK_AGAIN, _TAKEOVER),
)
"""What makes takeovers shorter for librdkafka, and nothing else."""

CLIENT_SETTINGS: Final[Mapping[Client, tuple[ClientSetting, ...]]] = MappingProxyType(
    {
        "java": (
            ClientSetting(
                "request.timeout.ms",
                "5000",
                "30000",
                _SILENT,
                "longest stall behind a member that fell silent: 5.1 s, 30 s without (producer, median)",
            ),
            ClientSetting("reconnect.backoff.ms", "10", "50", _AT_ONCE),
            ClientSetting("reconnect.backoff.max.ms", "100", "1000", "it doubles with each attempt in a row"),
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
                _SILENT,
                "longest stall behind a member that fell silent: 6.2 s, 60 s without (producer, median)",
            ),
        ),
        "aiokafka": (
            ClientSetting(
                "request_timeout_ms",
                "5000",
                "40000",
                _SILENT,
                "longest stall behind a member that fell silent: 5.2 s, 40 s without (producer, median)",
            ),
            ClientSetting("retry_backoff_ms", "20", "100", _ASK_AGAIN),
        ),
        "franz-go": (
            ClientSetting(
                "kgo.MetadataMinAge",
                "250*time.Millisecond",
                "5 s",
                "no second look at Metadata comes sooner than that",
            ),
            ClientSetting("kgo.RequestTimeoutOverhead", "5*time.Second", "10 s", _SILENT),
            ClientSetting("kgo.DialTimeout", "2*time.Second", "10 s", _NO_CONNECTION),
        ),
        "sarama": (
            ClientSetting("config.Producer.RequiredAcks", "sarama.WaitForAll", "sarama.WaitForLocal", _ALL),
            ClientSetting(
                "config.Producer.Idempotent",
                "true",
                "false",
                "sarama sends again what was not answered; without idempotence the log may have it twice",
            ),
            ClientSetting("config.Net.MaxOpenRequests", "1", "5", "an idempotent producer requires it"),
            ClientSetting(
                "config.Consumer.Retry.Backoff",
                "50*time.Millisecond",
                "2 s",
                "a partition whose broker's connection has ended is read on no sooner than after this",
                "with the next one, longest pause of the group when the proxy of the coordinator is killed,"
                " median and worst of 5 kills on one core: 0.4 and 0.9 s, 1.4 and 2.2 without",
            ),
            ClientSetting("config.Metadata.Retry.Backoff", "50*time.Millisecond", "250 ms", _ASK_AGAIN),
            ClientSetting("config.Net.ReadTimeout", "5*time.Second", "30 s", _SILENT),
            ClientSetting("config.Net.DialTimeout", "2*time.Second", "30 s", _NO_CONNECTION),
        ),
        "kafka-go": (
            ClientSetting("writer.RequiredAcks", "kafka.RequireAll", "kafka.RequireNone", _ALL),
            ClientSetting(
                "transport.MetadataTTL",
                "1*time.Second",
                "6 s",
                "a writer learns new addresses at its next refresh, which comes after a random part of this",
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
                "a reader that could not join its group again waits that long",
            ),
            ClientSetting(
                "reader.MaxWait",
                "2*time.Second",
                "10 s",
                "a reader waits that long for new records, and for the answer of a member that fell silent",
            ),
            ClientSetting("writer.WriteTimeout", "5*time.Second", "10 s", _SILENT),
            ClientSetting("transport.DialTimeout", "2*time.Second", "5 s", _NO_CONNECTION),
            ClientSetting("dialer.Timeout", "2*time.Second", "10 s", _NO_CONNECTION),
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
                "the consumer crashes when its retries are over, and starts again one pause later: 3 s"
                " together, 19 s without",
            ),
            ClientSetting(
                "consumer.maxWaitTimeInMs",
                "500",
                "5000",
                "before each retry the consumer waits for the answers to all its requests for records",
            ),
            ClientSetting("client.requestTimeout", "5000", "30000", _SILENT),
            ClientSetting(
                "producer.idempotent", "true", "false", "a request that is sent again is kept once, in order"
            ),
            ClientSetting(
                "producer.maxInFlightRequests",
                "1",
                "no limit",
                "an idempotent producer of kafkajs keeps order with one request in flight",
            ),
        ),
        "spark": (
            ClientSetting("kafka.request.timeout.ms", "5000", "30000", _SILENT),
            ClientSetting("kafka.reconnect.backoff.ms", "10", "50", _AT_ONCE),
            ClientSetting(
                "fetchOffset.numRetries",
                "10",
                "3",
                "the driver gives a batch up where its questions fail that often",
            ),
            ClientSetting(
                "fetchOffset.retryIntervalMs",
                "100",
                "10",
                "three attempts in 30 ms are over before a takeover is",
            ),
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Secured:
    """That a listener speaks TLS: what each client calls it. Where its clients use SASL, SASL_SSL it is."""

    name: str
    value: str


TLS: Final[Mapping[Client, Secured]] = MappingProxyType(
    {
        "java": Secured("security.protocol", "SSL"),
        "librdkafka": Secured("security.protocol", "ssl"),
        "aiokafka": Secured("security_protocol", "SSL"),
        "franz-go": Secured("kgo.DialTLSConfig", "new(tls.Config)"),
        "kafkajs": Secured("client.ssl", "true"),
        "sarama": Secured("config.Net.TLS.Enable", "true"),
        "kafka-go": Secured("transport.TLS, dialer.TLS", "new(tls.Config), new(tls.Config)"),
        "spark": Secured("kafka.security.protocol", "SSL"),
    }
)


def settings_for(client: Client, *, secured: bool) -> tuple[ClientSetting, ...]:
    """What a client is told besides whom to ask.

    Args: secured: whether the listener that it comes to speaks TLS.
    """
    if not secured:
        return CLIENT_SETTINGS[client]
    tls = TLS[client]
    why = "this listener speaks TLS; with SASL it is SASL_SSL, or as your client has it"
    return (*CLIENT_SETTINGS[client], ClientSetting(tls.name, tls.value, "plaintext", why))


def basis_of(client: Client) -> Basis:
    """Whether anything of what a client is told was measured with it."""
    measured = any(each.measured is not None for each in CLIENT_SETTINGS[client])
    return "measured" if measured else "reasoned, not measured"


def as_text(client: Client, bootstrap_servers: Sequence[str], settings: Sequence[ClientSetting]) -> str:
    """A file, or a piece of code, to be used as it is, with reasons as comments, and what they rest on."""
    text = _WRITERS[client](bootstrap_servers, settings)
    basis = basis_of(client)
    if basis == "measured":
        return text
    mark = "//" if client in ("franz-go", "sarama", "kafka-go", "kafkajs") else "#"
    said = f"{basis}: no takeover was timed with these settings; why they are as they are is said with each"
    return "\n".join([*_comment(mark, said), text])


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
    lines = [*_comment(comment, "all members: one answers where another is dead"), first]
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
