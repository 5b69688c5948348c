"""Names of configurations with addresses of brokers or controllers: see docs/adr/0003-describe-configs.md."""

from __future__ import annotations

ADDRESS_CONFIGS: frozenset[bytes] = frozenset(
    (
        b"listeners",
        b"advertised.listeners",
        b"controller.quorum.voters",
        b"controller.quorum.bootstrap.servers",
        b"bootstrap.servers",
        b"zookeeper.connect",
        # Removed in Kafka 4.0, still answered by older brokers.
        b"host.name",
        b"port",
        b"advertised.host.name",
        b"advertised.port",
    )
)

ADDRESS_SUFFIXES: tuple[bytes, ...] = (
    # Plug-ins inside the broker add their own configurations: tiered storage
    # (…common.client.bootstrap.servers), metrics reporters, schema validation.
    b".bootstrap.servers",
    b".listeners",
    b".host.name",
    b".quorum.voters",
    b".zookeeper.connect",
)


def carries_address(name: memoryview) -> bool:
    """Whether the value of the configuration with this name is blanked."""
    text = bytes(name)
    return text in ADDRESS_CONFIGS or text.endswith(ADDRESS_SUFFIXES)
